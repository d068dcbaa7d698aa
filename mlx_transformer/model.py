"""The Transformer of "Attention Is All You Need", in the order of the paper's section 3.

Shapes: B sentences, S source tokens, T target tokens, h heads, V words. Padding is on the right.

Dropout is on exactly when a random key is passed, and each place draws from a key of its own. A
compiled function therefore cannot freeze a mask, there is no training mode to forget, and a layer
recomputed by gradient checkpointing drops the same units again.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_transformer import device
from mlx_transformer.blocks import (
    AttentionMaps,
    Cache,
    Key,
    KeysValues,
    KeysValuesCache,
    Maps,
    dropout,
    linear,
    norm,
    recomputed,
    split,
    word_matrix,
)
from mlx_transformer.config import ModelConfig
from mlx_transformer.device import Mask
from mlx_transformer.parts import SSRU, RelativeBias, WordHead, activation

# 3.1 Encoder and decoder stacks


class Residual:
    """What surrounds every sublayer: LayerNorm(x + Dropout(Sublayer(x))), or pre-norm."""

    def __init__(self, config: ModelConfig):
        self._pre_norm = config.norm == "pre"
        self._dropout = config.dropout

    def __call__(
        self,
        norm: nn.Module,
        x: mx.array,
        sublayer: Callable[..., mx.array],
        key: Key,
        *others: object,
    ) -> mx.array:
        """`others` are what the sublayer reads besides x."""
        if self._pre_norm:
            return x + dropout(sublayer(norm(x), *others), self._dropout, key)
        return norm(x + dropout(sublayer(x, *others), self._dropout, key))


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self._residual = Residual(config)
        self.self_attention = SelfAttention(config)
        self.self_attention_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm(config)

    def __call__(self, x: mx.array, mask: Mask, key: Key = None, maps: Maps = None) -> mx.array:
        """x (B,S,d_model), mask true at real tokens -> (B,S,d_model)"""
        keys, residual = split(key, 2), self._residual
        x = residual(self.self_attention_norm, x, self.self_attention, keys[0], mask, None, maps)
        return residual(self.feed_forward_norm, x, self.feed_forward, keys[1])


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self._residual = Residual(config)
        recurrent = config.decoder_cell == "ssru"
        self.self_attention: nn.Module = (
            SSRU(config.d_model) if recurrent else SelfAttention(config)
        )
        self.self_attention_norm = norm(config)
        if config.encoder_layers:
            self.cross_attention = CrossAttention(config)
            self.cross_attention_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm(config)

    def __call__(
        self,
        y: mx.array,
        mask: Mask,
        memory: mx.array | KeysValues | None,
        memory_mask: Mask,
        key: Key = None,
        cache: Cache | None = None,
        maps: tuple[Maps, Maps] = (None, None),
    ) -> mx.array:
        """y (B,T,d_model), memory (B,S,d_model) or its keys and values, if any -> (B,T,d_model)"""
        keys, residual = split(key, 3), self._residual
        y = residual(
            self.self_attention_norm, y, self.self_attention, keys[0], mask, cache, maps[0]
        )
        if memory is not None:
            read = memory, memory_mask, maps[1]
            y = residual(self.cross_attention_norm, y, self.cross_attention, keys[1], *read)
        return residual(self.feed_forward_norm, y, self.feed_forward, keys[2])


class Stack(nn.Module):
    """N layers and, in most pre-norm models, a last norm."""

    def __init__(self, config: ModelConfig, layers: Sequence[EncoderLayer | DecoderLayer]):
        super().__init__()
        self.layers = list(layers)
        is_encoder = isinstance(layers[0], EncoderLayer)
        normed = config.encoder_final_norm if is_encoder else config.decoder_final_norm
        self.norm = norm(config) if normed else nn.Identity()
        if config.positions == "relative":
            tables = len(layers) if config.relative_per_layer else 1
            self.relative = [RelativeBias(config, both_ways=is_encoder) for _ in range(tables)]

    def masks(self, mask: Mask, queries: mx.array, keys: mx.array) -> list[Mask]:
        """What self-attention may see, by layer: positions (T,), (S,) of queries and keys.

        A relative bias is added to the scores as masks may be, so it becomes part of the mask.
        """
        if "relative" not in self:
            return [mask] * len(self.layers)
        found: list[Mask] = [device.masked(bias(queries, keys), mask) for bias in self.relative]
        return found * (len(self.layers) // len(found))


# 3.2 Attention


def attend(
    q: mx.array, k: mx.array, v: mx.array, mask: Mask, scale: float, maps: Maps = None
) -> mx.array:
    """softmax(scale * q k^T) v, heads joined: q (B,h,T,d_k) -> (B,T,h*d_v).

    A fused kernel never materialises the weights; asked for, they are computed apart.
    """
    if maps is None:
        found = device.attention(q, k, v, mask, scale)
    else:
        scores = (q * scale) @ k.swapaxes(-1, -2)
        maps.append(mx.softmax(device.masked(scores, mask), axis=-1))
        found = maps[-1] @ v
    B, _, T, _ = q.shape
    return (found if T == 1 else found.swapaxes(1, 2)).reshape(B, T, -1)


def attention_scale(config: ModelConfig) -> float:
    """1 / sqrt(d_k), or 1 in models that leave it to the weights"""
    return 1 / math.sqrt(config.head_sizes[0]) if config.scale_attention else 1.0


def query_gain(config: ModelConfig) -> float:
    """Of the first weights: queries that are not scaled begin as small as if they were (T5)"""
    return 1 / math.sqrt(config.head_sizes[0]) / attention_scale(config)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence on itself: one matrix product makes q, k and v."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d_k, d_v = config.head_sizes
        h, bias = config.h, config.attention_bias
        self._sizes = d_k, d_k, d_v
        self._scale = attention_scale(config)
        self.qkv = linear(
            config.d_model, [h * d_k, h * d_k, h * d_v], bias, gain=query_gain(config)
        )
        self.out = linear(h * d_v, [config.d_model], bias)

    def __call__(
        self, x: mx.array, mask: Mask, cache: KeysValuesCache | None = None, maps: Maps = None
    ) -> mx.array:
        """x (B,T,d_model) -> (B,T,d_model)"""
        q, k, v = device.heads(self.qkv(x), self._sizes)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.out(attend(q, k, v, mask, self._scale, maps))


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder on the encoder's output."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d_k, d_v = config.head_sizes
        h, bias = config.h, config.attention_bias
        self._sizes = d_k, d_v
        self._scale = attention_scale(config)
        self.q = linear(config.d_model, [h * d_k], bias, gain=query_gain(config))
        self.kv = linear(config.d_model, [h * d_k, h * d_v], bias)
        self.out = linear(h * d_v, [config.d_model], bias)

    def keys_values(self, memory: mx.array) -> KeysValues:
        """memory (B,S,d_model) -> keys (B,h,S,d_k), values (B,h,S,d_v)"""
        k, v = device.heads(self.kv(memory), self._sizes)
        return k, v

    def __call__(
        self, x: mx.array, memory: mx.array | KeysValues, mask: Mask, maps: Maps = None
    ) -> mx.array:
        """x (B,T,d_model) -> (B,T,d_model)"""
        k, v = self.keys_values(memory) if isinstance(memory, mx.array) else memory
        (q,) = device.heads(self.q(x), self._sizes[:1])
        return self.out(attend(q, k, v, mask, self._scale, maps))


# 3.3 Position-wise feed-forward networks


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2"""

    def __init__(self, config: ModelConfig):
        super().__init__()
        bias = config.feed_forward_bias
        self._activation = activation(config)
        inner = [config.d_ff] * (2 if config.gated_feed_forward else 1)
        self.w_1 = linear(config.d_model, inner, bias)
        self.w_2 = linear(config.d_ff, [config.d_model], bias)

    def __call__(self, x: mx.array) -> mx.array:
        """(B,T,d_model) -> (B,T,d_model)"""
        return self.w_2(self._activation(self.w_1(x)))


