"""Safetensors files, tensor by tensor.

`mx.load` and `mx.save_safetensors` handle whole dictionaries of arrays. Here reading only notes
where each tensor lies, and writing takes one tensor after the other, so that a conversion never
holds more than one of them.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_transformer.convert.tensors import LazyTensor, Storage, itemsize, shown
from mlx_transformer.errors import InputError

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 16 << 20


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise InputError("the header of the safetensors file is damaged or cut short")
        header = _parse(file.read(length))
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("the header of the safetensors file is not valid JSON") from error
    if not isinstance(header, dict):
        raise InputError("the header of the safetensors file is not a JSON object")
    return header


def _tensor(path: Path, name: str, entry: object, base: int, size: int) -> LazyTensor:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
            code in DTYPES and 0 <= start <= end <= size - base
        ):
            tensor = LazyTensor.contiguous(
                Storage(path, end - start, base + start), DTYPES[code], tuple(shape)
            )
            if tensor.size * itemsize(tensor.dtype) == end - start:
                return tensor
    raise InputError(
        f"the tensor {shown(name)} is described wrongly, of an unknown dtype, or cut short"
    )


@dataclass(frozen=True)
class Entry:
    """A tensor to write: what it will be, and how to make it when its turn comes."""

    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]


def write_safetensors(path: Path, entries: Mapping[str, Entry]) -> None:
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


def _bytes(entry: Entry) -> memoryview:
    values = entry.make()
    assert values.shape == entry.shape and values.itemsize == itemsize(entry.dtype)
    return values.astype(values.dtype.newbyteorder("<"), order="C", copy=False).data
