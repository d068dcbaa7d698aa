"""All weights in a few long vectors.

An optimiser does the same to every number, whichever matrix it is in. On vectors it is a handful of
operations instead of some for each of a hundred arrays.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod

import mlx.core as mx
import numpy as np

Named = dict[str, mx.array]  # such as `encoder.layers.0.self_attention.qkv.weight`
Vectors = list[mx.array]


class Layout:
    """Which weight is where in `count` vectors of nearly equal length.

    The `transposed` weights lie there column by column: they are the matrices W of products x W^T,
    and MLX computes their gradients that way.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], count: int, transposed: Collection[str] = ()
    ) -> None:
        self._shapes = shapes
        self._transposed = transposed
        self._names: list[list[str]] = [[] for _ in range(count)]
        lengths = [0] * count
        for name in sorted(shapes, key=lambda name: (-prod(shapes[name]), name)):
            shortest = lengths.index(min(lengths))
            self._names[shortest].append(name)
            lengths[shortest] += prod(shapes[name])

    def join(self, named: Named) -> Vectors:
        return [
            mx.concatenate([self._turned(name, named[name]).reshape(-1) for name in names])
            for names in self._names
        ]

    def split(self, vectors: Vectors) -> Named:
        """Each weight in its shape: views, nothing is copied."""
        named = {}
        for names, vector in zip(self._names, vectors, strict=True):
            ends = np.cumsum([prod(self._shapes[name]) for name in names])
            parts = mx.split(vector, ends[:-1].tolist())
            for name, part in zip(names, parts, strict=True):
                shape = self._shapes[name]
                lying = part.reshape(shape[::-1] if name in self._transposed else shape)
                named[name] = self._turned(name, lying)
        return named

    def _turned(self, name: str, weight: mx.array) -> mx.array:
        return weight.T if name in self._transposed else weight
