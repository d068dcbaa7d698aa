"""One language of a tokenizer: text to pieces, pieces to ids, and back."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from sentencepiece import SentencePieceProcessor

WORD_START = "▁"


class Side(Protocol):
    """One language: its pieces and their ids."""

    @property
    def size(self) -> int: ...

    @property
    def unk_id(self) -> int: ...

    def id_of(self, piece: str) -> int | None: ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable pieces, one an id; the first piece of a word starts with `WORD_START`."""
        ...


def load_sentencepiece(model: bytes) -> SentencePieceProcessor:
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)  # unlike the constructor, refuses an empty one
    return processor


def splitter(special: Iterable[str]) -> re.Pattern[str]:
    """Splits a text around special tokens that are spelled out in it, the longest first."""
    longest_first = sorted(special, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


class NumberedPieces:
    """A side whose pieces a dictionary numbers; a subclass cuts texts and joins pieces."""

    def __init__(self, vocab: Mapping[str, int]) -> None:
        self._ids = vocab
        self._pieces = {i: piece for piece, i in vocab.items()}

    @property
    def size(self) -> int:
        return max(self._pieces) + 1

    @property
    def unk_id(self) -> int:
        return self._ids["<unk>"]

    def id_of(self, piece: str) -> int | None:
        return self._ids.get(piece)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(p, self.unk_id) for p in self._cut(text)] for text in texts]

    def _cut(self, text: str) -> list[str]:
        raise NotImplementedError

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.get(int(i), "") for i in ids]
