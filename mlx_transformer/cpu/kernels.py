"""Attention, LayerNorm, e^x, swish and transposing on a CPU, quicker than MLX's own there.

MLX has no CPU kernels for the first two: it differentiates their formulas step by step, which moves
more memory than the arithmetic needs. Its exponential and sums go number by number.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import mlx.core as mx
import numpy as np

from mlx_transformer.cpu import blas

# At or below this many tokens launch overhead dominates: MLX's own operations are fewer.
FEW_TOKENS = 16
SMALL = 2**15  # numbers: to see so few as a table takes longer than it saves
COLUMNS = 256  # of such a table

Arrays = Sequence[mx.array]


def attention(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, scale: float
) -> mx.array:
    """As `device.attention`, with gradients by q, k, v and a mask of numbers"""
    bias = [] if mask is None or mask.dtype == mx.bool_ else [mask]

    @mx.custom_function
    def attend(q: mx.array, k: mx.array, v: mx.array, *_: mx.array) -> Arrays:
        scores = masked((q * scale) @ k.swapaxes(-1, -2), mask)
        powers = exp_below(scores, mx.max(scores, axis=-1, keepdims=True))
        weights = powers / mx.sum(powers, axis=-1, keepdims=True)
        return (weights @ v).astype(q.dtype), weights

    @attend.vjp
    def gradients(primals: Arrays, cotangents: Arrays, outputs: Arrays) -> Arrays:
        q, k, v, *bias = primals
        d_out, weights = cotangents[0], outputs[1]
        d_weights = d_out @ v.swapaxes(-1, -2)
        mean = mx.sum(d_weights * weights, axis=-1, keepdims=True)
        d_scores = weights * (d_weights - mean)
        d_bias = [summed_to(x.shape, d_scores) for x in bias]
        d_scores = d_scores * scale
        found = [d_scores @ k, d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_out]
        return [d.astype(x.dtype) for d, x in zip(found + d_bias, primals, strict=True)]

    return cast(Arrays, attend(q, k, v, *bias))[0]


def summed_to(shape: Sequence[int], x: mx.array) -> mx.array:
    """The gradient of what was broadcast from `shape`, which has as many axes."""
    axes = [axis for axis, n in enumerate(shape) if n == 1 and x.shape[axis] > 1]
    return mx.sum(x, axis=axes, keepdims=True) if axes else x


def masked(scores: mx.array, mask: mx.array | None) -> mx.array:
    """(B,h,T,S); masked scores are set to the smallest number of the dtype."""
    if mask is None:
        return scores
    if mask.dtype != mx.bool_:
        return scores + mask
    return mx.where(mask, scores, mx.finfo(scores.dtype).min)


@mx.compile
def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    """(..., d) -> (..., d)"""
    *rows, d = x.shape
    if math.prod(rows) <= FEW_TOKENS:
        return mx.fast.layer_norm(x, weight, bias, eps)

    @mx.custom_function
    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> Arrays:
        wide = x.astype(mx.float32)
        centred = wide - mx.mean(wide, axis=-1, keepdims=True)
        variance = mx.mean(mx.square(centred), axis=-1, keepdims=True)
        # Contiguous: otherwise the compiled kernel takes the root again for each number of a row.
        scale = mx.contiguous(mx.rsqrt(variance + eps))
        return (centred * scale * weight + bias).astype(x.dtype), centred, scale

    @norm.vjp
    def gradients(primals: Arrays, cotangents: Arrays, outputs: Arrays) -> Arrays:
        d_out, (_, centred, scale) = cotangents[0].astype(mx.float32), outputs
        normal = centred * scale
        d_normal = d_out * primals[1]
        share = mx.full((d, 1), 1 / d)  # means by matrix products: five times as fast as MLX's sums
        d_x = scale * (d_normal - d_normal @ share - normal * ((d_normal * normal) @ share))
        axes = tuple(range(len(rows)))
        found = d_x, mx.sum(d_out * normal, axis=axes), mx.sum(d_out, axis=axes)
        return [d.astype(x.dtype) for d, x in zip(found, primals, strict=True)]

    return cast(Arrays, norm(x, weight, bias))[0]


def _powers(x: mx.array, greatest: mx.array) -> mx.array:
    """e^(x - greatest) by a Taylor polynomial and squares, (e^(y/32))^32.

    Arithmetic alone compiles to vector instructions: many times as fast as `mx.exp`.
    """
    y = mx.maximum(x - greatest, -87.0)
    less = mx.array(1 / math.factorial(5) / 32**5)
    for n in reversed(range(1, 5)):
        less = less * y + 1 / math.factorial(n) / 32**n
    less = less * y  # e^(y/32) - 1
    # A square doubles the error of rounding. So the 1, beside which most digits of small numbers
    # are lost, is added late: (1+a)^2 - 1 = a^2 + 2a.
    for _ in range(2):
        less = less * less + (less + less)
    power = less + 1
    for _ in range(3):
        power = power * power
    return power


# For all shapes in one, as attention meets a new one in every step of a search. Compiled for each
# shape, as below, it is one and a half times as fast.
exp_below = mx.compile(_powers, shapeless=True)


@mx.compile
def logsumexp(x: mx.array) -> mx.array:
    """(..., V) -> (...)"""
    greatest = _of_rows(mx.max, x)
    return (mx.log(_of_rows(mx.sum, _powers(x, greatest))) + greatest)[..., 0]


def argmax(x: mx.array) -> mx.array:
    """(..., V) -> (...), where the greatest number of each row is"""
    V = x.shape[-1]
    if not _is_worth_a_table(x):
        return mx.argmax(x, axis=-1)
    table, rest = _as_table(x)
    column = mx.argmax(mx.max(table, axis=-2), axis=-1, keepdims=True).astype(mx.int32)
    places = mx.arange(0, V - rest.shape[-1], COLUMNS) + column
    behind = mx.broadcast_to(mx.arange(V - rest.shape[-1], V), rest.shape)
    places = mx.concatenate([places, behind], axis=-1)
    best = mx.argmax(mx.take_along_axis(x, places, axis=-1), axis=-1, keepdims=True)
    return mx.take_along_axis(places, best, axis=-1)[..., 0]


def _of_rows(reduce: Callable[..., mx.array], x: mx.array) -> mx.array:
    """The sum or maximum of each row: (..., V) -> (..., 1)"""
    if _is_worth_a_table(x):
        table, rest = _as_table(x)
        x = mx.concatenate([reduce(table, axis=-2), rest], axis=-1)
    return reduce(x, axis=-1, keepdims=True)


def _is_worth_a_table(x: mx.array) -> bool:
    return x.size > SMALL and x.shape[-1] >= COLUMNS


def _as_table(x: mx.array) -> tuple[mx.array, mx.array]:
    """Each row as a table, and what does not fill it: (..., V) -> (..., R, COLUMNS), (..., rest)

    MLX goes through a row number by number, but takes the columns of a table side by side.
    """
    whole = x.shape[-1] // COLUMNS * COLUMNS
    return x[..., :whole].reshape(*x.shape[:-1], -1, COLUMNS), x[..., whole:]


def swish(x: mx.array) -> mx.array:
    """x sigmoid(x), that is x / (1 + e^-x)

    -x is kept below 40, so that no power overflows; by then nothing is left of the result.
    """
    return _gated(x, exp_below(mx.minimum(-x, 40.0), mx.array(0.0))).astype(x.dtype)


@partial(mx.compile, shapeless=True)
def _gated(x: mx.array, power: mx.array) -> mx.array:
    return x / (1 + power)


def by_columns(matrix: mx.array) -> mx.array:
    """The same matrix, each column in one piece: (n,m) -> (n,m)"""
    if matrix.dtype != mx.float32 or not blas.can_transpose():
        return mx.contiguous(matrix.T).T
    view = np.array(matrix, copy=False)
    if view.flags.f_contiguous:
        return matrix
    # MLX goes through the columns number by number, which takes 20 to 50 times as long: none of
    # what a core reads is still in its cache when it reads the number beside it.
    view = np.ascontiguousarray(view)
    n, m = view.shape
    made = mx.zeros((m, n))
    blas.transpose(n, m, view.ctypes.data, np.array(made, copy=False).ctypes.data)
    return made.T
