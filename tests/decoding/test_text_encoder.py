"""An encoder alone: vectors of texts, and words for the gaps in them."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer import TextEncoder, load_text_encoder
from mlx_transformer.decoding.text_encoder import embedding_options
from mlx_transformer.errors import InputError
from tests.tiny_directory import write_half

TEXTS = ["five hundred", "", "zwei", "one hundred and seven thousand", "seven" * 30]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    folder = tmp_path_factory.mktemp("bert")
    return load_text_encoder(write_half(folder, "encoder", word_head="transform", d_model=64))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_each_text_alone(
    encoder: TextEncoder, pooling: str, normalize: bool
) -> None:
    options = {"pooling": pooling, "normalize": normalize, "max_tokens": 20}
    found = encoder.embed(TEXTS, **options)
    for text, vector in zip(TEXTS, found, strict=True):
        pieces = encoder.tokenizer.encode_source(text)[:18]
        hidden = np.array(encoder.model.encode(mx.array([[1, *pieces, 2]])))[0]
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0)}[pooling]
        if normalize:
            expected = expected / np.linalg.norm(expected)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
        np.testing.assert_allclose(encoder.embed(text, **options), vector, atol=1e-5)


def test_gaps_are_filled_with_the_most_probable_words(encoder: TextEncoder) -> None:
    tokenizer = encoder.tokenizer
    gaps = encoder.fill("seven <mask> and [MASK] thousand", nbest=3)
    mask = tokenizer.source.id_of("<mask>")
    ids = [1, *tokenizer.encode_source("seven"), mask, *tokenizer.encode_source("and"), mask]
    ids = [*ids, *tokenizer.encode_source("thousand"), 2]
    logits = np.array(encoder.model(mx.array([ids])))[0]
    for gap, place in zip(gaps, np.flatnonzero(np.array(ids) == mask), strict=True):
        weights = np.exp(logits[place] - logits[place].max())
        best = np.argsort(-weights)[:3]
        assert [guess.word for guess in gap] == [tokenizer.decode([int(i)]) for i in best]
        expected = weights[best] / weights.sum()
        np.testing.assert_allclose([guess.probability for guess in gap], expected, rtol=1e-4)
    first, second = (gap[0].word for gap in gaps)
    assert gaps[0][0].text == f"seven {first} and {second} thousand"
    assert gaps[1][2].text == f"seven {first} and {gaps[1][2].word} thousand"


def test_what_cannot_be_filled_is_a_sentence(encoder: TextEncoder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no gap: write <mask>"):
        encoder.fill("seven")
    vectors = load_text_encoder(write_half(tmp_path, "encoder", word_head="none"))
    with pytest.raises(InputError, match="no head for words"):
        vectors.fill("seven <mask>")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"pooling": "median"}, "pooling must be one of 'mean', 'cls', 'max', not 'median'"),
        ({"normalize": 1}, "normalize must be true or false, not 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"poling": "mean"}, "unknown option 'poling'"),
    ],
)
def test_a_wrong_file_of_options_is_a_sentence(content: dict, said: str, tmp_path: Path) -> None:
    (tmp_path / "embedding.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        embedding_options(tmp_path)
