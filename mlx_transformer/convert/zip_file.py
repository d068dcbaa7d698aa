"""Zip files. Members that are stored as they are can be mapped where they lie.

`torch.save` and `numpy.savez` write such files. Compressed members are how a small file unpacks
into a huge one: they are held to a size in all, and unpacked only as far as they are asked for.
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from mlx_transformer.convert.tensors import Storage, Unpacked
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

ZIP_MAGIC = b"PK\x03\x04"
MAX_DIRECTORY_BYTES = 16 << 20
# Weights hardly compress. A file may unpack to at most so many times its size (some hold many
# zeros), and always to this many bytes.
MAX_GROWTH = 20
ALWAYS_FINE = 1 << 20


def zip_members(path: Path) -> dict[str, Storage]:
    """Each member of a zip where it lies in the file; nothing is unpacked yet."""
    with _ModestFile(path) as file:
        try:
            entries = zipfile.ZipFile(file).infolist()
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ValueError,
            OSError,
            struct.error,
        ) as error:
            raise InputError(f"the zip is damaged or cut short ({error})") from error
        size = path.stat().st_size
        members: dict[str, Storage] = {}
        _check_growth(entries, size)
        for entry in entries:
            _check(entry)
            if entry.filename in members:
                raise InputError(f"the zip holds {shown(entry.filename)} twice")
            members[entry.filename] = _locate(file, path, size, entry)
    _check_overlap(members)
    return members


class _ModestFile(io.FileIO):
    """A file from which nothing large is read at once, such as a made-up table of contents."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > MAX_DIRECTORY_BYTES:
            raise ValueError("its table of contents is too large")
        return super().read(size)


def _check_growth(entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_GROWTH * size + ALWAYS_FINE:
        raise InputError(f"the zip of {size} bytes would unpack to {unpacked}")


def _check(entry: zipfile.ZipInfo) -> None:
    name = entry.filename
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise InputError(f"the zip holds {shown(name)}, a path that leads out of it")
    if entry.flag_bits & 1:
        raise InputError(f"{shown(name)} in the zip is encrypted")
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        return
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise InputError(
            f"{shown(name)} is compressed in an unusual way: unpack the zip and save it again"
        )


def _locate(file: io.FileIO, path: Path, size: int, entry: zipfile.ZipInfo) -> Storage:
    """The member's bytes: they follow a local header with names and padding of its own."""
    if not 0 <= entry.header_offset <= size - 30:
        raise InputError(f"{shown(entry.filename)} would lie outside the zip")
    file.seek(entry.header_offset)
    header = file.read(30)
    name_length, extra_length = struct.unpack("<HH", header[26:])
    if header[:4] != ZIP_MAGIC or file.read(name_length) != entry.orig_filename.encode(
        "utf-8" if entry.flag_bits & 0x800 else "cp437"
    ):
        raise InputError(f"the zip's table of contents is wrong about {shown(entry.filename)}")
    start = entry.header_offset + 30 + name_length + extra_length
    if start + entry.compress_size > size:
        raise InputError(
            f"{shown(entry.filename)} should have {entry.compress_size} bytes, "
            "but the file ends first"
        )
    packed = Storage(path, entry.compress_size, start)
    if entry.compress_type == zipfile.ZIP_STORED:
        return packed
    return Compressed(path, entry.file_size, 0, packed=packed)


@dataclass(kw_only=True)
class Compressed(Storage):
    """A compressed member, unpacked whenever it is asked for, and as far as it is."""

    packed: Storage

    def map(self, offset: int, count: int, dtype: str) -> np.ndarray:
        assert self.start is not None
        first = self.start + offset
        end = first + count * np.dtype(dtype).itemsize
        try:
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            data = inflater.decompress(self.packed.map(0, self.packed.nbytes, "u1").data, end)
        except zlib.error as error:
            raise InputError(f"a compressed member of the zip is damaged ({error})") from error
        if len(data) < end:
            raise InputError("a compressed member of the zip is cut short")
        return np.frombuffer(data, self.byteorder + dtype, count, first)


def unpacked(member: Storage) -> Storage:
    """A member whose parts will be asked for one by one: unpacked once, if it is compressed."""
    if not isinstance(member, Compressed):
        return member
    data = member.map(0, member.nbytes, "u1").tobytes()
    return Unpacked(member.path, len(data), 0, data=data)


def _check_overlap(members: dict[str, Storage]) -> None:
    packed = [m.packed if isinstance(m, Compressed) else m for m in members.values()]
    ranges = sorted((m.start or 0, (m.start or 0) + m.nbytes) for m in packed)
    if any(end > start for (_, end), (start, _) in pairwise(ranges)):
        raise InputError("members of the zip overlap")
