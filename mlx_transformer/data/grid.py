"""The shapes of a corpus' batches: few enough to compile, close enough to the text to pad little.

Every pair of lengths (s, t) goes into the cheapest of a few rectangles (S, T) that hold it, where
the cost is S + T tokens. Which rectangles serve a corpus best is a facility location problem:
adding the best one again and again comes within a percent, shifting them ends it.
"""

import heapq
from itertools import product
from math import ceil
from typing import NamedTuple

import numpy as np

from mlx_transformer.errors import InputError

# A shape is worth its compilation only for this many batches in an epoch.
BATCHES_PER_SHAPE = 1.5
# Up to this share of a batch goes into a larger shape before it becomes one more batch.
SPARE = 0.1


class Shape(NamedTuple):
    """B rows of S source and T target tokens."""

    B: int
    S: int
    T: int


def choose_grid(
    lengths: np.ndarray, batch_tokens: int, max_shapes: int
) -> tuple[list[Shape], np.ndarray]:
    """At most `max_shapes` shapes for pairs of `lengths` (n,2), and which of them each pair has.

    B*S and B*T stay within `batch_tokens`. B is what divides the pairs of a shape into equal
    batches, so that rows are filled up in the last batch of the largest shape only.
    """
    longest = lengths.max()
    if longest > batch_tokens:
        raise InputError(
            f"training.batch_tokens {batch_tokens} is less than the longest sentence, "
            f"{longest} tokens: raise it or lower data.max_length"
        )
    (sources, s), (targets, t) = (
        np.unique(_rounded(side), return_inverse=True) for side in lengths.T
    )
    counts = np.zeros((len(sources), len(targets)), np.int64)
    np.add.at(counts, (s, t), 1)
    sizes = sources[:, None] + targets
    enough = ceil(lengths.sum(0).max() / batch_tokens / BATCHES_PER_SHAPE)
    corners = _insert_corners(counts, sizes, min(enough, max_shapes))
    corners = _shift_corners(counts, sizes, corners)
    rooms = [(int(sources[i]), int(targets[j])) for i, j in corners]
    rows, placed = _fill(counts, sizes, corners, [batch_tokens // max(room) for room in rooms])
    used = [k for k, B in enumerate(rows) if B]
    return [Shape(rows[k], *rooms[k]) for k in used], _shape_of_pairs(s, t, placed[used])


def _shape_of_pairs(s: np.ndarray, t: np.ndarray, placed: np.ndarray) -> np.ndarray:
    """The shape of each pair, whose lengths are number s (n,) and t (n,), given how many pairs of
    lengths (i, j) have shape k: placed (k,i,j). Which of them does not matter.

    Pairs of equal lengths take their shapes one after the other. Say all of three pairs have the
    lengths (0, 0), of which two go to shape 0 and one to shape 1:

    >>> zeros = np.zeros(3, np.int64)
    >>> _shape_of_pairs(zeros, zeros, placed=np.array([[[2]], [[1]]])).tolist()
    [0, 0, 1]
    """
    by_lengths = np.lexsort((t, s))
    counts = placed.transpose(1, 2, 0)  # (i,j,k): in the order of `by_lengths`, then by shape
    shapes = np.broadcast_to(np.arange(len(placed)), counts.shape)
    shape_of = np.empty(len(s), np.int64)
    shape_of[by_lengths] = np.repeat(shapes.ravel(), counts.ravel())
    return shape_of


def _rounded(lengths: np.ndarray) -> np.ndarray:
    """Rounded up to six significant bits: exact up to 64, so that long tails stay cheap."""
    step = 1 << np.maximum(np.log2(lengths).astype(np.int64) - 5, 0)
    return np.minimum(-(-lengths // step) * step, lengths.max())


# Below, a corner (i, j) is the shape whose S is the i-th source length and T the j-th target
# length; counts[i, j] pairs have these lengths and sizes[i, j] is S + T.
Corner = tuple[int, int]


def _insert_corners(counts: np.ndarray, sizes: np.ndarray, number: int) -> list[Corner]:
    """Start with the largest, which holds all, and add the one that saves most again and again."""
    corners = [(sizes.shape[0] - 1, sizes.shape[1] - 1)]
    cost = _cost(sizes, corners)
    # A corner saves less the more others there are, so an old figure is an upper bound. A corner
    # whose new figure is still the highest is the best.
    savings = counts.cumsum(0).cumsum(1) * (sizes[-1, -1] - sizes)
    heap = [(-int(saving), corner) for corner, saving in np.ndenumerate(savings) if saving > 0]
    heapq.heapify(heap)
    while heap and len(corners) < number:
        _, corner = heapq.heappop(heap)
        saving = _saving(counts, sizes, cost, corner)
        if heap and saving < -heap[0][0]:
            heapq.heappush(heap, (-saving, corner))
        elif saving > 0:
            corners.append(corner)
            cost = np.minimum(cost, _cost(sizes, [corner]))
    return corners


def _shift_corners(counts: np.ndarray, sizes: np.ndarray, corners: list[Corner]) -> list[Corner]:
    """Move single corners to a neighbouring length while that saves; then smallest first."""
    largest, *corners = corners
    moved = True
    while moved:
        moved = False
        for k, (i, j) in enumerate(corners):
            cost = _cost(sizes, [largest, *corners[:k], *corners[k + 1 :]])
            near = [
                (i + di, j + dj)
                for di, dj in product((0, -1, 1), repeat=2)  # (0, 0) first: it wins a draw
                if 0 <= i + di < sizes.shape[0] and 0 <= j + dj < sizes.shape[1]
            ]
            corners[k] = max(near, key=lambda corner: _saving(counts, sizes, cost, corner))
            moved |= corners[k] != (i, j)
    return [*sorted(set(corners), key=lambda corner: (sizes[corner], corner)), largest]


def _fill(
    counts: np.ndarray, sizes: np.ndarray, corners: list[Corner], limits: list[int]
) -> tuple[list[int], np.ndarray]:
    """Rows of each shape, at most `limits` (0: not used), and how many pairs of each lengths.

    From the smallest shape on: pairs that would leave a batch incomplete move to a larger one.
    """
    left = counts.copy()
    placed = np.zeros((len(corners), *counts.shape), np.int64)
    rows = []
    for k, ((i, j), limit) in enumerate(zip(corners, limits, strict=True)):
        room = np.s_[: i + 1, : j + 1]
        number = int(left[room].sum())
        if k < len(corners) - 1:
            batches = max(1, ceil(number / limit - SPARE))
            rows.append(min(limit, number // batches))
            larger = _cost(sizes, corners[k + 1 :])[room]
            moved = _cheapest(left[room], larger, number - batches * rows[k])
        else:
            rows.append(ceil(number / max(1, ceil(number / limit))))
            moved = np.zeros_like(left)
        placed[k][room] = left[room] - moved
        left -= placed[k]
    return rows, placed


def _cost(sizes: np.ndarray, corners: list[Corner]) -> np.ndarray:
    """The size of the cheapest corner that holds each pair of lengths."""
    cost = np.full(sizes.shape, np.iinfo(np.int64).max // 2)
    for i, j in corners:
        room = cost[: i + 1, : j + 1]
        np.minimum(room, sizes[i, j], out=room)
    return cost


def _saving(counts: np.ndarray, sizes: np.ndarray, cost: np.ndarray, corner: Corner) -> int:
    """Tokens saved by one more corner."""
    room = np.s_[: corner[0] + 1, : corner[1] + 1]
    return int((counts[room] * np.maximum(cost[room] - sizes[corner], 0)).sum())


def _cheapest(counts: np.ndarray, cost: np.ndarray, number: int) -> np.ndarray:
    """The `number` pairs of least cost among `counts`, as counts."""
    order = np.argsort(cost, axis=None, kind="stable")
    available = counts.ravel()[order]
    chosen = np.empty(counts.size, np.int64)
    chosen[order] = np.clip(number - (available.cumsum() - available), 0, available)
    return chosen.reshape(counts.shape)
