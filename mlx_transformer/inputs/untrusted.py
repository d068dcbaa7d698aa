"""Files of strangers: JSON, and what a safetensors file says of itself, checked before use."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

# Of safetensors' element types, the name in NumPy (bfloat16: what NumPy lacks) and its bytes.
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
FLOATS = ("float32", "float16", "bfloat16")  # what weights may be
MAX_HEADER_BYTES = 16 << 20
MAX_JSON_BYTES = 64 << 20
MAX_DIMENSIONS = 16


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """The JSON object in a file; `what` begins the sentence if it is none."""
    return _object(_parsed(content, what), what)


def read_json(path: Path) -> dict[str, Any]:
    return _object(read_json_value(path), str(path))


def read_json_value(path: Path) -> Any:
    """An object, a list or anything else"""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MB")
    return _parsed(path.read_bytes(), str(path))


def _parsed(content: bytes, what: str) -> Any:
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise InputError(f"{what} is not valid JSON: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{what} is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} is not valid JSON: it is not UTF-8") from None
    except ValueError:  # Python refuses to read numbers of thousands of digits
        raise InputError(f"{what} is not valid JSON: a number is too long") from None


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what} must hold one JSON object, not {shown(value)}")
    return value


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: `nbytes` from byte `start` on."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def read_header(path: Path) -> dict[str, Stored]:
    """What a safetensors file holds, by name; all of it lies within the file."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise InputError("the header of the safetensors file is damaged or cut short")
        header = parse_json(file.read(length), "the header of the safetensors file")
    header.pop("__metadata__", None)
    return {name: _stored(name, entry, 8 + length, size) for name, entry in header.items()}


def _stored(name: str, entry: object, base: int, size: int) -> Stored:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
            code in DTYPES and is_shape(shape) and 0 <= start <= end <= size - base
        ):
            dtype, width = DTYPES[code]
            if math.prod(shape) * width == end - start:
                return Stored(dtype, tuple(shape), base + start, end - start)
    raise InputError(
        f"the tensor {shown(name)} is described wrongly, of an unknown dtype, or cut short"
    )


def is_shape(numbers: list[object] | tuple[object, ...]) -> bool:
    """Whether these could be a shape, strides or an offset."""
    return len(numbers) <= MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in numbers)
