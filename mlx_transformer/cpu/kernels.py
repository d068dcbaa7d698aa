"""Attention, LayerNorm and e^x: MLX's own on a GPU, quicker than MLX's own on a CPU.

MLX has no kernels for the first two on a CPU: there it differentiates their formulas step by step,
which moves more memory than arithmetic needs, and its exponential and sums go number by number.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import mlx.core as mx

FEW_ROWS = 16  # tokens: of so few, launching the operations is what takes time, and MLX's are fewer

# Metal's fused attention of so few queries has no backward pass: under gradients it would throw.
SHORT_QUERIES = 8

# True where to look, or numbers to add to the scores, or "causal"; None: all is seen.
Mask = mx.array | str | None
Arrays = Sequence[mx.array]


def attention(q: mx.array, k: mx.array, v: mx.array, mask: Mask, scale: float) -> mx.array:
    """softmax(scale * q k^T) v: (B,h,T,d_k), (B,h,S,d_k), (B,h,S,d_v) -> (B,h,T,d_v)"""
    B, _, T, _ = q.shape
    if mx.default_device() == mx.gpu or B * T <= FEW_ROWS:
        return mx.fast.scaled_dot_product_attention(
            q, k, v, scale=scale, mask=fused_mask(mask, T, k.shape[2])
        )

    bias = [mask] if isinstance(mask, mx.array) and mask.dtype != mx.bool_ else []

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


def fused_mask(mask: Mask, T: int, S: int) -> Mask:
    """What to hand to MLX's attention. An array is safe under gradients, "causal" only for more
    than SHORT_QUERIES queries."""
    return causal(T, S) if isinstance(mask, str) and T <= SHORT_QUERIES else mask


def causal(T: int, S: int) -> mx.array:
    """(T,S), true where a position may look: the last query sees all S keys."""
    return mx.tri(T, S, k=S - T, dtype=mx.bool_)


def by_head(x: mx.array) -> mx.array:
    """(B,T,h,d) -> (B,h,T,d), on a CPU each head in one piece: products want it so, those of the
    gradients too."""
    B, T, h, d = x.shape
    if T == 1:  # nothing to move, and MLX sees that there is not
        return x.reshape(B, h, 1, d)
    moved = x.swapaxes(1, 2)
    return moved if mx.default_device() == mx.gpu else mx.contiguous(moved)


def masked(scores: mx.array, mask: Mask) -> mx.array:
    """(B,h,T,S); masked scores are set to the smallest number of the dtype."""
    if mask is None:
        return scores
    keep = causal(*scores.shape[-2:]) if isinstance(mask, str) else mask
    if keep.dtype != mx.bool_:
        return scores + keep
    return mx.where(keep, scores, mx.finfo(scores.dtype).min)


@mx.compile
def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    """(..., d) -> (..., d)"""
    *rows, d = x.shape
    if mx.default_device() == mx.gpu or math.prod(rows) <= FEW_ROWS:
        return mx.fast.layer_norm(x, weight, bias, eps)

    @mx.custom_function
    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> Arrays:
        wide = x.astype(mx.float32)
        centred = wide - mx.mean(wide, axis=-1, keepdims=True)
        variance = mx.mean(mx.square(centred), axis=-1, keepdims=True)
        # Contiguous, or the compiler would take the root again for every number of a row.
        scale = mx.contiguous(mx.rsqrt(variance + eps))
        return (centred * scale * weight + bias).astype(x.dtype), centred, scale

    @norm.vjp
    def gradients(primals: Arrays, cotangents: Arrays, outputs: Arrays) -> Arrays:
        d_out, (_, centred, scale) = cotangents[0].astype(mx.float32), outputs
        normal = centred * scale
        d_normal = d_out * primals[1]
        share = mx.full((d, 1), 1 / d)  # means as products, which are five times as fast as sums
        d_x = scale * (d_normal - d_normal @ share - normal * ((d_normal * normal) @ share))
        axes = tuple(range(len(rows)))
        found = d_x, mx.sum(d_out * normal, axis=axes), mx.sum(d_out, axis=axes)
        return [d.astype(x.dtype) for d, x in zip(found, primals, strict=True)]

    return cast(Arrays, norm(x, weight, bias))[0]


@partial(mx.compile, shapeless=True)
def exp_below(x: mx.array, greatest: mx.array) -> mx.array:
    """e^(x - greatest), to a few millionths of e^0; no x is above its `greatest`.

    On a CPU this is arithmetic alone, which compiles to vector instructions, and eight times as
    fast as `mx.exp`: (e^(y/32))^32 by a Taylor polynomial and squares.
    """
    if mx.default_device() == mx.gpu:
        return mx.exp(x - greatest)
    y = mx.maximum(x - greatest, -87.0) / 32
    power = mx.array(1 / math.factorial(8))
    for n in reversed(range(8)):
        power = power * y + 1 / math.factorial(n)
    for _ in range(5):
        power = power * power
    return power
