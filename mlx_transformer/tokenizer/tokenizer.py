"""Source text to ids, target ids to text, in the languages that were chosen."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.languages import find_language
from mlx_transformer.tokenizer.pieces import UNKNOWN, SentencePieceSide
from mlx_transformer.tokenizer.sides import Side
from mlx_transformer.tokenizer.tags import Frame, OneWay, Tags


class Tokenizer:
    """Two sides, and what stands around a text; `files` is what it takes to build it again.

    `encode_*` returns pieces only; `sources` and `targets` are whole, as the model reads and writes
    them. `between` chooses languages.
    """

    def __init__(
        self, source: Side, target: Side, files: Mapping[str, bytes], tags: Tags | None = None
    ) -> None:
        self.source = source
        self.target = target
        self.files = files
        self.tags: Tags = OneWay() if tags is None else tags
        self.source_language: str | None = None
        self.target_language: str | None = None

    # Languages

    def between(self, source: str | None = None, target: str | None = None) -> "Tokenizer":
        """The same for these languages: the model's own codes, or what people call them."""
        bound = Tokenizer(self.source, self.target, self.files, self.tags)
        bound.source_language = _language(source, self.tags.sources, "source")
        bound.target_language = _language(target, self.tags.targets, "target")
        return bound

    def of_tagged(self, text: str) -> tuple["Tokenizer", str]:
        """A text that begins with a tag of its own (`>>deu<<`): its tokenizer, and its rest."""
        for tag, language in self.tags.spelled.items():
            if text.startswith(tag):
                return self.between(self.source_language, language), text.removeprefix(tag).lstrip()
        return self, text

    @cached_property
    def frame(self) -> Frame:
        """What stands around a text; a language that the model needs and lacks is said here."""
        return self.tags.frame(self.source_language, self.target_language)

    # Sizes

    @property
    def source_vocab_size(self) -> int:
        return self.source.size

    @property
    def target_vocab_size(self) -> int:
        return self.target.size

    @property
    def unk_id(self) -> int:
        return self.target.unk_id

    @property
    def mask(self) -> tuple[str, int] | None:
        """How a gap in a text is written, and its id, if the model knows gaps."""
        known = ((token, self.source.id_of(token)) for token in ("[MASK]", "<mask>"))
        return next(((token, i) for token, i in known if i is not None), None)

    # Text to ids

    def sources(self, texts: Sequence[str], eos_id: int) -> list[list[int]]:
        return [self.frame.source(ids, eos_id) for ids in self.encode_source_batch(texts)]

    def targets(self, texts: Sequence[str], eos_id: int) -> list[list[int]]:
        return [self.frame.target(ids, eos_id) for ids in self.encode_target_batch(texts)]

    def encode_source(self, text: str) -> list[int]:
        return self.encode_source_batch([text])[0]

    def encode_target(self, text: str) -> list[int]:
        return self.encode_target_batch([text])[0]

    def encode_source_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source.encode([_well_formed(text) for text in texts])

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.target.encode([_well_formed(text) for text in texts])

    def unknown_source(self, text: str) -> list[str]:
        """What of a source text SentencePiece has no piece for: `decode` can copy it."""
        return _unknown(self.source, text)

    def unknown_target(self, text: str) -> list[str]:
        return _unknown(self.target, text)

    # Ids to text

    def decode(self, ids: Iterable[int], unknown: Iterable[str] = ()) -> str:
        """Target ids to text; pad, start, end and ids outside the vocabulary are skipped.

        Pieces without a text of their own are written as those of `unknown`, one after the other.
        """
        text = self.target.decode(ids)
        for piece in unknown:
            text = text.replace(UNKNOWN, piece, 1)
        return text

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        return [self.target.decode(ids) for ids in batch]

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same files, and for no others."""
        sums = {name: hashlib.sha256(self.files[name]).hexdigest() for name in sorted(self.files)}
        return hashlib.sha256(repr(sums).encode()).hexdigest()

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files into a model directory."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def _language(typed: str | None, codes: Sequence[str], side: str) -> str | None:
    if typed is None:
        return None
    if not codes:
        raise InputError(f"the model is not told its {side} language: leave {typed!r} out")
    return find_language(typed, codes)


def _unknown(side: Side, text: str) -> list[str]:
    return side.unknown(_well_formed(text)) if isinstance(side, SentencePieceSide) else []


def _well_formed(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
