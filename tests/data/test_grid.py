"""The shapes of batches: few, within the budget, close to the best there is."""

import doctest
from collections import Counter
from itertools import combinations
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_transformer.data import grid
from mlx_transformer.data.grid import choose_grid
from mlx_transformer.errors import InputError

pairs_of_lengths = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200
)


def tokens_of(shapes, shape_of) -> int:
    """All tokens of an epoch's batches, padding and filled-up rows included."""
    counts = Counter(shape_of.tolist())
    return sum(ceil(counts[k] / B) * B * (S + T) for k, (B, S, T) in enumerate(shapes))


@given(pairs_of_lengths, st.integers(40, 500), st.integers(1, 8))
def test_every_pair_fits_its_shape_and_every_shape_the_budget(pairs, budget, most):
    lengths = np.array(pairs)
    shapes, shape_of = choose_grid(lengths, budget, most)
    assert 1 <= len(shapes) == len(set(shapes)) <= most
    assert set(shape_of.tolist()) == set(range(len(shapes)))  # none is compiled for nothing
    for B, S, T in shapes:
        assert B >= 1
        assert max(B * S, B * T) <= budget
    for (s, t), k in zip(pairs, shape_of, strict=True):
        assert s <= shapes[k].S
        assert t <= shapes[k].T


@given(pairs_of_lengths, st.integers(40, 500), st.integers(1, 8))
def test_only_the_largest_shape_has_rows_to_fill_up(pairs, budget, most):
    shapes, shape_of = choose_grid(np.array(pairs), budget, most)
    counts = Counter(shape_of.tolist())
    assert all(counts[k] % shape.B == 0 for k, shape in enumerate(shapes[:-1]))
    last = len(shapes) - 1
    batches = ceil(counts[last] / shapes[last].B)
    assert shapes[last].B * batches - counts[last] < batches


def best_cost(pairs: list[tuple[int, int]], number: int) -> int:
    """The least padded size of all pairs in `number` rectangles, by trying every choice."""
    sources = sorted({s for s, _ in pairs})
    targets = sorted({t for _, t in pairs})
    corners = [(S, T) for S in sources for T in targets]
    whole = (sources[-1], targets[-1])
    return min(
        sum(min(S + T for S, T in (*chosen, whole) if s <= S and t <= T) for s, t in pairs)
        for chosen in combinations(corners, min(number - 1, len(corners)))
    )


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(5, 9), st.integers(5, 9)), min_size=30, max_size=60))
def test_the_grid_is_near_the_best(pairs):
    """Against all choices of three rectangles; with one row a batch, so that rows play no part."""
    shapes, shape_of = choose_grid(np.array(pairs), 9, 3)
    assert {shape.B for shape in shapes} == {1}
    assert tokens_of(shapes, shape_of) <= 1.02 * best_cost(pairs, 3)


def test_few_pairs_take_few_shapes():
    lengths = np.random.default_rng(0).integers(1, 30, (50, 2))
    shapes, _ = choose_grid(lengths, 10_000, 32)
    assert len(shapes) == 1


@pytest.mark.slow
def test_long_tails_are_cheap():
    """Lengths up to 1,000: rounded, but never beyond the longest."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.geometric(0.01, (2_000, 2)) + 10, 999)
    shapes, shape_of = choose_grid(lengths, 8192, 32)
    assert max(S for _, S, _ in shapes) == lengths[:, 0].max()
    assert max(T for _, _, T in shapes) == lengths[:, 1].max()
    rooms = np.array([(S, T) for _, S, T in shapes])[shape_of]
    assert (lengths <= rooms).all()


def test_a_sentence_longer_than_the_budget_is_said():
    with pytest.raises(InputError, match="batch_tokens 9 is less than the longest sentence, 10"):
        choose_grid(np.array([[3, 10]]), 9, 32)


def test_the_worked_example():
    assert doctest.testmod(grid) == (0, 2)
