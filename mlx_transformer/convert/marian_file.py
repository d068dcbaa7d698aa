"""Marian's binary files (`.bin`), as Firefox has them: a header, names, shapes, then the data."""

from dataclasses import replace

from mlx_transformer.convert.byte_reader import ByteReader
from mlx_transformer.convert.tensors import LazyTensor, QuantizedTensor, Storage, Tensor
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

VERSION = 1
MAX_ITEMS = 100_000
DTYPES = {
    0x101: "int8",
    0x102: "int16",
    0x104: "int32",
    0x108: "int64",
    0x201: "uint8",
    0x202: "uint16",
    0x204: "uint32",
    0x208: "uint64",
    0x402: "float16",
    0x404: "float32",
    0x408: "float64",
}
# Whole numbers, and behind them one scale for all. Types for one kind of processor are not read.
QUANTIZED = {0x4101: "int8", 0x4102: "int16"}


def is_marian(start: bytes) -> bool:
    """By the first bytes: a version and a number of items, eight bytes each."""
    version, items = (int.from_bytes(start[i : i + 8], "little") for i in (0, 8))
    return len(start) >= 16 and version == VERSION and items <= MAX_ITEMS


def read_marian(storage: Storage) -> dict[str, Tensor]:
    reader = ByteReader(storage)
    _, count = reader.numbers("Q", 2)
    heads = [reader.numbers("Q", 4) for _ in range(count)]
    names = [_name(reader.read(length)) for length, _, _, _ in heads]
    shapes = [reader.numbers("I", rank) for _, _, rank, _ in heads]
    reader.take(reader.number("Q"))  # up to where the data begins
    tensors = {
        name: _tensor(name, kind, shape, reader.take(nbytes))
        for name, shape, (_, kind, _, nbytes) in zip(names, shapes, heads, strict=True)
    }
    if len(tensors) != count:
        raise InputError("the file names a tensor twice")
    return tensors


def _name(text: bytes) -> str:
    return text.removesuffix(b"\0").decode("utf-8", "replace")


def _tensor(name: str, kind: int, shape: tuple[int, ...], data: Storage) -> Tensor:
    if kind in DTYPES:
        return LazyTensor.contiguous(data, DTYPES[kind], shape)
    if kind not in QUANTIZED:
        raise InputError(
            f"{shown(name)} is of kind {kind:#x}: packed for one kind of processor, or unknown; "
            "convert the model that it was made from"
        )
    return _quantized(name, QUANTIZED[kind], shape, data)


def _quantized(name: str, dtype: str, shape: tuple[int, ...], data: Storage) -> QuantizedTensor:
    """Products read a matrix (in,out) column by column and the file holds it so; words are rows."""
    whole = LazyTensor.contiguous(data, dtype, shape)
    nbytes = whole.size * (1 if dtype == "int8" else 2)
    scale = LazyTensor.contiguous(data.part(nbytes, 4), "float32", ())
    if "Wemb" not in name and len(shape) == 2:
        whole = replace(whole, strides=(1, shape[0]))
    return QuantizedTensor(whole, scale)
