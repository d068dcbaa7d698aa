"""How much memory an update takes, and how its batch is cut so that it fits.

The weights, their moments and gradients are counted. What the layers keep for the backward pass is
proportional to the tokens; the factors below were fitted to the peak that MLX reports, launching
operations as it does on a Mac, and docs/memory.md has the arithmetic.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from math import ceil

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.data.grid import Shape
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.storage import count_parameters
from mlx_transformer.training.report import number

GB = 10**9

# Bytes for each weight: itself and two moments; and at most, while they are updated.
STATE, UPDATE = 12, 36
GRADIENT = 4
# Bytes a layer keeps for each of its tokens: times d_model, times d_ff, times heads and keys.
ENCODER, DECODER, FEED_FORWARD, SCORES = 60, 84, 9.5, 5.3
LAYER_INPUT = 4  # times d_model: all that a checkpointed layer keeps
LOSS = 16  # bytes for each logit of a chunk: logits, exponentials, gradients
HALF = 0.55  # what half precision keeps of it: some sums stay float32
# Of a Mac's memory Metal recommends to use about this share.
METAL_SHARE = 0.7
MAC_MEMORY = (8, 16, 32, 64)
TYPICAL_LENGTH = 32
# The rest of a working set is for MLX's cache of buffers, and for other programs.
USABLE = 0.8


@dataclass(frozen=True)
class MemoryPlan:
    """Into how many micro-batches each batch is cut, and what an update then takes."""

    micro_batches: int
    bytes: int


def update_bytes(model: ModelConfig, training: TrainingConfig, shape: Shape) -> int:
    """The peak of an update whose largest micro-batch has this shape."""
    weights = count_parameters(model)
    gradient_phase = (STATE + GRADIENT) * weights + _kept(model, training, shape)
    return int(max(gradient_phase, UPDATE * weights))


def _kept(model: ModelConfig, training: TrainingConfig, shape: Shape) -> float:
    """Bytes of activations at the end of the forward pass."""
    B, S, T = shape
    narrow = 1.0 if training.dtype == "float32" else HALF
    encoder = B * S * (ENCODER * model.d_model + FEED_FORWARD * model.d_ff + SCORES * model.h * S)
    decoder = (
        B * T * (DECODER * model.d_model + FEED_FORWARD * model.d_ff + SCORES * model.h * (S + T))
    )
    layers = model.encoder_layers * encoder + model.decoder_layers * decoder
    if training.gradient_checkpointing:
        inputs = model.encoder_layers * B * S + model.decoder_layers * B * (S + T)
        layers = max(encoder, decoder) + LAYER_INPUT * model.d_model * inputs
    logits = min(B * T * model.target_size, device.loss_chunk())
    return narrow * layers + LOSS * logits


def plan_memory(
    model: ModelConfig, training: TrainingConfig, shapes: Iterable[Shape], limit: float
) -> MemoryPlan:
    """The fewest micro-batches with which an update stays within `limit` bytes."""
    shapes = list(shapes)
    for pieces in count(1):
        cut = [shape._replace(B=ceil(shape.B / pieces)) for shape in shapes]
        needed = max(update_bytes(model, training, shape) for shape in cut)
        if needed <= limit:
            return MemoryPlan(pieces, needed)
        if all(shape.B == 1 for shape in cut):
            raise InputError(
                f"training needs {needed / GB:.1f} GB even one sentence at a time, and "
                f"{limit / GB:.1f} GB may be used: take a smaller model, a lower data.max_length, "
                "or raise training.memory"
            )
    raise AssertionError("unreachable")


def plans_for_macs(model: ModelConfig, training: TrainingConfig) -> list[dict[str, int | None]]:
    """By size of a Mac's memory, how a batch of sentences of 32 tokens is cut."""
    rows: list[dict[str, int | None]] = []
    shape = Shape(ceil(training.batch_tokens / TYPICAL_LENGTH), TYPICAL_LENGTH, TYPICAL_LENGTH)
    for memory in MAC_MEMORY:
        try:
            plan = plan_memory(model, training, [shape], USABLE * METAL_SHARE * memory * GB)
        except InputError:
            rows.append({"memory": memory, "micro_batches": None, "tokens": None, "bytes": None})
            continue
        tokens = ceil(shape.B / plan.micro_batches) * TYPICAL_LENGTH
        rows.append(
            {
                "memory": memory,
                "micro_batches": plan.micro_batches,
                "tokens": tokens,
                "bytes": plan.bytes,
            }
        )
    return rows


def memory_limit(training: TrainingConfig) -> float:
    """Bytes that an update may take."""
    if isinstance(training.memory, str):
        return USABLE * device.working_set()
    return training.memory * GB


def agreed_micro_batches(
    model: ModelConfig,
    training: TrainingConfig,
    shapes: Iterable[Shape],
    group: mx.distributed.Group,
) -> int:
    """As many as the process with the least memory needs."""
    own = [shape._replace(B=ceil(shape.B / group.size())) for shape in shapes]
    pieces = mx.array(plan_memory(model, training, own, memory_limit(training)).micro_batches)
    return int(number(mx.distributed.all_max(pieces, group=group)))
