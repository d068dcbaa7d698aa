"""Which operations of a graph copy an array only to have it lie otherwise.

MLX decides that when it computes, so a graph does not show it. Here NumPy arrays of the same shapes
and strides stand for MLX's: a view of one is a view of the other.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_transformer import device

VIEWS: dict[str, Callable[..., np.ndarray]] = {
    "Broadcast": lambda x, shape: np.broadcast_to(x, shape),
    "BroadcastAxes": lambda x, *_: x,
    "ExpandDims": np.expand_dims,
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Transpose": lambda x, axes: np.transpose(x, axes),
    "Slice": lambda x, start, stop, step: x[
        tuple(slice(*each) for each in zip(start, stop, step, strict=True))
    ],
    "Depends": lambda x: x,
    "StopGradient": lambda x: x,
    "Identity": lambda x: x,
}
RESHAPES = {"Reshape", "Flatten", "Unflatten"}


def copies(function: Callable[[], Any]) -> Counter:
    """By name, the operations of what `function` returns that only copy."""
    entries: list[dict[str, Any]] = []
    # MLX cannot export all operations: not those that are fused, which copy nothing, and not
    # `contiguous`. Sorting also gives an array without gaps, and is not used otherwise.
    with device.uncompiled(), patch.object(mx, "contiguous", mx.sort):
        mx.export_function(entries.append, lambda: [x for _, x in tree_flatten(function())])
    arrays: dict[str, np.ndarray] = {}
    for entry in entries:
        for name, value in entry.get("constants", ()):
            arrays[name] = np.empty(value.shape, np.bool_)
    found: Counter = Counter()
    for entry in entries:
        if entry["type"] == "primitive":
            inputs = [arrays[name] for name, *_ in entry["inputs"]]
            outputs, copied = _result(entry, inputs)
            arrays |= {name: x for (name, *_), x in zip(entry["outputs"], outputs, strict=True)}
            found[entry["name"]] += copied
    return +found


def _result(
    entry: dict[str, Any], inputs: Sequence[np.ndarray]
) -> tuple[Sequence[np.ndarray], int]:
    """How the outputs of a primitive lie, and how many copies it takes to have them so."""
    name, arguments = entry["name"], entry["arguments"]
    shapes = [shape for _, shape, _ in entry["outputs"]]
    if name in VIEWS:
        return [VIEWS[name](inputs[0], *arguments)], 0
    if name == "Split":
        bounds, axis = arguments
        return np.split(inputs[0], bounds, axis), 0
    if name in RESHAPES:
        made = inputs[0].reshape(shapes[0])
        return [made], int(made.size > 0 and not np.shares_memory(made, inputs[0]))
    if name == "Concatenate":
        return [np.empty(shapes[0], np.bool_)], len(inputs)
    if name == "Sort":
        return [np.empty(shapes[0], np.bool_)], int(not inputs[0].flags.c_contiguous)
    # An operation number by number keeps how its first input lies, if that has no gaps.
    like = [x for x in inputs[:1] if x.shape == shapes[0] and len(shapes) == 1]
    return [np.empty_like(like[0], order="K") if like else np.empty(s, np.bool_) for s in shapes], 0
