"""A prepared corpus: sentences as ids in files, read as needed, so that its size costs no memory.

A prepared directory holds the tokenizer's files, `prepared.json`, and for every split and side the
ids of all sentences end to end (`train.source.ids`) with where each begins
(`train.source.offsets`). Splits that are scored as text keep it too (`valid.source.txt`).
"""

import json
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np

from mlx_transformer.errors import InputError

MANIFEST = "prepared.json"
SIDES = ("source", "target")


class StoredIds:
    """The ids of a file, read where they are asked for.

    A mapped file that becomes shorter kills the process that reads it; a read only ends early.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self._directory = path.parent
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self.dtype.itemsize

    def __getitem__(self, part: slice) -> np.ndarray:
        start, size = int(part.start), self.dtype.itemsize
        wanted = (int(part.stop) - start) * size
        content = os.pread(self._file, wanted, start * size)
        if len(content) < wanted:
            raise damaged(self._directory)
        return np.frombuffer(content, self.dtype)


class Sentences:
    """Id sequences, end to end: sentence i is ids[offsets[i]:offsets[i+1]]."""

    def __init__(self, ids: np.ndarray | StoredIds, offsets: np.ndarray) -> None:
        self.ids = ids
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """The pieces of sentence i; no end token."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self) -> np.ndarray:
        """(n,) int32: pieces of every sentence."""
        return np.diff(self.offsets).astype(np.int32)

    def is_whole(self) -> bool:
        """Whether sentences follow one another from the first id to the last."""
        if len(self.offsets) == 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.ids):
            return False
        return bool((np.diff(self.offsets) >= 0).all())

    @classmethod
    def from_lists(cls, sentences: Iterable[Iterable[int]]) -> "Sentences":
        """In memory, for tests and small work."""
        lists = [list(sentence) for sentence in sentences]
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(np.fromiter(chain.from_iterable(lists), np.int32), offsets)


@dataclass(frozen=True)
class ParallelCorpus:
    """One split: sentence pairs as ids and, for valid and test, as text."""

    source: Sentences
    target: Sentences
    source_vocab_size: int
    target_vocab_size: int
    source_lines: list[str]  # one a pair in valid and test, none in train
    target_lines: list[str]
    source_end: tuple[int, ...] | None = None  # what sources end in; None: the end of sentence

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def open(cls, directory: Path, split: str) -> "ParallelCorpus":
        """Open a split of a prepared directory; one that the recipe has not is empty."""
        manifest = read_manifest(directory)
        # Of plain text there is one side: it is what is read and what is written.
        sides = ("source", "source") if manifest.get("text") else SIDES
        dtypes = [np.dtype(manifest[f"{side}_dtype"]) for side in sides]
        source, target = (
            Sentences(
                _stored_ids(directory / f"{split}.{side}.ids", dtype),
                _offsets(directory / f"{split}.{side}.offsets"),
            )
            for side, dtype in zip(sides, dtypes, strict=True)
        )
        if not (source.is_whole() and target.is_whole()) or len(source) != len(target):
            raise damaged(directory)
        lines = [_read_lines(directory / f"{split}.{side}.txt") for side in sides]
        sizes = [manifest["report"][f"{side}_vocab_size"] for side in sides]
        end = manifest.get("source_end")
        return cls(
            source,
            target,
            sizes[0],
            sizes[1],
            lines[0],
            lines[1],
            None if end is None else tuple(end),
        )


class SentenceWriter:
    """Appends sentences to a pair of files that `Sentences` reads."""

    def __init__(self, directory: Path, name: str, dtype: np.dtype) -> None:
        self._ids = (directory / f"{name}.ids").open("wb")
        self._offsets = (directory / f"{name}.offsets").open("wb")
        self._dtype = dtype
        self._end = 0
        self._offsets.write(np.int64(0).tobytes())

    def append(self, sentences: list[list[int]]) -> int:
        """Write them; returns how many ids that was."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        offsets = self._end + np.cumsum(lengths, dtype=np.int64)
        count = int(lengths.sum())
        self._ids.write(np.fromiter(chain.from_iterable(sentences), self._dtype, count).tobytes())
        self._offsets.write(offsets.tobytes())
        self._end += count
        return count

    def __enter__(self) -> "SentenceWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ids.close()
        self._offsets.close()


def id_dtype(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def read_manifest(directory: Path) -> dict:
    path = directory / MANIFEST
    if not path.is_file():
        raise InputError(f"{directory} holds no prepared data: run mlx-transformer prepare")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(directory) from error


def damaged(directory: Path) -> InputError:
    return InputError(f"the prepared data in {directory} is damaged: delete it and prepare again")


def _stored_ids(path: Path, dtype: np.dtype) -> np.ndarray | StoredIds:
    return StoredIds(path, dtype) if path.is_file() else np.zeros(0, dtype)


def _offsets(path: Path) -> np.ndarray:
    return np.fromfile(path, np.int64) if path.is_file() else np.zeros(1, np.int64)


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return path.read_text(encoding="utf-8").split("\n")[:-1]
