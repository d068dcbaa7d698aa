"""Lexical shortlists: a search that keeps to one, and Marian's files of them."""

import struct
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.quantize import quantize_directory
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search, search
from mlx_transformer.decoding.shortlist import Shortlist, load_shortlist
from mlx_transformer.decoding.translator import load
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model
from tests.decoding.random_models import random_model, random_source
from tests.marian_models import V, student, write_bin, write_lex
from tests.tiny_directory import write_model

FIRST = 6
Lists = list[list[int]]  # by source word


def random_lists(seed: int, words: int = V) -> Lists:
    r = np.random.default_rng(seed)
    return [sorted(r.choice(words, r.integers(0, 5), replace=False).tolist()) for _ in range(words)]


def shortlist(lists: Lists, first: int = FIRST) -> Shortlist:
    starts = np.cumsum([0, *map(len, lists)])
    return Shortlist(starts, np.array([word for each in lists for word in each]), first)


def allowed(lists: Lists, source: list[int]) -> set[int]:
    return {*range(FIRST), *(word for i in source for word in lists[i])}


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_the_words_of_a_sentence_are_those_on_its_lists(beam: int, tied: bool) -> None:
    """As if all others were banned; what else is in its batch does not matter."""
    r = np.random.default_rng(beam)
    model = random_model(3, eos_bias=-2, vocab_size=V, tied_output=tied, logit_scale=0.7)
    lists = random_lists(5)
    sources = [random_source(r, model, n) for n in (1, 2, 6, 6)]
    begins = [[V - 1, 4], [], [V - 2], []]  # given words need not be on a list
    options = SearchOptions(
        beam=beam, nbest=beam, max_tokens=7, no_repeat_ngram=3, renormalize=True
    )
    kept = Search(model, replace(options, shortlist=True), shortlist(lists))
    found = list(kept.each(zip(sources, begins, strict=True), window=None))
    free = search(model, sources, SearchOptions(beam=beam, max_tokens=7), begins)
    for source, begin, results in zip(sources, begins, found, strict=True):
        banned = tuple({*range(V)} - allowed(lists, source) - {*begin})
        alone = replace(options, banned=banned)
        [expected] = search(model, [source], alone, [begin])
        assert [h.ids for h in results] == [h.ids for h in expected]
        np.testing.assert_allclose([h.logp for h in results], [h.logp for h in expected], atol=1e-4)
    assert [h[0].ids for h in found] != [h[0].ids for h in free]


def test_an_empty_batch_row_leaves_and_the_others_go_on(model_of_three: Transformer) -> None:
    """Rows that are done leave a batch; their lists leave with them."""
    r = np.random.default_rng(0)
    lists = random_lists(1)
    sources = [random_source(r, model_of_three, 4) for _ in range(9)]
    options = SearchOptions(beam=2, max_tokens=12, shortlist=True)
    kept = Search(model_of_three, options, shortlist(lists))
    together = [h[0].ids for h in kept.each([(s, ()) for s in sources], window=None)]
    assert together == [next(kept.each([(source, ())]))[0].ids for source in sources]
    assert len({len(ids) for ids in together}) > 2


@pytest.fixture
def model_of_three() -> Transformer:
    return random_model(11, eos_bias=2.0, vocab_size=V)


# Marian's files


def test_a_file_becomes_part_of_the_model(tmp_path: Path) -> None:
    lists = random_lists(2)
    write_bin(tmp_path / "model.enpt.bin", student())
    write_lex(tmp_path / "lex.50.50.enpt.s2t.bin", lists, FIRST)
    convert(tmp_path / "model.enpt.bin", tmp_path / "ours")
    model = load_model(tmp_path / "ours", mx.float32)
    found = load_shortlist(tmp_path / "ours", model.config)
    assert found is not None
    for source in ([0], [3, 9, 0], [*range(V)]):
        assert set(found.of(source, []).tolist()) == allowed(lists, source)


@pytest.mark.parametrize("damage", ["magic", "checksum", "cut", "longer", "count"])
def test_a_damaged_file_is_left_out(tmp_path: Path, damage: str) -> None:
    write_bin(tmp_path / "model.bin", student())
    path = write_lex(tmp_path / "lex.s2t.bin", random_lists(2), FIRST)
    data = bytearray(path.read_bytes())
    if damage in ("magic", "checksum"):
        data[0 if damage == "magic" else 60] ^= 1
    elif damage == "count":
        data[40:48] = struct.pack("<Q", 1 << 60)
    else:
        data = data[:-4] if damage == "cut" else data + b"four"
    path.write_bytes(data)
    with pytest.warns(UserWarning, match=r"lex\.s2t\.bin.*it is left out"):
        convert(tmp_path / "model.bin", tmp_path / "ours")
    assert load_shortlist(tmp_path / "ours", load_model(tmp_path / "ours").config) is None


def test_words_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    write_bin(tmp_path / "model.bin", student())
    write_lex(tmp_path / "lex.bin", [[V + 7]] * V, FIRST)
    with pytest.warns(UserWarning, match="of other words than the model"):
        convert(tmp_path / "model.bin", tmp_path / "ours")
    write_model(tmp_path, vocab_size=120)
    mx.save_safetensors(
        str(tmp_path / "shortlist.safetensors"),
        {
            "starts": mx.array([0] * 120 + [1]),
            "words": mx.array([120]),
            "first": mx.array(4),
        },
    )
    with pytest.raises(InputError, match="names words that the model does not have"):
        load(tmp_path)


def test_quantised_models_have_one_too(tmp_path: Path) -> None:
    """The rows of a few words are those of the whole matrix."""
    write_model(tmp_path, vocab_size=128, d_model=64, tied_output=False)
    quantize_directory(tmp_path, 8)
    lists = [[*range(40, 128)] for _ in range(128)]
    mx.save_safetensors(
        str(tmp_path / "shortlist.safetensors"),
        {
            "starts": mx.array(np.cumsum([0, *map(len, lists)]).astype(np.int32)),
            "words": mx.array([word for each in lists for word in each]),
            "first": mx.array(40),
        },
    )
    translator = load(tmp_path, mx.float16)
    text = "five hundred and one"
    found = [
        translator.translate(text, max_tokens=6, shortlist=flag).text for flag in (False, True)
    ]
    assert found[0] == found[1] != ""  # every word is on the list
    (tmp_path / "shortlist.safetensors").unlink()
    plain = load(tmp_path)
    with pytest.raises(InputError, match="no shortlist"):
        plain.translate(text, shortlist=True)
