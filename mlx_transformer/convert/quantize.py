"""Quantise a model directory where it lies."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import (
    CONFIG_FILE,
    QUANTIZATION_GROUP,
    WEIGHTS_FILE,
    named_parameters,
    quantize,
    save_model,
)


def quantize_directory(directory: Path, bits: int) -> None:
    """Store every matrix (word vectors too) in `bits` bits a weight; norms and biases stay."""
    # Without the checks of `load_model`, which read every weight: these files were just written.
    model = Transformer(ModelConfig.load(directory / CONFIG_FILE))
    model.load_weights(str(directory / WEIGHTS_FILE), strict=True)
    model.config = replace(model.config, quantization=bits)
    quantize(model, bits)
    if not any(name.endswith(".scales") for name in named_parameters(model)):
        raise InputError(
            f"nothing to quantise: no matrix has a multiple of {QUANTIZATION_GROUP} columns "
            f"(d_model is {model.config.d_model})"
        )
    # Read everything before the file is overwritten, one by one: plain matrices take much memory.
    for array in named_parameters(model).values():
        mx.eval(array)
    save_model(model, directory)
