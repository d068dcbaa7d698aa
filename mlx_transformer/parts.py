"""What later models put in the paper's places: small parts that the config chooses.

RMSNorm, which some have instead of LayerNorm, is MLX's own (`nn.RMSNorm`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_transformer import device
from mlx_transformer.blocks import linear, norm
from mlx_transformer.config import ModelConfig

ActivationFunction = Callable[[mx.array], mx.array]
ACTIVATIONS: dict[str, ActivationFunction] = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_tanh": nn.gelu_approx,
    "gelu_sigmoid": nn.gelu_fast_approx,  # x sigmoid(1.702 x)
    "swish": device.swish,
}


def activation(config: ModelConfig) -> ActivationFunction:
    """What stands between the two products of a feed-forward network."""
    plain = ACTIVATIONS[config.activation]
    return Gate(plain) if config.gated_feed_forward else plain


@dataclass(frozen=True)
class Gate:
    """In the place of an activation: activation(a) * b of the products a, b side by side."""

    activation: ActivationFunction

    def __call__(self, x: mx.array) -> mx.array:
        """(..., 2*d_ff) -> (..., d_ff)"""
        a, b = mx.split(x, 2, axis=-1)
        return self.activation(a) * b


class WordHead(nn.Module):
    """BERT's, before the word matrix: norm(activation(x W + b))"""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self._activation = ACTIVATIONS[config.activation]
        self.dense = linear(config.d_model, [config.d_model], bias=True)
        self.norm = norm(config)

    def __call__(self, x: mx.array) -> mx.array:
        """(..., d_model) -> (..., d_model)"""
        return self.norm(self._activation(self.dense(x)))


class RelativeBias(nn.Module):
    """T5's positions: what each head adds to a score, by the distance from query to key.

    Near distances have a bucket each, farther ones share theirs. An encoder has half of the buckets
    for keys after the query; a decoder sees none of those.
    """

    def __init__(self, config: ModelConfig, *, both_ways: bool):
        super().__init__()
        self._both_ways = both_ways
        self._later = config.relative_buckets // 2 if both_ways else 0  # first bucket of later keys
        self._buckets = mx.array(
            distance_buckets(config.relative_buckets - self._later, config.relative_distance)
        )
        self.weight = mx.random.normal(
            (config.relative_buckets, config.h), scale=config.d_model**-0.5
        )

    def __call__(self, queries: mx.array, keys: mx.array) -> mx.array:
        """Positions (T,), (S,) -> (1,h,T,S)"""
        back = queries[:, None] - keys
        distance = mx.abs(back) if self._both_ways else mx.maximum(back, 0)
        bucket = self._buckets[mx.minimum(distance, self._buckets.size - 1)]
        bucket = bucket + mx.where(back < 0, self._later, 0)
        return self.weight[bucket].transpose(2, 0, 1)[None]


def distance_buckets(buckets: int, farthest: int) -> np.ndarray:
    """The bucket of each distance from 0 to `farthest` -> (farthest + 1,)

    Half of them hold one distance each, the others grow by a constant factor. In float32, as T5
    computes it: some distances fall on the very edge of a bucket.
    """
    exact = buckets // 2
    distances = np.arange(farthest + 1)
    ratios = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    steps = ratios / np.float32(np.log(farthest / exact)) * np.float32(buckets - exact)
    spread = np.minimum(exact + steps.astype(np.int32), buckets - 1)
    return np.where(distances < exact, distances, spread).astype(np.int32)


class Cells(Protocol):
    """A recurrent layer's memory of what came before."""

    def recur(self, forget: mx.array, taken: mx.array) -> mx.array:
        """The cells that follow those kept, forget * cells + taken: (B,T,d) -> (B,T,d)"""


class SSRU(nn.Module):
    """The simpler simple recurrent unit, in the place of a decoder's self-attention.

    Each word makes its cells forget a part and take in as much of the word:
    f_t = sigmoid(W_f x_t + b_f), c_t = f_t c_(t-1) + (1 - f_t) W x_t, and max(0, c_t) goes on.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.input = linear(d_model, [d_model], bias=False)
        self.forget = linear(d_model, [d_model], bias=True)

    def __call__(
        self, x: mx.array, mask: object, cells: Cells | None = None, maps: object = None
    ) -> mx.array:
        """(B,T,d_model) -> (B,T,d_model); no mask is needed, and there are no weights to map"""
        forget = mx.sigmoid(self.forget(x))
        taken = (1 - forget) * self.input(x)
        c = running_cells(forget, taken) if cells is None else cells.recur(forget, taken)
        return mx.maximum(c, 0)


def running_cells(forget: mx.array, taken: mx.array) -> mx.array:
    """c_t = forget_t c_(t-1) + taken_t of all positions at once: (B,T,d) -> (B,T,d)

    Before each round, `taken` at t is what the last n positions left in c_t, and `forget` how much
    of c_(t-n) is still in it; the round doubles n.
    """
    n = 1
    while n < forget.shape[1]:
        taken = taken + forget * later(taken, n)
        forget = forget * later(forget, n)
        n *= 2
    return taken


def later(x: mx.array, n: int) -> mx.array:
    """(B,T,d) moved n positions on, with zeros in front"""
    return mx.pad(x[:, :-n], [(0, 0), (n, 0), (0, 0)])
