"""All weights in a few long vectors.

An optimiser does the same to every number, whichever matrix it is in. On vectors it is a handful of
operations instead of some for each of a hundred arrays.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod

import mlx.core as mx
import numpy as np

NamedArrays = dict[str, mx.array]  # such as `encoder.layers.0.self_attention.qkv.weight`
Vectors = list[mx.array]


class Layout:
    """Which weight is where in `count` vectors of nearly equal length.

    Weights lie in the order of `shapes`, which is that of a forward pass: then the gradients are
    also computed layer by layer, and a layer recomputed by checkpointing can be forgotten before
    the next one is.

    The `transposed` weights lie there column by column: they are the matrices W of products x W^T,
    and MLX computes their gradients that way.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], count: int, transposed: Collection[str] = ()
    ) -> None:
        self._shapes = shapes
        self._transposed = transposed
        self._names = in_parts({name: prod(shape) for name, shape in shapes.items()}, count)

    def join(self, named: NamedArrays) -> Vectors:
        stored = {name: w.T if name in self._transposed else w for name, w in named.items()}
        return [
            mx.concatenate([stored[name].reshape(-1) for name in names]) for names in self._names
        ]

    def split(self, vectors: Vectors) -> NamedArrays:
        """Each weight in its shape: views, nothing is copied."""
        named = {}
        for names, vector in zip(self._names, vectors, strict=True):
            ends = np.cumsum([prod(self._shapes[name]) for name in names])
            parts = mx.split(vector, ends[:-1].tolist())
            for name, part in zip(names, parts, strict=True):
                shape = self._shapes[name]
                if name in self._transposed:
                    named[name] = part.reshape(shape[::-1]).T
                else:
                    named[name] = part.reshape(shape)
        return named


def in_parts(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """The names in their order, in `count` parts of about the same size.

    in_parts({"a": 3, "b": 2, "c": 4}, 2) is [["a", "b"], ["c"]]: a name is where its middle is.
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    total, before = sum(sizes.values()), 0
    for name, size in sizes.items():
        middle = before + size / 2
        parts[min(int(middle * count / total), count - 1)].append(name)
        before += size
    return parts
