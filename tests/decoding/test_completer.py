"""A decoder alone: what follows a text."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer import load, load_completer
from mlx_transformer.decoding.completer import Completer
from mlx_transformer.errors import InputError
from tests.tiny_directory import write_half, write_model

PROMPTS = ["five hundred", "", "zwei", "one hundred and seven thousand", "five hundred"]


@pytest.fixture(scope="module")
def completer(tmp_path_factory: pytest.TempPathFactory) -> Completer:
    folder = tmp_path_factory.mktemp("gpt")
    return load_completer(write_half(folder, "decoder", norm="pre", decoder_final_norm=True))


def test_a_prompt_and_its_completion_are_one_text(completer: Completer) -> None:
    for found in completer.complete(PROMPTS, beam=2, max_tokens=12):
        ids = [1, *completer.tokenizer.encode_source(found.prompt)]
        assert len(found.tokens) <= 12
        # The best next piece, by a full pass
        logits = np.array(completer.model(mx.array([ids])))[0, -1]
        logits[[0, 1]] = -np.inf
        (greedy,) = completer.complete([found.prompt], beam=1, max_tokens=1)
        best = completer.tokenizer.decode([*ids, int(logits.argmax())])
        assert found.prompt + greedy.text == best


@pytest.mark.parametrize("changes", [{"beam": 1}, {"beam": 3}, {"sample": True, "seed": 4}])
def test_a_stream_is_the_completion_in_pieces(completer: Completer, changes: dict) -> None:
    whole = completer.complete("seven hundred", max_tokens=12, **changes)
    pieces = list(completer.stream("seven hundred", max_tokens=12, **changes))
    assert "".join(pieces) == whole.text
    assert len(pieces) > 1 or changes == {"beam": 3}


def test_several_are_found(completer: Completer) -> None:
    found = completer.complete("seven", sample=True, nbest=3, max_tokens=8)
    texts = [found.text, *(each.text for each in found.alternatives)]
    assert len(set(texts)) == 3


def test_scores_are_log_probabilities_of_the_text_and_its_end(completer: Completer) -> None:
    texts = ["five hundred", "", "zwei"]
    for text, score in zip(texts, completer.score(texts), strict=True):
        ids = [1, *completer.tokenizer.encode_source(text), 2]
        logp = np.array(mx.softmax(completer.model(mx.array([ids[:-1]]))[0], axis=-1))
        expected = sum(np.log(logp[i, word]) for i, word in enumerate(ids[1:]))
        assert score.logp == pytest.approx(expected, abs=1e-3)
        assert score.tokens == len(ids) - 1
    with pytest.raises(InputError, match="score takes lists of texts"):
        completer.score("zwei")


def test_a_model_of_other_halves_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    write_model(tmp_path / "both")
    with pytest.raises(InputError, match="an encoder and a decoder, which translate, not a deco"):
        load_completer(tmp_path / "both")
    (tmp_path / "half").mkdir()
    write_half(tmp_path / "half", "decoder")
    with pytest.raises(InputError, match="a decoder alone, which completes and scores texts, not"):
        load(tmp_path / "half")
