"""Safetensors files, tensor by tensor.

`mx.load` and `mx.save_safetensors` handle whole dictionaries of arrays. Here reading only notes
where each tensor lies, and writing takes one tensor after the other, so that a conversion never
holds more than one of them.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_transformer.convert.tensors import LazyTensor, Storage, Tensor, itemsize
from mlx_transformer.inputs.untrusted import DTYPES, Stored, read_header

CODES = {dtype: code for code, (dtype, _) in DTYPES.items()}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    return {name: _tensor(path, stored) for name, stored in read_header(path).items()}


def _tensor(path: Path, stored: Stored) -> LazyTensor:
    storage = Storage(path, stored.nbytes, stored.start)
    return LazyTensor.contiguous(storage, stored.dtype, stored.shape)


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write: what it will be, and how to make it when its turn comes."""

    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]


def write_safetensors(path: Path, entries: Mapping[str, NewTensor]) -> None:
    """Write `entries` in order, with the metadata that the MLX world expects."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    position = 0
    for name, entry in entries.items():
        end = position + math.prod(entry.shape) * itemsize(entry.dtype)
        header[name] = {
            "dtype": CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries.values():
            file.write(_bytes(entry))


def _bytes(entry: NewTensor) -> memoryview:
    values = entry.make()
    assert values.shape == entry.shape and values.itemsize == itemsize(entry.dtype)
    return values.astype(values.dtype.newbyteorder("<"), order="C", copy=False).data
