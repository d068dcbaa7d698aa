"""A translator of Firefox's, beside what an engine of its own kind writes."""

from pathlib import Path

import pytest
import sacrebleu

from mlx_transformer.convert.conversion import convert
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.translator import load
from tests.real.models import real_model


@pytest.mark.slow
def test_it_writes_what_the_engine_writes(tmp_path: Path) -> None:
    """All but the engine's rounding to 8 bits: some near ties fall the other way."""
    folder = real_model("firefox-en-pt")
    convert(folder, tmp_path / "ours")
    source, reference = (
        (folder / f"reference.{language}").read_text(encoding="utf-8").splitlines()[:60]
        for language in ("en", "pt")
    )
    found = load(tmp_path / "ours").translate(source, SearchOptions(beam=1))
    assert sacrebleu.corpus_bleu([t.text for t in found], [reference]).score >= 96
