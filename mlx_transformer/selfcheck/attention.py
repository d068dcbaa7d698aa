"""Products and attention against their formulas, each property by itself."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.device import Mask
from mlx_transformer.selfcheck.finding import (
    DTYPES,
    OPERATION,
    Finding,
    difference,
    rounding,
    tolerance,
)

HEAD_SIZES = (32, 64, 128)
# A GPU has one kernel for up to 8 queries and another for more.
QUERIES = (1, 4, 8, 9, 32)


def products() -> Iterator[Finding]:
    yield Finding("rounding of float32 products", rounding(), 1e-3)


def scale() -> Iterator[Finding]:
    for dtype in DTYPES:
        worst = max(_scale_error(T, d, dtype) for T in QUERIES for d in HEAD_SIZES)
        yield Finding(
            f"attention, scale of the scores, {dtype}", worst, OPERATION * tolerance(dtype)
        )


def _scale_error(T: int, d: int, dtype: str) -> float:
    """Two keys whose values are (1, 0, ...) and (0, 1, ...): the result shows their weights, and
    the logarithm of the ratio of these is the scaled difference of the scores."""
    q, k = _random((2, 2, T, d), dtype), _random((2, 2, 2, d), dtype)
    weights = _attend(q, k, np.eye(2, d), None, d**-0.5)
    found = np.log(weights[..., 0] / weights[..., 1])
    scores = _numpy(q) @ _numpy(k).swapaxes(-1, -2)
    expected = (scores[..., 0] - scores[..., 1]) * d**-0.5
    return difference(np.vdot(found, expected) / np.vdot(expected, expected), np.ones(()))


def masks() -> Iterator[Finding]:
    for dtype in DTYPES:
        for name in ("causal", "padding"):
            worst = max(_mask_error(T, d, dtype, name) for T in QUERIES for d in HEAD_SIZES)
            yield Finding(f"attention, {name} mask, {dtype}", worst, OPERATION * tolerance(dtype))


def _mask_error(T: int, d: int, dtype: str, name: str) -> float:
    """Queries of zeros see all visible keys alike, whatever the scale. The values are unit vectors,
    so that the result shows the weight of each key."""
    padding = np.arange(T) < np.array([[T], [(T + 1) // 2]])
    causal = np.broadcast_to(np.tri(T, dtype=bool), (2, T, T))
    visible = causal if name == "causal" else np.broadcast_to(padding[:, None], (2, T, T))
    mask: Mask = "causal" if name == "causal" else mx.array(padding[:, None, None])
    k = _random((2, 2, T, d), dtype)
    weights = _attend(mx.zeros_like(k), k, np.eye(T, d), mask, 1.0)[..., :T]
    expected = visible / visible.sum(axis=-1, keepdims=True)
    return difference(weights, expected[:, None])


def _attend(q: mx.array, k: mx.array, v: np.ndarray, mask: Mask, scale: float) -> np.ndarray:
    """With the values v (S,d) for all sentences and heads."""
    values = mx.broadcast_to(mx.array(v, k.dtype), k.shape)
    with device.as_gpu():
        return _numpy(device.attention(q, k, values, mask, scale))


def _random(shape: tuple[int, ...], dtype: str) -> mx.array:
    return mx.array(np.random.default_rng(0).standard_normal(shape), getattr(mx, dtype))


def _numpy(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)
