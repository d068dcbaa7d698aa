"""A model as a state dict for `torch.nn.Transformer`, with a script that loads it.

The state dict is a zip-format `.pt`, written without PyTorch: raw storages beside a pickle of a few
opcodes, which `torch.load(weights_only=True)` accepts. Unlike safetensors it needs no package
besides PyTorch, and tied matrices are one storage under several names, as PyTorch itself does it.
"""

import re
import shutil
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.export import (
    check_plain,
    float32_weights,
    position_tables,
    word_matrices,
)
from mlx_transformer.model import Transformer

EXAMPLE = Path(__file__).with_name("torch_example.py")

# PyTorch's name in a layer -> our parameters, stacked in this order.
ENCODER_LAYER = {
    "self_attn.in_proj_*": ["self_attention.qkv.*"],
    "self_attn.out_proj.*": ["self_attention.out.*"],
    "norm1.*": ["self_attention_norm.*"],
    "linear1.*": ["feed_forward.w_1.*"],
    "linear2.*": ["feed_forward.w_2.*"],
    "norm2.*": ["feed_forward_norm.*"],
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "multihead_attn.in_proj_*": ["cross_attention.q.*", "cross_attention.kv.*"],
    "multihead_attn.out_proj.*": ["cross_attention.out.*"],
    "norm2.*": ["cross_attention_norm.*"],
    "norm3.*": ["feed_forward_norm.*"],
}


def export_torch(model: Transformer, directory: Path) -> None:
    """Write model.pt, config.json and load_in_torch.py, which explains how to use them."""
    check_plain(model.config, "torch.nn.Transformer")
    weights = float32_weights(model)
    state = _transformer(model.config, weights) | _around(model.config, weights)
    write_torch_file(directory / "model.pt", state)
    replace(model.config, quantization=None).save(directory / "config.json")
    shutil.copyfile(EXAMPLE, directory / "load_in_torch.py")


def _transformer(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The parameters of torch.nn.Transformer itself."""
    state = {}
    for stack, depth, layer in (
        ("encoder", config.encoder_layers, ENCODER_LAYER),
        ("decoder", config.decoder_layers, DECODER_LAYER),
    ):
        table = {
            f"{stack}.layers.{i}.{theirs}": [f"{stack}.layers.{i}.{name}" for name in ours]
            for i in range(depth)
            for theirs, ours in layer.items()
        }
        if f"{stack}.norm.weight" in weights:
            table[f"{stack}.norm.*"] = [f"{stack}.norm.*"]
        for theirs, ours in table.items():
            for kind in ("weight", "bias"):
                parts = [_weight(weights, name.replace("*", kind)) for name in ours]
                state[f"transformer.{theirs.replace('*', kind)}"] = mx.concatenate(parts)
    return state


def _weight(weights: Mapping[str, mx.array], name: str) -> mx.array:
    """The parameter, or zeros for a bias that the model does without."""
    rows = len(weights[re.sub("bias$", "weight", name)])
    return weights.get(name, mx.zeros(rows))


def _around(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Embeddings, positions and head, as the script names them."""
    source, target, output = word_matrices(config, weights)
    source_positions, target_positions = position_tables(config, weights)
    state = {
        "source_embedding.weight": source,
        "target_embedding.weight": target,
        "output.weight": output,
        "source_positions": source_positions,
        "target_positions": target_positions,
    }
    if config.output_bias:
        state["output.bias"] = weights["output_bias"]
    if config.embedding_norm:
        for side in ("source", "target"):
            for kind in ("weight", "bias"):
                state[f"{side}_norm.{kind}"] = weights[f"{side}_embedding.norm.{kind}"]
    return state


# The zip format of torch.save


def write_torch_file(path: Path, tensors: Mapping[str, mx.array]) -> None:
    """Write float32 arrays as torch.save would; the same array twice is one storage."""
    storages: dict[int, str] = {}
    pickle = b"\x80\x02" + _ORDERED_DICT + b"("
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:

        def put(name: str, content: bytes | memoryview) -> None:
            entry = zipfile.ZipInfo(f"model/{name}")  # without the time: equal models, equal files
            with file.open(entry, "w", force_zip64=True) as target:
                target.write(content)

        for name, array in tensors.items():
            if id(array) not in storages:
                storages[id(array)] = str(len(storages))
                values = np.array(array).astype("<f4", copy=False)
                put(f"data/{storages[id(array)]}", values.data)
            pickle += _string(name) + _tensor(storages[id(array)], array)
        put("data.pkl", pickle + b"u.")
        put("byteorder", b"little")
        put("version", b"3\n")


# A value as pickle opcodes: `c` names a global, `(...t` is a tuple, `R` calls, `Q` is the object
# that the reader keeps under this tuple.


def _tensor(storage: str, array: mx.array) -> bytes:
    place = _tuple(_string("storage"), b"ctorch\nFloatStorage\n", _string(storage), _string("cpu"),
                   _integer(array.size)) + b"Q"  # fmt: skip
    strides = [int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)]
    shape, steps = (_tuple(*map(_integer, numbers)) for numbers in (array.shape, strides))
    arguments = _tuple(place, _integer(0), shape, steps, b"\x89", _ORDERED_DICT)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R"


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _string(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _integer(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


_ORDERED_DICT = b"ccollections\nOrderedDict\n)R"