# 3.4 Embeddings and softmax, 3.5 positional encoding

# Threads share models: no thread may replace a longer table by a shorter one.
_reserving = Lock()


class Embedding(nn.Module):
    """Scaled word vectors plus positions. The word matrix itself is the model's, stored once."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self._scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self._offset = config.position_offset
        self._formula = partial(sinusoids, config) if config.positions == "sinusoidal" else None
        self._dropout = config.dropout
        if config.positions == "learned":
            self.positions = mx.random.normal(
                (config.max_length + config.position_offset, config.d_model),
                scale=config.d_model**-0.5,
            )
        self.norm = norm(config) if config.embedding_norm else nn.Identity()

    def reserve(self, length: int) -> None:
        """Have the positions below `length`: a formula's table is only as long as it is used."""
        with _reserving:
            held = len(self["_sinusoids"]) - self._offset if "_sinusoids" in self else 0
            if self._formula is not None and held < length:
                self._sinusoids = mx.array(self._formula(max(256, 2 * held, length)))

    def __call__(
        self,
        words: mx.array,
        position: int | mx.array = 0,
        key: Key = None,
        placed: mx.array | None = None,
    ) -> mx.array:
        """words (B,T,d_model), the first at `position` -> (B,T,d_model)

        `placed` (B,T): which of them have a position, if not all. For a position that only the
        device knows, the caller has reserved enough.
        """
        if isinstance(position, int):
            self.reserve(position + words.shape[1])
        x = words * self._scale
        table = self.get("positions", self.get("_sinusoids"))
        if table is not None:
            rows = position + self._offset + mx.arange(words.shape[1])
            places = table[rows].astype(words.dtype)
            x = x + (places if placed is None else places * placed[..., None])
        return dropout(self.norm(x), self._dropout, key)


