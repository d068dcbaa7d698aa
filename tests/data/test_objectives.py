"""What models of one half, and of both, learn from plain text."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mlx_transformer.config import preset
from mlx_transformer.data import grammar
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus, Sentences
from mlx_transformer.data.objectives import Causal, Masked, Objective, Spans, objective_for
from mlx_transformer.data.prepare import prepare
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import load_recipe
from mlx_transformer.tokenizer import Frame, load_tokenizer

FRAME = Frame(before=(1,))
OBJECTIVES: dict[str, Objective] = {
    "causal": Causal(1, 2),
    "masked": Masked(FRAME, 4, range(5, 40), 0, 2),
    "spans": Spans(Frame(), range(10, 14), 2),
}
TEXTS = [list(range(20, 20 + n)) for n in (1, 2, 3, 7, 12, 19, 20, 20, 20)]


def corpus(texts: list[list[int]]) -> ParallelCorpus:
    sentences = Sentences.from_lists(texts)
    return ParallelCorpus(sentences, sentences, 40, 40, [], [])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_examples_have_the_lengths_that_were_promised(name: str) -> None:
    objective, random = OBJECTIVES[name], np.random.default_rng(0)
    promised = objective.lengths(np.array([len(text) for text in TEXTS]))
    for text, lengths in zip(TEXTS, promised.tolist(), strict=True):
        for _ in range(20):
            assert list(map(len, objective.example(text, random))) == lengths


def test_a_decoder_says_the_next_token() -> None:
    read, expected = OBJECTIVES["causal"].example([7, 8, 9], np.random.default_rng(0))
    assert (read, expected) == ([1, 7, 8, 9], [7, 8, 9, 2])


def test_an_encoder_says_what_is_hidden() -> None:
    random, seen = np.random.default_rng(0), Counter()
    text = list(range(20, 40))
    for _ in range(2000):
        read, expected = OBJECTIVES["masked"].example(text, random)
        assert (read[0], read[-1], expected[0], expected[-1]) == (1, 2, 0, 0)
        for word, found, wanted in zip(text, read[1:-1], expected[1:-1], strict=True):
            assert wanted in (0, word) and (found == word or wanted == word)
            if wanted:
                seen["mask" if found == 4 else "same" if found == word else "other"] += 1
    total = seen.total()
    assert total == 2000 * 3  # 15% of 20
    assert seen["mask"] / total == pytest.approx(0.8, abs=0.02)
    assert seen["other"] / total == pytest.approx(0.1, abs=0.02)


def test_spans_and_what_is_left_are_the_text() -> None:
    random, first, last = np.random.default_rng(0), 0, 0
    for text in TEXTS[1:] * 50:
        read, expected = OBJECTIVES["spans"].example(text, random)
        assert read[-1] == expected[-1] == 2
        spans: dict[int, list[int]] = {}
        for token in expected[:-1]:
            if token in range(10, 14):
                spans[token] = []
            else:
                spans[[*spans][-1]].append(token)
        assert all(spans.values())
        whole = [t for token in read[:-1] for t in spans.get(token, [token])]
        assert whole == text
        first, last = first + (read[0] == 10), last + (read[-2] in range(10, 14))
    assert first > 20 and last > 20  # gaps are also at the ends


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_hidden_follows_from_seed_epoch_and_text(name: str) -> None:
    config = preset("tiny", vocab_size=40)
    texts = [TEXTS[4]] * 40

    def rows(seed: int, epoch: int, tokens: int) -> dict[int, tuple[list[int], list[int]]]:
        batches = Batches(corpus(texts), config, tokens, seed=seed, objective=OBJECTIVES[name])
        found = {}
        for planned in batches.epoch(epoch):
            batch = batches.read(planned)
            for row, text in enumerate(planned.pairs.tolist()):
                found[text] = batch.source[row].tolist(), batch.target_out[row].tolist()
                if OBJECTIVES[name].aligned:
                    assert batch.target_in is batch.source
                else:
                    assert batch.target_in[row].tolist()[:2] == [1, batch.target_out[row][0]]
        return found

    once = rows(0, 0, 64)
    assert once == rows(0, 0, 200)  # whatever batch it is in
    if name != "causal":
        assert once != rows(0, 1, 64) and once != rows(1, 0, 64)
        assert len({str(row) for row in once.values()}) > 3


def test_one_file_is_cut_into_splits_and_long_lines_into_parts(tmp_path: Path) -> None:
    lines = [f"the {word} sleeps" for word in grammar.PEOPLE] * 20
    lines[5], lines[7] = "", " ".join(lines[:20])
    (tmp_path / "book.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "mine.toml").write_text(
        '[data]\ntext = "book.txt"\nmax_length = 16\n[tokenizer]\nvocab_size = 90\n'
        '[model]\npreset = "tiny"\ndecoder_layers = 0\n'
    )
    recipe = load_recipe(tmp_path / "mine.toml")
    report = prepare(recipe, tmp_path / "data")
    assert report.splits["valid"].pairs == report.splits["test"].pairs == 3
    assert report.splits["train"].dropped == {"empty": 1}
    tokenizer = load_tokenizer(tmp_path / "data")
    assert tokenizer.mask is not None and tokenizer.frame.before == (1,)
    train = ParallelCorpus.open(tmp_path / "data", "train")
    assert train.source.lengths().max() == 14
    everything = tokenizer.decode([i for n in range(len(train)) for i in train.source[n]])
    held_out = sum(n % 100 in (33, 66) for n in range(len(lines)))
    words = sum(len(line.split()) for line in lines) - 3 * held_out
    assert len(everything.split()) == words
    assert prepare(recipe, tmp_path / "data").reused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[data]\ntext = "a"\ntrain = "b"\n', "data.text is plain text: give no pairs"),
        ('[data]\ntask = "grammar"\ntext = "b"\n', "makes its own text"),
        ('[data]\ntask = "numbers"\n[model]\nencoder_layers = 0\n', "decoder alone learns from pl"),
    ],
)
def test_a_wrong_recipe_is_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        load_recipe(tmp_path / "wrong.toml")


@pytest.mark.parametrize("name", ["gpt-mini", "bert-mini", "t5-mini"])
def test_shipped_recipes_take_text_of_ones_own(name: str, tmp_path: Path) -> None:
    assert load_recipe(name).data.task == "grammar"
    data = load_recipe(name, [f"data.text={tmp_path / 'book.txt'}"]).data
    assert (data.task, data.text) == (None, str(tmp_path / "book.txt")) and data.is_plain_text


def test_a_vocabulary_without_gaps_is_a_sentence(tmp_path: Path) -> None:
    from tests.tiny_directory import write_model

    tokenizer = load_tokenizer(write_model(tmp_path))
    with pytest.raises(InputError, match="no <extra_id_0>"):
        objective_for(preset("tiny"), tokenizer)
    with pytest.raises(InputError, match="no mask"):
        objective_for(preset("tiny", decoder_layers=0), tokenizer)


def test_the_surprise_of_a_sentence_is_that_of_its_choices() -> None:
    """By counting: as many sentences as products of its lists."""
    people = len(grammar.CHARACTERS) * len(grammar.PEOPLE)
    things = len(grammar.COLOURS) * len(grammar.THINGS)
    total = people**2 * things * len(grammar.DEEDS) * len(grammar.DAYS)
    assert grammar.surprise() == pytest.approx(math.log(total))
    assert len(set(grammar.sentences("valid"))) > 490
    assert not set(grammar.sentences("valid")) & set(grammar.sentences("test"))
