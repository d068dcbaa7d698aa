"""The self-attention keys and values of K hypotheses a sentence, written once and never moved.

A hypothesis changes its ancestors whenever the beam reorders. Moving its keys and values along
would copy the whole cache in every step. They stay where they were written instead: position t
of hypothesis j in slot t*K + j. Each hypothesis knows the slots of its own past, and a mask hides
the others. K hypotheses then read one block of keys as K queries, as in cross-attention.

A recurrent layer keeps cells instead, of the newest position only: hypothesis j goes on from those
in the slot of its past.

A decoder alone reads its prompt in one pass. Its keys and values lie before all slots,
once for all hypotheses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.blocks import KeysValues
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding.choose import rows
from mlx_transformer.device import Mask
from mlx_transformer.model import Transformer


class Prompt(NamedTuple):
    """What a decoder alone goes on from: prompts of one length, in room for some more.

    The caches have a column for each token but the last, which the first step reads.
    """

    ids: mx.array  # (B,P), NONE before the first
    length: mx.array  # () without the room

    @property
    def columns(self) -> int:
        return self.ids.shape[1] - 1

    @property
    def visible(self) -> mx.array:
        """(columns,)"""
        return mx.arange(self.columns) < self.length - 1

    @property
    def last(self) -> mx.array:
        """(B,1)"""
        return self.ids[:, -1:]


class PromptCache:
    """Keeps one layer's keys and values of a prompt: a `Cache` of the model."""

    visible: Mask = "causal"

    def __init__(self, length: int):
        self.positions = mx.arange(length)
        self.kept: KeysValues

    def extend(self, k: mx.array, v: mx.array) -> KeysValues:
        self.kept = k, v
        return k, v


def read_prompt(model: Transformer, ids: mx.array, slots: "list[LayerSlots]") -> "list[LayerSlots]":
    """(B,p) -> the slots, with the keys and values of the ids before them"""
    length = ids.shape[1]
    if length == 0:
        return slots
    caches = [PromptCache(length) for _ in slots]
    model.decode(ids, caches=caches)

    def written(old: mx.array, new: mx.array) -> mx.array:
        return mx.slice_update(old, new, mx.array([0]), axes=(2,))

    return [
        (written(old[0], cache.kept[0]), written(old[1], cache.kept[1]))
        for old, cache in zip(slots, caches, strict=True)
        if len(old) == 2
    ]


@dataclass
class SlotCache:
    """One layer's cache during one step: a `Cache` of the model."""

    slots: KeysValues  # (B,h,T*K,d)
    first: mx.array  # (1,), Q slots from here on are this step's
    positions: mx.array  # (S,) of the slots that matter now, the first ones
    visible: mx.array | None  # (B,1 or h,Q,S): which each hypothesis may read, if not all

    def extend(self, k: mx.array, v: mx.array) -> KeysValues:
        """k (B,h,Q,d_k), v (B,h,Q,d_v) -> those of the slots that matter, (B,h,S,d)"""
        keys, values = (
            mx.slice_update(old, new, self.first, axes=(2,))
            for old, new in zip(self.slots, (k, v), strict=True)
        )
        self.slots = keys, values
        seen = self.positions.size
        device.launch_early(values, rows=k.shape[0] * k.shape[2])
        return keys[:, :, :seen], values[:, :, :seen]


class CellCache:
    """A recurrent layer's cells during one step: a `Cache` and `Cells` of the model."""

    visible = None

    def __init__(self, slots: tuple[mx.array], parents: mx.array):
        """slots ((B,K,d),), parents (B,Q): the slot that each hypothesis goes on from"""
        self.slots = slots
        self._parents = parents

    @property
    def positions(self) -> mx.array:
        """(1,), no key stands anywhere"""
        return mx.zeros((1,), mx.int32)

    def recur(self, forget: mx.array, taken: mx.array) -> mx.array:
        """(B,Q,d) -> (B,Q,d)"""
        (cells,) = self.slots
        new = forget * rows(cells, self._parents) + taken
        self.slots = (mx.slice_update(cells, new, mx.array([0]), axes=(1,)),)
        return new


LayerSlots = KeysValues | tuple[mx.array]  # keys and values, or cells


def layer_caches(
    caches: Sequence[LayerSlots],
    slots: mx.array,
    t: mx.array,
    reach: int,
    Q: int,
    prompt: Prompt | None,
    *,
    alone: bool,
) -> Sequence[SlotCache | CellCache]:
    """What each layer reads and writes at step t, given the slots (B,K,T) of each hypothesis.

    `alone`: there is nothing to hide from a single hypothesis.
    """
    K = slots.shape[1]
    h = caches[0][0].shape[1]  # of keys; cells are always visible
    hides = not alone and len(caches[0]) == 2
    visible = device.mask_by_head(visible_slots(slots[:, :Q], K, reach), h) if hides else None
    positions = mx.arange(reach * K) // K
    first = t * K
    if prompt is not None and prompt.columns:
        first = first + prompt.columns
        written = prompt.length - 1 + positions
        positions = mx.concatenate([mx.arange(prompt.columns), written])
        if visible is not None:
            shared = mx.broadcast_to(prompt.visible, (*visible.shape[:3], prompt.columns))
            visible = mx.concatenate([shared, visible], axis=3)
    parents = mx.take(slots[:, :Q], mx.maximum(t - 1, 0), axis=2)
    return [
        CellCache(layer, parents)
        if len(layer) == 1
        else SlotCache(layer, first[None], positions, visible)
        for layer in caches
    ]


def visible_slots(slots: mx.array, K: int, reach: int) -> mx.array:
    """Which of K slots each of Q hypotheses owns at a position (B,Q,T), of the first `reach`
    positions -> (B,1,Q,reach*K), true at those"""
    B, Q, _ = slots.shape
    return (slots[:, :, :reach, None] == mx.arange(K)).reshape(B, 1, Q, reach * K)


def empty_slots(
    config: ModelConfig, B: int, K: int, T: int, dtype: mx.Dtype, columns: int = 0
) -> list[LayerSlots]:
    """By layer, room for T positions behind the columns of a prompt"""
    if config.decoder_cell == "ssru":
        return [(mx.zeros((B, K, config.d_model), dtype),) for _ in range(config.decoder_layers)]
    d_k, d_v = config.head_sizes
    room = (B, config.h, columns + T * K)
    return [
        (mx.zeros((*room, d_k), dtype), mx.zeros((*room, d_v), dtype))
        for _ in range(config.decoder_layers)
    ]


def with_room(slots: LayerSlots, more: int) -> LayerSlots:
    """With so many slots more; cells need none."""
    if len(slots) == 1:
        return slots
    return grow(slots[0], 2, more), grow(slots[1], 2, more)


def grow(x: mx.array, axis: int, by: int, fill: int = 0) -> mx.array:
    """x with `by` more entries along the axis"""
    widths = [(0, by if i == axis else 0) for i in range(x.ndim)]
    return mx.pad(x, widths, constant_values=mx.array(fill, x.dtype))
