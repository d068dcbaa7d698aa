"""Text to ids and back, for our own models and for those that come from elsewhere.

A tokenizer has two sides, source and target. What a side does depends on the files in the model
directory: SentencePiece alone (ours), SentencePiece with a vocabulary of its own ids (Marian), or
a word list (fairseq). Special ids other than the unknown one are the model's business
(`ModelConfig`): `encode_*` returns pieces only, `decode` skips whatever is special.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sentencepiece import SentencePieceProcessor

from mlx_transformer.errors import InputError

WORD_START = "▁"


class Side(Protocol):
    """One language: its pieces and their ids."""

    @property
    def size(self) -> int: ...

    @property
    def unk_id(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable pieces, one an id; the first piece of a word starts with `WORD_START`."""
        ...


class Tokenizer:
    """Source text to ids, target ids to text; `files` is what it takes to build it again."""

    def __init__(self, source: Side, target: Side, files: Mapping[str, bytes]) -> None:
        self.source = source
        self.target = target
        self.files = files

    @property
    def source_vocab_size(self) -> int:
        return self.source.size

    @property
    def target_vocab_size(self) -> int:
        return self.target.size

    @property
    def unk_id(self) -> int:
        return self.target.unk_id

    def encode_source(self, text: str) -> list[int]:
        return self.encode_source_batch([text])[0]

    def encode_target(self, text: str) -> list[int]:
        return self.encode_target_batch([text])[0]

    def encode_source_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source.encode([_well_formed(text) for text in texts])

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.target.encode([_well_formed(text) for text in texts])

    def decode(self, ids: Iterable[int]) -> str:
        """Target ids to text; pad, start, end and ids outside the vocabulary are skipped."""
        return self.target.decode(ids)

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        return [self.target.decode(ids) for ids in batch]

    def source_tokens(self, ids: Iterable[int]) -> list[str]:
        return self.source.tokens(ids)

    def target_tokens(self, ids: Iterable[int]) -> list[str]:
        return self.target.tokens(ids)

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files into a model directory."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def load_tokenizer(directory: Path) -> Tokenizer:
    """Read the tokenizer of a model directory, of whichever kind its files are."""
    for kind in (_load_marian, _load_fairseq, _load_sentencepiece):
        try:
            tokenizer = kind(directory)
        except RuntimeError as error:  # of SentencePiece
            raise InputError(f"a SentencePiece model in {directory} is damaged: {error}") from error
        if tokenizer is not None:
            return tokenizer
    raise InputError(
        f"{directory} has no tokenizer: no tokenizer.model, no source.model and target.model, "
        "no vocab.json with source.spm and target.spm, no dict.txt"
    )


def sentencepiece_tokenizer(source: bytes, target: bytes | None = None) -> Tokenizer:
    """From serialised SentencePiece models: one for both sides, or one a side."""
    if target is None:
        side = SentencePieceSide(source)
        return Tokenizer(side, side, {"tokenizer.model": source})
    files = {"source.model": source, "target.model": target}
    return Tokenizer(SentencePieceSide(source), SentencePieceSide(target), files)


class SentencePieceSide:
    """Ids are SentencePiece's own."""

    def __init__(self, model: bytes) -> None:
        self._model = _processor(model)

    @property
    def size(self) -> int:
        return self._model.vocab_size()

    @property
    def unk_id(self) -> int:
        return self._model.unk_id()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._model.encode(list(texts))

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode([int(i) for i in ids if 0 <= i < self.size])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._model.id_to_piece(int(i)) if 0 <= i < self.size else "" for i in ids]


class MarianSide:
    """SentencePiece cuts, `vocab.json` numbers; a leading `>>xx<<` tag is a piece of its own."""

    SPECIAL = ("</s>", "<unk>", "<pad>")

    def __init__(self, model: bytes, vocab: Mapping[str, int]) -> None:
        self._model = _processor(model)
        self._ids = vocab
        self._pieces = {i: piece for piece, i in vocab.items()}
        # Special tokens spelled out in the text are those tokens, as in the original tokenizer.
        self._special = re.compile("(" + "|".join(map(re.escape, self.SPECIAL)) + ")")

    @property
    def size(self) -> int:
        return max(self._pieces) + 1

    @property
    def unk_id(self) -> int:
        return self._ids["<unk>"]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(p, self.unk_id) for p in self._cut(text)] for text in texts]

    def _cut(self, text: str) -> list[str]:
        pieces: list[str] = []
        for part in self._special.split(text):
            if part in self.SPECIAL:
                pieces.append(part)
                continue
            end = part.find("<<")
            if part.startswith(">>") and end != -1:
                pieces.append(part[: end + 2])
                part = part[end + 2 :]
            pieces += self._model.encode(part, out_type=str)
        return pieces

    def decode(self, ids: Iterable[int]) -> str:
        pieces = [p for p in self.tokens(ids) if p and p not in self.SPECIAL]
        return self._model.decode_pieces(pieces).replace(WORD_START, " ").strip()

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.get(int(i), "") for i in ids]


