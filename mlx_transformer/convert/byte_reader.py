"""Binary files read from front to back: numbers and strings one after the other."""

import struct

from mlx_transformer.convert.tensors import Storage


class ByteReader:
    """A place in a storage. Whatever does not fit into it is an InputError."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.position = 0
        self._bytes = storage.map(0, storage.nbytes, "u1")

    def take(self, nbytes: int) -> Storage:
        """The next bytes as they lie in the file: nothing is read."""
        found = self.storage.part(self.position, nbytes)
        self.position += nbytes
        return found

    def read(self, nbytes: int) -> bytes:
        start = self.position
        self.take(nbytes)
        return self._bytes[start : self.position].tobytes()

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        """`count` little-endian whole numbers of a `struct` code"""
        data = self.read(struct.calcsize(f"<{code}") * count)
        return struct.unpack(f"<{count}{code}", data)

    def number(self, code: str) -> int:
        return self.numbers(code, 1)[0]
