"""The self-attention keys and values of K hypotheses a sentence, written once and never moved.

A hypothesis changes its ancestors whenever the beam reorders. Moving its keys and values along
would copy the whole cache in every step. They stay where they were written instead: position t
of hypothesis j in slot t*K + j. Each hypothesis knows the slots of its own past, and a mask hides
the others. K hypotheses then read one block of keys as K queries, as in cross-attention.
"""

import mlx.core as mx

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import KeysValues

# Positions a cache grows by: room ahead of need, and few shapes to compile for.
CHUNK = 16


class SlotCache:
    """One layer's cache during one step: a `Cache` of the model."""

    def __init__(self, slots: KeysValues, first: mx.array):
        """slots (B,h,T*K,d); this step's K hypotheses go to slots `first` (1,) and after."""
        self.slots = slots
        self._first = first

    def append(self, keys: mx.array, values: mx.array) -> KeysValues:
        """keys (B,h,K,d_k), values (B,h,K,d_v) -> those of all slots"""
        old_keys, old_values = self.slots
        self.slots = (
            mx.slice_update(old_keys, keys, self._first, axes=(2,)),
            mx.slice_update(old_values, values, self._first, axes=(2,)),
        )
        return self.slots


def empty_slots(config: ModelConfig, B: int, K: int, dtype: mx.Dtype) -> list[KeysValues]:
    """By layer, room for the first CHUNK positions."""
    d_k, d_v = config.head_sizes
    room = (B, config.h, CHUNK * K)
    return [
        (mx.zeros((*room, d_k), dtype), mx.zeros((*room, d_v), dtype))
        for _ in range(config.decoder_layers)
    ]


def grow(x: mx.array, axis: int, by: int, fill: int = 0) -> mx.array:
    """x with `by` more entries along the axis"""
    widths = [(0, by if i == axis else 0) for i in range(x.ndim)]
    return mx.pad(x, widths, constant_values=mx.array(fill, x.dtype))
