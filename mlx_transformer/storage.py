"""Model directories: config.json and model.safetensors, as the MLX world expects them."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError
from mlx_transformer.model import Linear, Transformer

QUANTIZATION_GROUP = 64


def named_parameters(model: nn.Module) -> dict[str, mx.array]:
    """Every learned array under its path, such as `encoder.layers.0.self_attention.qkv.weight`."""
    return dict(tree_flatten(model.parameters()))


def count_parameters(config: ModelConfig) -> int:
    """Numbers the model learns. Nothing is computed for it: MLX arrays are lazy."""
    return sum(array.size for array in named_parameters(Transformer(config)).values())


def save_model(model: Transformer, directory: Path) -> None:
    """Write config.json and model.safetensors, as the MLX world expects them."""
    model.config.save(directory / "config.json")
    mx.save_safetensors(
        str(directory / "model.safetensors"),
        named_parameters(model),
        metadata={"format": "mlx"},
    )


def load_model(directory: Path, dtype: mx.Dtype | None = None) -> Transformer:
    """Read a model directory; `dtype` casts the floating-point weights, None keeps them."""
    for name in ("config.json", "model.safetensors"):
        if not (directory / name).is_file():
            raise InputError(
                f"{directory} is not a model directory: it has no {name} "
                "(train one, or make one with mlx-transformer convert)"
            )
    model = Transformer(ModelConfig.load(directory / "config.json"))
    if model.config.quantization is not None:
        quantize(model, model.config.quantization)
    try:
        model.load_weights(str(directory / "model.safetensors"), strict=True)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{directory / 'model.safetensors'} does not fit: {error}") from error
    if dtype is not None:
        model.set_dtype(dtype)
    return model


def load_to_compute(directory: Path, dtype: mx.Dtype | None = None) -> Transformer:
    """As `load_model`, but on a CPU None is plain float32: MLX's half-precision and quantised
    products crawl there."""
    if dtype is not None or mx.default_device() == mx.gpu:
        return load_model(directory, dtype)
    model = load_model(directory, mx.float32)
    dequantize(model)
    return model


def quantize(model: Transformer, bits: int) -> None:
    """Replace, in place, every matrix whose rows divide into groups by its quantised form."""

    def fits(_: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % QUANTIZATION_GROUP == 0

    nn.quantize(model, group_size=QUANTIZATION_GROUP, bits=bits, class_predicate=fits)


def dequantize(model: Transformer) -> None:
    """Replace, in place, every quantised matrix by the plain one it stands for."""

    def plain(layer: nn.Module) -> nn.Module:
        if not isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return layer
        weight = mx.dequantize(
            layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits
        )
        if isinstance(layer, nn.QuantizedEmbedding):
            made: nn.Module = nn.Embedding(1, 1)
        else:
            made = Linear(1, 1, bias="bias" in layer)
            if "bias" in layer:
                made.bias = layer.bias
        made.weight = weight
        return made

    leaves = tree_map(plain, model.leaf_modules(), is_leaf=nn.Module.is_module)
    model.update_modules(leaves)
    model.config = replace(model.config, quantization=None)
