"""Zip files whose members are stored as they are, so that they can be mapped where they lie.

`torch.save` and `numpy.savez` write such files. Compressed members are refused: they could not be
mapped, and they are how a small file unpacks into a huge one.
"""

import io
import os
import struct
import zipfile
from itertools import pairwise
from pathlib import Path

from mlx_transformer.convert.tensors import Storage
from mlx_transformer.errors import InputError
from mlx_transformer.printable import shown

ZIP_MAGIC = b"PK\x03\x04"
MAX_DIRECTORY_BYTES = 16 << 20


def stored_members(path: Path) -> dict[str, Storage]:
    """Where each member of a zip lies in the file; nothing is unpacked."""
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


def _check(entry: zipfile.ZipInfo) -> None:
    name = entry.filename
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise InputError(f"the zip holds {shown(name)}, a path that leads out of it")
    if entry.flag_bits & 1:
        raise InputError(f"{shown(name)} in the zip is encrypted")
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise InputError(
            f"{shown(name)} in the zip is compressed; torch.save and numpy.savez store members "
            "as they are: unpack the zip and save it again with them"
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
    if start + entry.file_size > size:
        raise InputError(
            f"{shown(entry.filename)} should have {entry.file_size} bytes, but the file ends first"
        )
    return Storage(path, entry.file_size, start)


def _check_overlap(members: dict[str, Storage]) -> None:
    ranges = sorted((m.start or 0, (m.start or 0) + m.nbytes) for m in members.values())
    if any(end > start for (_, end), (start, _) in pairwise(ranges)):
        raise InputError("members of the zip overlap")