def sinusoids(config: ModelConfig, length: int) -> np.ndarray:
    """sin and cos of position / 10000^(2i / d_model) -> (offset + length, d_model), float32"""
    half = config.d_model // 2
    positions = np.arange(config.position_offset + length)
    exponents = np.arange(half) / max(half - config.position_divisor_minus_one, 1)
    angles = positions[:, None] / 10_000.0**exponents
    if config.position_layout == "halves":
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    else:
        table = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(positions), -1)
    return table.astype(np.float32)


class Transformer(nn.Module):
    """The whole model: embeddings, the two stacks and the softmax layer (section 3, figure 1).

    A stack of no layers is not there. A model of one stack reads a text, `source`, and no target.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.source_words = word_matrix(config.vocab_size, config.d_model)
        if not config.shared_embeddings:
            self.target_words = word_matrix(config.target_size, config.d_model)
        if not config.tied_output:
            self.output = linear(config.d_model, [config.target_size], bias=False)
        if config.output_bias:
            self.output_bias = mx.zeros((config.target_size,))
        N, M = config.encoder_layers, config.decoder_layers
        if N:
            self.source_embedding = Embedding(config)
            self.encoder = Stack(config, [EncoderLayer(config) for _ in range(N)])
        if M:
            self.target_embedding = Embedding(config)
            self.decoder = Stack(config, [DecoderLayer(config) for _ in range(M)])
        if config.word_head == "transform":
            self.word_head = WordHead(config)

    def __call__(
        self, source: mx.array, target: mx.array | None = None, key: Key = None
    ) -> mx.array:
        """Word logits: source (B,S) and target (B,T) ids -> (B,T,V); dropout if key."""
        return self.logits(self.hidden(source, target, key))

    def hidden(
        self,
        source: mx.array,
        target: mx.array | None = None,
        key: Key = None,
        maps: AttentionMaps | None = None,
        *,
        checkpointing: bool = False,
    ) -> mx.array:
        """The last stack's output before the softmax layer: ids (B,S), (B,T) -> (B,T,d_model).

        With `checkpointing` layers keep only their inputs and run again in the backward pass.
        """
        if self.config.alone == "decoder":
            return self.decode(source, key=key, maps=maps, checkpointing=checkpointing)
        keys = split(key, 2)
        memory = self.encode(source, keys[0], maps, checkpointing=checkpointing)
        if self.config.alone == "encoder":
            return self.word_head(memory) if "word_head" in self else memory
        assert target is not None
        return self.decode(
            target,
            [memory] * self.config.decoder_layers,
            self.source_mask(source),
            key=keys[1],
            maps=maps,
            checkpointing=checkpointing,
        )

    def source_mask(self, source: mx.array) -> mx.array:
        """(B,S) ids -> (B,1 or h,1,S), true at real tokens and the first: no row is ever empty."""
        first = mx.arange(source.shape[1]) == 0
        real = (source != self.config.pad_id) | first
        return device.mask_by_head(real[:, None, None, :], self.config.h)

    def encode(
        self,
        source: mx.array,
        key: Key = None,
        maps: AttentionMaps | None = None,
        *,
        checkpointing: bool = False,
    ) -> mx.array:
        """(B,S) ids -> memory (B,S,d_model)"""
        positions = mx.arange(source.shape[1])
        masks = self.encoder.masks(self.source_mask(source), positions, positions)
        keys = split(key, len(self.encoder.layers) + 1)
        x = self.source_embedding(self.source_words(source), key=keys[-1])
        for layer, mask, layer_key in zip(self.encoder.layers, masks, keys, strict=False):
            run = recomputed(layer, layer_key) if checkpointing else partial(layer, key=layer_key)
            x = run(x, mask, maps=maps.encoder if maps else None)
        return self.encoder.norm(x)

    def memory_keys_values(self, memory: mx.array) -> list[KeysValues]:
        """What every decoder layer reads of a sentence, computed once for all steps."""
        return [layer.cross_attention.keys_values(memory) for layer in self.decoder.layers]

    def decode(
        self,
        target: mx.array,
        memory: Sequence[mx.array | KeysValues | None] | None = None,
        memory_mask: Mask = None,
        *,
        position: int | mx.array = 0,
        caches: Sequence[Cache] | None = None,
        key: Key = None,
        maps: AttentionMaps | None = None,
        checkpointing: bool = False,
    ) -> mx.array:
        """(B,T) ids from `position` on, `memory` by layer -> hidden (B,T,d_model)

        A position sees those before it or, with caches, what they let it see. A decoder alone has
        no memory.
        """
        memory = memory or [None] * self.config.decoder_layers
        keys = split(key, len(self.decoder.layers) + 1)
        words = self.target_vectors(target, position)
        placed = None if self.config.padding_has_position else target != self.config.pad_id
        y = self.target_embedding(words, position, keys[-1], placed)
        positions = position + mx.arange(target.shape[1])
        visible, seen = (
            (caches[0].visible, caches[0].positions) if caches else ("causal", positions)
        )
        masks = self.decoder.masks(visible, positions, seen)
        layer_maps = (maps.decoder, maps.cross) if maps else (None, None)
        for i, layer in enumerate(self.decoder.layers):
            run = recomputed(layer, keys[i]) if checkpointing else partial(layer, key=keys[i])
            cache = caches[i] if caches else None
            y = run(y, masks[i], memory[i], memory_mask, cache=cache, maps=layer_maps)
        return self.decoder.norm(y)

    def target_vectors(self, target: mx.array, position: int | mx.array) -> mx.array:
        """(B,T) ids -> word vectors (B,T,d_model); a model without start token begins with zero."""
        words = self[self.config.target_matrix](target)
        if self.config.start_id is None:
            words = words * ((position + mx.arange(target.shape[1])) > 0)[:, None]
        return words

    def logits(self, hidden: mx.array) -> mx.array:
        """(..., d_model) -> (..., V)"""
        matrix = self[self.config.output_matrix]
        logits = matrix.as_linear(hidden) if self.config.tied_output else matrix(hidden)
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        return logits + self.output_bias if self.config.output_bias else logits

    def attention_maps(self, source: mx.array, target: mx.array | None = None) -> AttentionMaps:
        """Every attention weight of one pass over source (B,S) and target (B,T) ids."""
        maps = AttentionMaps([], [], [])
        self.hidden(source, target, maps=maps)
        return maps
