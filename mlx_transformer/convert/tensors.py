"""Tensors that stay in their file until somebody asks for them.

Every reader of this package hands out `LazyTensor`s: a dtype, a shape and strides over a range of
bytes. The range is mapped when the values are asked for and unmapped when they are dropped, so that
a conversion holds one tensor at a time, whatever the size of the checkpoint.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import is_shape

# NumPy has no bfloat16: its values travel as the uint16 of the same bits.
NUMPY_TYPES: dict[str, str] = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "u2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint64": "u8",
    "uint32": "u4",
    "uint16": "u2",
    "uint8": "u1",
    "bool": "?",
}


@dataclass
class Storage:
    """A range of bytes of a file. `start` is None until a reader has found out where it lies."""

    path: Path
    nbytes: int
    start: int | None = None
    byteorder: str = "<"

    def map(self, offset: int, count: int, dtype: str) -> np.ndarray:
        """`count` values from byte `offset` of the storage on."""
        assert self.start is not None
        dtype = self.byteorder + dtype
        if count == 0:  # memmap refuses to map nothing
            return np.empty(0, dtype)
        start = self.start + offset
        return np.asarray(np.memmap(self.path, dtype, mode="r", offset=start, shape=(count,)))

    def part(self, offset: int, nbytes: int) -> "Storage":
        """`nbytes` bytes of this storage as one of their own."""
        assert self.start is not None
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise InputError(f"the file ends within {nbytes} bytes that it should hold")
        return replace(self, start=self.start + offset, nbytes=nbytes)


@dataclass(kw_only=True)
class Unpacked(Storage):
    """A range of bytes in memory: what was compressed in the file."""

    data: bytes

    def map(self, offset: int, count: int, dtype: str) -> np.ndarray:
        assert self.start is not None
        return np.frombuffer(self.data, self.byteorder + dtype, count, self.start + offset)


@dataclass(frozen=True)
class LazyTensor:
    """A view of a storage; offset and strides count elements, as PyTorch's do."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in NUMPY_TYPES:
            raise InputError(f"the dtype {shown(self.dtype)} is not supported")
        if len(self.shape) != len(self.strides):
            raise InputError(
                f"a tensor has {len(self.shape)} dimensions and {len(self.strides)} strides"
            )
        for numbers in (self.shape, self.strides, (self.offset,)):
            check_numbers(numbers)
        # More elements than the storage holds would let a small file ask for any amount of memory.
        held = self.storage.nbytes // itemsize(self.dtype)
        if self.size > held or (self.size and self.offset + self._reach > held):
            raise InputError(
                f"a tensor of {self.size} elements from {self.offset} on, strides {self.strides}, "
                f"does not fit its storage of {held} elements"
            )

    @classmethod
    def contiguous(cls, storage: Storage, dtype: str, shape: tuple[int, ...]) -> "LazyTensor":
        """The whole storage in C order."""
        check_numbers(shape)
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(storage, dtype, shape, strides)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def _reach(self) -> int:
        """Elements from the first to the last one touched."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def numpy(self) -> np.ndarray:
        """The values as a read-only view of the file; bfloat16 as the uint16 of its bits."""
        dtype, step = NUMPY_TYPES[self.dtype], itemsize(self.dtype)
        if self.size == 0:
            return np.empty(self.shape, dtype)
        flat = self.storage.map(self.offset * step, self._reach, dtype)
        strides = [stride * step for stride in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)


@dataclass(frozen=True)
class QuantizedTensor:
    """Whole numbers (rows, ...) that stand for floats: each divided by its row's scale."""

    whole: LazyTensor
    scale: LazyTensor | float  # one for all, or (rows,)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.scale, LazyTensor) and self.scale.shape not in ((), self.shape[:1]):
            raise InputError(f"a tensor {self.shape} has scales {self.scale.shape}, not one a row")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.whole.shape

    def numpy(self) -> np.ndarray:
        scale = self.scale.numpy() if isinstance(self.scale, LazyTensor) else self.scale
        by_row = np.reshape(scale, (-1, *[1] * (len(self.shape) - 1)))
        with np.errstate(divide="ignore", invalid="ignore"):  # not finite: refused by load_model
            return self.whole.numpy().astype(np.float32) / by_row.astype(np.float32)


Tensor = LazyTensor | QuantizedTensor


def check_numbers(numbers: tuple[int, ...]) -> None:
    """Refuse what cannot be a shape, strides or an offset."""
    if not is_shape(numbers):
        raise InputError("a tensor has a shape, stride or offset that makes no sense")


def itemsize(dtype: str) -> int:
    return np.dtype(NUMPY_TYPES[dtype]).itemsize


def cast(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """Values of dtype `source` as dtype `target`, bfloat16 in its bits on both sides."""
    if source == target:
        return values
    if source == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if target != "bfloat16":
        return values.astype(NUMPY_TYPES[target])
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Round half to even, as MLX and PyTorch do; a NaN must not become an infinity.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
