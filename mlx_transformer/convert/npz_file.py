"""NumPy `.npz` files: a zip of `.npy` arrays, each mapped where it lies."""

from io import BytesIO
from pathlib import Path

import numpy as np

from mlx_transformer.convert.tensors import NUMPY_TYPES, LazyTensor, Storage, shown
from mlx_transformer.convert.zip_file import stored_members
from mlx_transformer.errors import InputError

MAX_HEADER_BYTES = 10_000


def read_npz(path: Path) -> dict[str, LazyTensor]:
    members = stored_members(path)
    return {name.removesuffix(".npy"): _array(name, member) for name, member in members.items()}


def _array(name: str, member: Storage) -> LazyTensor:
    head = BytesIO(member.map(0, min(member.nbytes, MAX_HEADER_BYTES), "u1").tobytes())
    try:
        version = np.lib.format.read_magic(head)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran_order, dtype = read_header(head, MAX_HEADER_BYTES)
    except (ValueError, KeyError, EOFError, OSError) as error:
        raise InputError(f"{shown(name)} is not a NumPy array") from error
    names = {code: name for name, code in NUMPY_TYPES.items() if name != "bfloat16"}
    code = dtype.str.lstrip("<>|=")
    code = "?" if code == "b1" else code
    if code not in names:
        raise InputError(f"{shown(name)} has the dtype {shown(str(dtype))}, which is not supported")
    storage = Storage(
        member.path,
        member.nbytes - head.tell(),
        (member.start or 0) + head.tell(),
        ">" if dtype.str.startswith(">") else "<",
    )
    if not fortran_order:
        return LazyTensor.contiguous(storage, names[code], shape)
    backwards = LazyTensor.contiguous(storage, names[code], shape[::-1])
    return LazyTensor(storage, names[code], shape, backwards.strides[::-1])
