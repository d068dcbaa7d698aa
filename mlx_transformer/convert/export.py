"""What every export starts from: the weights in full precision, and the knobs it can express."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.positions import MAX_FORMULA_LENGTH
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer, sinusoids
from mlx_transformer.storage import named_parameters


def float32_weights(model: Transformer) -> dict[str, mx.array]:
    """Every parameter under its own name in float32: exact for float16 and bfloat16, and the
    numbers that a quantised matrix stands for."""
    weights = named_parameters(model)
    for path, module in model.named_modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            scales, biases = (weights.pop(f"{path}.{part}") for part in ("scales", "biases"))
            weights[f"{path}.weight"] = mx.dequantize(
                module.weight, scales, biases, module.group_size, module.bits
            )
    return {name: array.astype(mx.float32) for name, array in weights.items()}


def word_matrices(config: ModelConfig, weights: Mapping[str, mx.array]) -> tuple[mx.array, ...]:
    """The matrices (V,d_model) of source words, target words and output, tied ones the same."""
    names = ("source_words", config.target_matrix, config.output_matrix)
    return tuple(weights[f"{name}.weight"] for name in names)


def position_tables(
    config: ModelConfig, weights: Mapping[str, mx.array]
) -> tuple[mx.array, mx.array]:
    """The tables (max_length,d_model) of encoder and decoder, from the first position on."""
    if config.positions == "learned":
        encoder, decoder = (weights[f"{side}_embedding.positions"] for side in ("source", "target"))
    elif config.max_length > MAX_FORMULA_LENGTH:
        raise InputError(
            f"a table of {config.max_length:,} positions would fill the disk: lower max_length in "
            f"the model's config.json to {MAX_FORMULA_LENGTH:,} or less"
        )
    else:
        encoder = decoder = mx.array(sinusoids(config, config.max_length))
    if config.position_offset == 0:
        return encoder, decoder
    return encoder[config.position_offset :], decoder[config.position_offset :]


# What `check_plain` needs a model to be.
PLAIN_PARTS: dict[str, Any] = {
    "norm_kind": "layer",
    "scale_attention": True,
    "gated_feed_forward": False,
    "feed_forward_bias": True,
    "decoder_cell": "self-attention",
}


def check_expressible(config: ModelConfig, where: str, **settings: Any) -> None:
    """Refuse a model that differs in one of `settings`, and name the setting; or half a model."""
    if config.alone is not None:
        raise InputError(
            f"{where} has an encoder and a decoder, but this model is the {config.alone} alone"
        )
    for name, value in settings.items():
        if getattr(config, name) != value:
            raise InputError(
                f"{where} cannot express {name} {getattr(config, name)!r}: it must be {value!r}"
            )


def check_plain(config: ModelConfig, where: str, **settings: Any) -> None:
    """As `check_expressible`, for frameworks with only the paper's Transformer, whose heads share
    d_model evenly."""
    for name, size in zip(("d_k", "d_v"), config.head_sizes, strict=True):
        if size * config.h != config.d_model:
            raise InputError(f"{where} cannot express {name} {size}: it must be d_model / h")
    if config.positions == "relative":
        raise InputError(f"{where} cannot express relative positions here")
    check_expressible(config, where, **PLAIN_PARTS, **settings)


def check_start_has_position(config: ModelConfig, where: str) -> None:
    """Other decoders add a position to padding as well. That only shows in one that begins with it:
    none writes it."""
    if config.first_id == config.pad_id and not config.padding_has_position:
        raise InputError(
            f"{where} cannot express padding_has_position False where the decoder begins with "
            "padding"
        )
