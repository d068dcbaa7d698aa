"""A model that Argos Translate ships, beside CTranslate2 itself: the same ids."""

import zipfile
from pathlib import Path

import ctranslate2
import pytest

from mlx_transformer.convert.conversion import convert
from mlx_transformer.decoding.translator import load
from tests.real.models import real_model

LINES = slice(0, 200, 20)  # all 200 are equal; ten of them are quick


@pytest.mark.slow
def test_ids_are_those_of_ctranslate2(tmp_path: Path) -> None:
    folder = real_model("argos-zh-en")
    (package,) = folder.glob("*.argosmodel")
    convert(package, tmp_path / "ours")
    ours = load(tmp_path / "ours")
    with zipfile.ZipFile(package) as file:
        file.extractall(tmp_path / "theirs")
    (theirs,) = (tmp_path / "theirs").glob("*/model")
    engine = ctranslate2.Translator(str(theirs), compute_type="float32", intra_threads=2)
    lines = (folder / "reference.zh").read_text(encoding="utf-8").splitlines()[LINES]
    pieces = [
        ours.tokenizer.source.tokens(ids) for ids in ours.tokenizer.encode_source_batch(lines)
    ]
    for beam in (1, 4):
        found = engine.translate_batch(pieces, beam_size=beam, length_penalty=0.2)
        expected = [" ".join(result.hypotheses[0]) for result in found]
        translations = ours.translate(lines, beam=beam, whole_lines=True)
        assert [" ".join(t.tokens) for t in translations] == expected
    references = (folder / "reference.en").read_text(encoding="utf-8").splitlines()[LINES]
    assert [t.text for t in translations] == references
