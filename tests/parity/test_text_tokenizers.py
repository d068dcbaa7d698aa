"""Tokenizers of GPT-2, BERT, DistilBERT and RoBERTa against the classes of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from mlx_transformer.tokenizer import Tokenizer, load_tokenizer
from tests.parity.test_tokenizers import ODDER, settings, write
from tests.tokenizer.ten_scripts import lines

pytestmark = pytest.mark.slow
SIZE = 900
ODD = ["", "two\nlines\tand tabs", "The Étude, naïve COÖPERATION", "東京 is big", *ODDER]


def byte_level(folder: Path, special: list[str]) -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(lines(), SIZE, special_tokens=special)
    trained.save_model(str(folder))


def word_pieces(folder: Path, **changes: Any) -> None:
    trained = tokenizers.BertWordPieceTokenizer(**changes)
    trained.train_from_iterator(lines(), 2000)
    trained.save_model(str(folder))


def gpt2(folder: Path) -> None:
    byte_level(folder, ["<|endoftext|>"])


def roberta(folder: Path) -> None:
    byte_level(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def bert(folder: Path) -> None:
    word_pieces(folder)


def cased(folder: Path) -> None:
    word_pieces(folder, lowercase=False)
    settings(folder, "BertTokenizer", do_lower_case=False)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "gpt2": (gpt2, "gpt2"),
    "roberta": (roberta, "roberta"),
    "bert": (bert, "bert"),
    "bert, cased": (cased, "bert"),
    "distilbert": (bert, "distilbert"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["as published", "as transformers saves it"])
def both(
    request: pytest.FixtureRequest, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    make, model_type = KINDS[kind]
    folder = tmp_path_factory.mktemp("tokenizer")
    make(folder)
    write(folder / "config.json", {"model_type": model_type})
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    if request.param == "as transformers saves it":
        theirs.save_pretrained(str(folder))
    return load_tokenizer(folder), theirs


def test_ids_are_equal_in_ten_scripts_and_of_odd_texts(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for texts in (lines(), ODD):
        assert ours.sources(texts, theirs.eos_token_id or 0) == theirs(texts)["input_ids"]


def test_a_gap_is_the_mask(both: tuple[Tokenizer, Any], kind: str) -> None:
    ours, theirs = both
    if kind == "gpt2":
        assert ours.mask is None
        return
    assert ours.mask == (theirs.mask_token, theirs.mask_token_id)
    text = f"one{theirs.mask_token} two{theirs.mask_token}."
    assert ours.sources([text], theirs.eos_token_id or 0) == theirs([text])["input_ids"]


def test_text_comes_back(both: tuple[Tokenizer, Any], kind: str) -> None:
    ours, theirs = both
    ids = theirs(lines()[:100])["input_ids"]
    assert ours.decode_batch(ids) == theirs.batch_decode(ids, skip_special_tokens=True)
