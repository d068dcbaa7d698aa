"""NumPy `.npz` files: a zip of `.npy` arrays, each mapped where it lies or unpacked if need be."""

import re
from dataclasses import replace
from pathlib import Path

from mlx_transformer.convert.tensors import NUMPY_TYPES, LazyTensor, Storage, Tensor
from mlx_transformer.convert.zip_file import zip_members
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

# A Python dictionary in the text of the file; this much of Python is all it may use.
HEADER = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)"
    rb"\{'descr': '([<>|=]?)([a-z?]\d*)', 'fortran_order': (True|False), "
    rb"'shape': \(([\d, ]{0,200})\),? ?\} *\n",
    re.DOTALL,
)
NAMES = {code: name for name, code in NUMPY_TYPES.items() if name != "bfloat16"} | {"b1": "bool"}
MAX_HEADER_BYTES = 10_000


def read_npz(path: Path) -> dict[str, Tensor]:
    members = zip_members(path)
    return {name.removesuffix(".npy"): _array(name, member) for name, member in members.items()}


def _array(name: str, member: Storage) -> LazyTensor:
    header = HEADER.match(member.map(0, min(member.nbytes, MAX_HEADER_BYTES), "u1").tobytes())
    if header is None:
        raise InputError(f"{shown(name)} is not an array of numbers")
    order, code, fortran, sizes = (group.decode() for group in header.groups())
    if code not in NAMES:
        raise InputError(f"{shown(name)} has the dtype {code}, which is not supported")
    values = member.part(header.end(), member.nbytes - header.end())
    storage = replace(values, byteorder=">" if order == ">" else "<")
    shape = tuple(int(size) for size in sizes.replace(" ", "").split(",") if size)
    if fortran == "False":
        return LazyTensor.contiguous(storage, NAMES[code], shape)
    backwards = LazyTensor.contiguous(storage, NAMES[code], shape[::-1])
    return LazyTensor(storage, NAMES[code], shape, backwards.strides[::-1])
