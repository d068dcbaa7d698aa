"""The pieces of a step against NumPy."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_transformer import device
from mlx_transformer.decoding.choose import greedy, repeats, sampler, top_k
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import search
from tests.decoding.random_models import random_model

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(seeds, st.integers(1, 5000), st.integers(1, 12), st.booleans())
def test_top_k_is_the_head_of_a_sort(seed: int, N: int, k: int, with_barred: bool) -> None:
    k = min(k, N)
    x = np.random.default_rng(seed).normal(size=(3, N)).astype(np.float32)
    if with_barred:
        x[:, :: 2 + seed % 3] = -np.inf
    values, indices = (np.array(a) for a in top_k(mx.array(x), k))
    np.testing.assert_array_equal(values, -np.sort(-x, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(x, indices, axis=1), values)
    assert all(len(set(row)) == k for row in indices)


@pytest.mark.usefixtures("any_device")
@given(seeds, st.floats(0.01, 50))
def test_logsumexp_is_exact_to_float32(seed: int, spread: float) -> None:
    x = np.random.default_rng(seed).normal(0, spread, (4, 1000)).astype(np.float32)
    exact = np.logaddexp.reduce(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(np.array(device.logsumexp(mx.array(x))), exact, rtol=1e-6, atol=2e-6)


@given(seeds, st.integers(1, 4), st.integers(0, 10))
def test_repeats_are_those_of_a_set_of_ngrams(seed: int, n: int, t: int) -> None:
    words = np.random.default_rng(seed).integers(0, 3, (2, 2, 10))
    words[:, :, t:] = -1
    found = np.array(repeats(mx.array(words), mx.array(t), n, 3))
    for b, k in np.ndindex(2, 2):
        said = tuple(words[b, k, :t].tolist())
        grams = {said[i : i + n] for i in range(t - n + 1)}
        expected = [t >= n and (*said[t - n + 1 :], w) in grams for w in range(3)]
        assert found[b, k].tolist() == expected


def frequencies(options: SearchOptions, logits: np.ndarray, n: int = 20_000) -> np.ndarray:
    """How often each word is drawn with evenly spread draws."""
    many = mx.broadcast_to(mx.array(logits), (1, n, len(logits)))
    draws = mx.array((np.arange(n, dtype=np.float32) + 0.5) / n)[None]
    return np.bincount(np.array(sampler(options)(many, draws))[0], minlength=len(logits)) / n


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@given(seeds, st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=10)
def test_sampling_follows_the_probabilities(seed: int, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(size=9).astype(np.float32)
    logits[3] = -np.inf
    options = SearchOptions(sample=True, temperature=temperature)
    expected = softmax(logits / temperature)
    np.testing.assert_allclose(frequencies(options, logits), expected, atol=2e-4)


@given(seeds, st.integers(1, 9))
@settings(max_examples=10)
def test_top_k_sampling_keeps_the_k_best(seed: int, k: int) -> None:
    logits = np.random.default_rng(seed).normal(size=9).astype(np.float32)
    expected = softmax(np.where(logits >= np.sort(logits)[-k], logits, -np.inf))
    drawn = frequencies(SearchOptions(sample=True, top_k=k), logits)
    np.testing.assert_allclose(drawn, expected, atol=2e-4)


@given(seeds, st.floats(0.05, 0.95))
@settings(max_examples=10)
def test_top_p_sampling_keeps_the_fewest_words_of_that_mass(seed: int, p: float) -> None:
    logits = np.random.default_rng(seed).normal(size=9).astype(np.float32)
    weights = softmax(logits)
    order = np.argsort(-weights)
    kept = order[: int(np.searchsorted(np.cumsum(weights[order]), p)) + 1]
    expected = np.zeros(9)
    expected[kept] = weights[kept] / weights[kept].sum()
    drawn = frequencies(SearchOptions(sample=True, top_p=p), logits)
    np.testing.assert_allclose(drawn, expected, atol=2e-4)


def test_greedy_takes_the_most_probable_word() -> None:
    assert greedy(mx.array([[[0.1, 2.0, -1.0]]]), None).tolist() == [[1]]


def test_a_seed_repeats_and_another_differs() -> None:
    model = random_model(0, vocab_size=40)
    draw = [
        search(model, [[5, 6, 7, 2]], SearchOptions(sample=True, seed=seed))[0][0].ids
        for seed in (1, 1, 2)
    ]
    assert draw[0] == draw[1] != draw[2]
    with pytest.raises(ValueError, match="seed"):
        SearchOptions(sample=True, seed=-1)