class FairseqSide:
    """Ids are lines of a word list after four special tokens; words are cut beforehand.

    Beside a SentencePiece model the words are its pieces. Without, text is taken as tokenised:
    words are separated by spaces, and `@@` at the end of one glues it to the next.
    """

    SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
    GLUE = "@@"

    def __init__(self, words: str, model: bytes | None) -> None:
        self._model = None if model is None else _processor(model)
        lines = (line.rstrip().removesuffix(" #fairseq:overwrite") for line in words.split("\n"))
        self._words = [*self.SPECIAL, *(line.rsplit(" ", 1)[0] for line in lines if line)]
        self._ids = {word: i for i, word in enumerate(self._words)}

    @property
    def size(self) -> int:
        return len(self._words)

    @property
    def unk_id(self) -> int:
        return self.SPECIAL.index("<unk>")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        cut = (
            [t.split() for t in texts]
            if self._model is None
            else self._model.encode(list(texts), out_type=str)
        )
        return [[self._ids.get(word, self.unk_id) for word in words] for words in cut]

    def decode(self, ids: Iterable[int]) -> str:
        words = self._known(ids)
        if self._model is not None:
            return "".join(words).replace(WORD_START, " ").strip()
        return (" ".join(words) + " ").replace(self.GLUE + " ", "").strip()

    def _known(self, ids: Iterable[int]) -> list[str]:
        skipped = len(self.SPECIAL) - 1  # <unk> is the last of them and stays visible
        return [self._words[int(i)] for i in ids if skipped <= i < self.size]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        words = [self._words[int(i)] if 0 <= i < self.size else "" for i in ids]
        if self._model is not None:
            return words
        glued = [False] + [word.endswith(self.GLUE) for word in words]
        return [
            ("" if inside else WORD_START) + word.removesuffix(self.GLUE)
            for word, inside in zip(words, glued, strict=False)
        ]


def _load_sentencepiece(directory: Path) -> Tokenizer | None:
    if (directory / "tokenizer.model").is_file():
        return sentencepiece_tokenizer((directory / "tokenizer.model").read_bytes())
    pair = [directory / "source.model", directory / "target.model"]
    if all(path.is_file() for path in pair):
        return sentencepiece_tokenizer(*(path.read_bytes() for path in pair))
    return None


def _load_marian(directory: Path) -> Tokenizer | None:
    names = ["source.spm", "target.spm", "vocab.json"]
    if not all((directory / name).is_file() for name in names):
        return None
    if (directory / "target_vocab.json").is_file():
        names.append("target_vocab.json")
    files = {name: (directory / name).read_bytes() for name in names}
    vocab = _vocab(directory / "vocab.json", files["vocab.json"])
    target_vocab = vocab
    if "target_vocab.json" in files:
        target_vocab = _vocab(directory / "target_vocab.json", files["target_vocab.json"])
    source = MarianSide(files["source.spm"], vocab)
    return Tokenizer(source, MarianSide(files["target.spm"], target_vocab), files)


def _load_fairseq(directory: Path) -> Tokenizer | None:
    pair = ["dict.source.txt", "dict.target.txt"]
    names = pair if all((directory / name).is_file() for name in pair) else ["dict.txt"] * 2
    if not (directory / names[0]).is_file():
        return None
    files = {name: (directory / name).read_bytes() for name in names}
    model = None
    for name in ("sentencepiece.bpe.model", "tokenizer.model"):
        if (directory / name).is_file():
            model = files[name] = (directory / name).read_bytes()
            break
    source, target = (FairseqSide(files[n].decode("utf-8", "replace"), model) for n in names)
    return Tokenizer(source, target, files)


def _processor(model: bytes) -> SentencePieceProcessor:
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)  # unlike the constructor, refuses an empty one
    return processor


def _vocab(path: Path, content: bytes) -> dict[str, int]:
    try:
        vocab = json.loads(content)
        valid = isinstance(vocab, dict) and all(type(i) is int for i in vocab.values())
    except ValueError:
        valid = False
    if not valid or "<unk>" not in vocab:
        raise InputError(f"{path} must be a JSON object from pieces to ids that has <unk>")
    return vocab


def _well_formed(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
