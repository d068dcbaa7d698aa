"""The search of a decoder alone: its prompt is read in one pass, the rest is as ever."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_transformer import device
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_texts
from mlx_transformer.decoding.search import search
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model, save_model
from tests.decoding.random_models import random_model
from tests.decoding.search_reference import Judge, beam_search, greedy_search, paper_penalty

PROMPTS = [[1, 5, 6], [1, 7, 8], [1], [9, 4, 3, 3, 3, 8, 10], [4, 3, 6]]
NEVER = {0, 1}  # padding and the start


def decoder(seed: int, **changes: object) -> Transformer:
    return random_model(seed, eos_bias=0.5, encoder_layers=0, norm="pre", **changes)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative"])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_and_beam_equal_plain_python(positions: str, seed: int) -> None:
    model = decoder(seed, positions=positions)
    penalty = partial(paper_penalty, alpha=0.6)
    greedy = search(model, PROMPTS, SearchOptions(beam=1, max_tokens=9))
    beam = search(model, PROMPTS, SearchOptions(beam=3, nbest=2, max_tokens=9))
    for prompt, found, ranked in zip(PROMPTS, greedy, beam, strict=True):
        judge = Judge(model, prompt)
        words, score = greedy_search(judge, penalty, 9, 2, lambda _: NEVER)
        assert tuple(found[0].ids) == tuple(word for word in words if word != 2)
        assert found[0].score == pytest.approx(score, abs=1e-4)
        expected = beam_search(judge, 3, 2, penalty, 9, 2, lambda _: NEVER)
        assert [tuple(h.ids) for h in ranked] == [
            tuple(word for word in words if word != 2) for words, _ in expected
        ]


@pytest.mark.parametrize(
    "options", [SearchOptions(beam=3), SearchOptions(sample=True, nbest=2), SearchOptions(beam=1)]
)
def test_every_batch_gives_the_same(options: SearchOptions) -> None:
    model = decoder(7, positions="learned")
    together = search(model, PROMPTS, options)
    alone = [search(model, [prompt], options)[0] for prompt in PROMPTS]
    assert [[h.ids for h in each] for each in alone] == [[h.ids for h in each] for each in together]


@pytest.mark.slow
def test_a_compiled_search_gives_the_same() -> None:
    """There the caches have room for longer prompts, which no step may look at."""
    model, options = decoder(7, positions="learned"), SearchOptions(beam=3, max_tokens=8)
    prompts = PROMPTS[:2]  # of one length: one shape to compile
    expected = search(model, prompts, options)
    with device.as_gpu():
        found = search(model, prompts, options)
    assert [[h.ids for h in each] for each in found] == [[h.ids for h in each] for each in expected]


def test_an_ngram_of_the_prompt_is_not_repeated() -> None:
    model = decoder(3)
    prompt = [1, 5, 6, 7, 8, 5, 6]
    for beam in (1, 3):
        ((found,),) = search(
            model, [prompt], SearchOptions(beam=beam, no_repeat_ngram=2, max_tokens=20)
        )
        pairs = list(zip([*prompt, *found.ids], [*prompt, *found.ids][1:], strict=False))
        new = pairs[len(prompt) - 1 :]
        assert len(set(new)) == len(new) and not set(new) & set(pairs[: len(prompt) - 1])


def test_a_prompt_that_fills_the_model_is_a_sentence() -> None:
    model = decoder(0, max_length=8)
    ((found,),) = search(model, [[4] * 7], SearchOptions(beam=1, max_tokens=50))
    assert len(found.ids) <= 1
    with pytest.raises(InputError, match="a prompt has 1 to 7 tokens, not 8: shorten it"):
        search(model, [[4] * 8])
    with pytest.raises(InputError, match="not 0"):
        search(model, [[]])


def test_scores_are_the_log_probabilities_of_all_but_the_first_word() -> None:
    model = decoder(1)
    for text, score in zip(PROMPTS, score_texts(model, PROMPTS), strict=True):
        judge = Judge(model, [])
        expected = sum(judge(tuple(text[:i]))[text[i]] for i in range(1, len(text)))
        assert score.logp == pytest.approx(expected, abs=1e-4)
        assert score.tokens == len(text) - 1


@pytest.mark.parametrize(
    "halves",
    [{"encoder_layers": 0}, {"decoder_layers": 0}, {"decoder_layers": 0, "word_head": "transform"}],
)
def test_a_half_has_its_own_parameters_only_and_is_saved(halves: dict, tmp_path) -> None:
    model = random_model(0, **halves)
    names = [name for name, _ in tree_flatten(model.parameters())]
    missing = "encoder" if "encoder_layers" in halves else "decoder"
    assert not [name for name in names if name.startswith(missing) or "cross" in name]
    save_model(model, tmp_path)
    ids = mx.array([[1, 5, 6, 2]])
    again = load_model(tmp_path)
    np.testing.assert_array_equal(np.array(model(ids)), np.array(again(ids)))
    assert model(ids).shape == (1, 4, 12)
    maps = model.attention_maps(ids)
    assert len(maps.encoder) == model.config.encoder_layers
    assert len(maps.decoder) == model.config.decoder_layers and not maps.cross
