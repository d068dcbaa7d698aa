"""Building blocks that the paper takes for granted, below its own parts in `model.py`.

Shapes are those of `model.py`.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.device import Mask

Layer = TypeVar("Layer", bound=nn.Module)
Key = mx.array | None  # a random key: dropout is on
KeysValues = tuple[mx.array, mx.array]  # (B,h,S,d_k), (B,h,S,d_v)
Maps = list[mx.array] | None  # where attention weights are collected, if anywhere


@dataclass
class AttentionMaps:
    """Attention weights by layer: encoder (B,h,S,S), decoder (B,h,T,T), cross (B,h,T,S)."""

    encoder: list[mx.array]
    decoder: list[mx.array]
    cross: list[mx.array]


class Cache(Protocol):
    """The decoder's memory of one layer's earlier positions: keys and values, or cells."""

    @property
    def visible(self) -> Mask:
        """Which of its S keys each position may see, this call's included; None: all."""

    @property
    def positions(self) -> mx.array:
        """(S,), where those keys stand"""


class KeysValuesCache(Cache, Protocol):
    def extend(self, k: mx.array, v: mx.array) -> KeysValues:
        """Keep this call's keys and values (B,h,T,d); all that there are so far (B,h,S,d)"""


def dropout(x: mx.array, rate: float, key: Key) -> mx.array:
    """Zero each unit with probability `rate` and scale the others, if there is a key."""
    if key is None or rate == 0:
        return x
    # The children of a key are its raw random bits. Sixteen of them settle a unit, to within
    # 1e-5 of the rate, at half the cost of a Bernoulli draw.
    bits = mx.random.split(key, -(-x.size // 4)).view(mx.uint16).flatten()[: x.size]
    threshold = round(rate * 2**16)
    keep = bits.reshape(x.shape) >= threshold
    return mx.where(keep, x * (2**16 / (2**16 - threshold)), mx.zeros((), x.dtype))


def split(key: Key, n: int) -> Sequence[Key]:
    """n independent keys, or n times None."""
    return [None] * n if key is None else list(mx.random.split(key, n))


class Linear(nn.Linear):
    """x W^T + b"""

    def __call__(self, x: mx.array) -> mx.array:
        return device.linear(x, self.weight, self.get("bias"))


def linear(d_in: int, d_outs: Sequence[int], bias: bool, gain: float = 1.0) -> Linear:
    """Projections of one input stacked in one matrix, each Xavier-initialised by itself.

    `gain` is that of the first one.
    """
    layer = Linear(d_in, sum(d_outs), bias=bias)
    init = nn.init.glorot_uniform()
    gains = [gain] + [1.0] * (len(d_outs) - 1)
    parts = [init(mx.zeros((d_out, d_in)), g) for d_out, g in zip(d_outs, gains, strict=True)]
    layer.weight = mx.concatenate(parts)
    if bias:
        layer.bias = mx.zeros_like(layer.bias)
    return layer


class LayerNorm(nn.LayerNorm):
    def __call__(self, x: mx.array) -> mx.array:
        return device.layer_norm(x, self.weight, self.bias, self.eps)


def norm(config: ModelConfig) -> nn.Module:
    kind = LayerNorm if config.norm_kind == "layer" else nn.RMSNorm
    return kind(config.d_model, eps=config.norm_eps)


def word_matrix(size: int, d_model: int) -> nn.Embedding:
    """(V,d_model) of variance 1/d_model: unit variance once scaled, and logits of order one."""
    matrix = nn.Embedding(size, d_model)
    matrix.weight = mx.random.normal((size, d_model), scale=d_model**-0.5)
    return matrix


class WideWords(nn.Embedding):
    """Word vectors that are taken from a float32 matrix, and cast then.

    Their gradients are added up word by word. A GPU can do that in float32 at once, but in half
    precision only by trying again until no other thread was in between.
    """

    def __init__(self, weight: mx.array, dtype: mx.Dtype) -> None:
        super().__init__(1, 1)
        self.weight = weight
        self._dtype = dtype

    def __call__(self, ids: mx.array) -> mx.array:
        return self.weight[ids].astype(self._dtype)


def recomputed(layer: nn.Module, key: Key) -> Callable[..., mx.array]:
    """Keeps only its inputs, and runs again in the backward pass.

    The key is bound: checkpointing must not see it as something to differentiate.
    """
    return nn.utils.checkpoint(layer, partial(layer, key=key))


def lay_out_for_search(model: nn.Module) -> None:
    """Have the matrices of a model lie as the device wants them in a search.

    One after the other, so that no two models are in memory, and the largest first: where it was
    is then room for others.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Embedding)]
    for layer in sorted(layers, key=lambda layer: layer.weight.size, reverse=True):
        layer.weight = device.search_matrix(layer.weight)


def twin(layer: Layer) -> Layer:
    """The same layers around the same arrays: what is replaced in one stays in the other."""
    made = copy(layer)
    dict.update(made, tree_map(twin, layer.children(), is_leaf=nn.Module.is_module))
    return made
