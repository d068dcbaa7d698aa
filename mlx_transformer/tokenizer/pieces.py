"""SentencePiece cuts the text; its own ids are used, or those of a vocabulary beside it."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from mlx_transformer.tokenizer.sides import WORD_START, NumberedPieces, load_sentencepiece, splitter

MASK = "<mask>"
UNKNOWN = " ⁇ "  # how SentencePiece writes what it has no piece for


def sentinel(n: int) -> str:
    """What T5 writes in the place of the n-th span that is missing, counted from 0."""
    return f"<extra_id_{n}>"


class SentencePieceSide:
    """Ids are SentencePiece's own.

    Gaps (`<mask>`, `<extra_id_0>`, ...) stand for whole pieces: the space before one is part of it.
    """

    def __init__(self, model: bytes) -> None:
        self._model = load_sentencepiece(model)
        self.size: int = self._model.vocab_size()
        self.unk_id: int = self._model.unk_id()
        self._gaps = [MASK] if self.id_of(MASK) is not None else []
        while self.id_of(sentinel(len(self.sentinels))) is not None:
            self._gaps.append(sentinel(len(self.sentinels)))
        self._splitter = splitter(self._gaps)

    @property
    def sentinels(self) -> list[str]:
        return [gap for gap in self._gaps if gap != MASK]

    def id_of(self, piece: str) -> int | None:
        i = self._model.piece_to_id(piece)  # the unknown one for what it does not have
        return i if self._model.id_to_piece(i) == piece else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not self._gaps:
            return self._model.encode(list(texts))
        parts = [self._splitter.split(text) for text in texts]
        return [[i for part in each for i in self._part(part)] for each in parts]

    def _part(self, text: str) -> list[int]:
        return [self._model.piece_to_id(text)] if text in self._gaps else self._model.encode(text)

    def unknown(self, text: str) -> list[str]:
        """What of a text there is no piece for, as it stands there"""
        pieces = self._model.encode(text, out_type=str)
        return [piece for piece in pieces if self._model.piece_to_id(piece) == self.unk_id]

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode([int(i) for i in ids if 0 <= i < self.size])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._model.id_to_piece(int(i)) if 0 <= i < self.size else "" for i in ids]


class VocabularySide(NumberedPieces):
    """SentencePiece cuts, `vocab` numbers. Special tokens spelled out are those tokens."""

    def __init__(self, model: bytes, vocab: Mapping[str, int], special: Collection[str]) -> None:
        super().__init__(vocab)
        self._model = load_sentencepiece(model)
        self._special = frozenset(special)
        self._splitter = splitter(special)

    def _cut(self, text: str) -> list[str]:
        pieces: list[str] = []
        for part in self._splitter.split(text):
            pieces += [part] if part in self._special else self._cut_plain(part)
        return pieces

    def _cut_plain(self, text: str) -> list[str]:
        return self._model.encode(text, out_type=str)

    def decode(self, ids: Iterable[int]) -> str:
        pieces = [p for p in self.tokens(ids) if p and p not in self._special]
        return self._model.decode_pieces(pieces).replace(WORD_START, " ").strip()


class MarianSide(VocabularySide):
    """As published by OPUS-MT: a leading `>>xx<<` tag is a piece of its own."""

    SPECIAL = ("</s>", "<unk>", "<pad>")

    def __init__(self, model: bytes, vocab: Mapping[str, int]) -> None:
        super().__init__(model, vocab, self.SPECIAL)

    def _cut_plain(self, text: str) -> list[str]:
        end = text.find("<<")
        if not text.startswith(">>") or end == -1:
            return super()._cut_plain(text)
        return [text[: end + 2], *super()._cut_plain(text[end + 2 :])]
