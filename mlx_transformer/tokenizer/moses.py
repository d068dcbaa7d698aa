"""Words as the Moses tools cut them, and pieces of words by subword-nmt's or fastBPE's codes."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.sides import WORD_START, NumberedPieces

END = "</w>"  # of a word
GLUE = "@@"  # at a piece that goes on
HEADER = "#version:"


class MosesBpe:
    """Text to pieces and back, in one language; `normalised`: typographic signs become plain;
    `dashes`: those within a word are words, `well @-@ known`. Without `moses` words are what
    stands between spaces."""

    def __init__(
        self,
        codes: str,
        language: str,
        *,
        moses: bool = True,
        normalised: bool = False,
        dashes: bool = True,
    ) -> None:
        self._bpe = Bpe(codes)
        self._cuts_words = moses
        self._language = language
        self._normalised = normalised
        self._dashes = dashes

    @cached_property
    def _moses(self) -> Any:
        """Imported where text is first cut: ids and weights do without."""
        try:
            import sacremoses
        except ImportError:
            raise InputError(
                "the words of this model are cut by sacremoses, which is not installed: "
                'pip install "mlx-transformer[moses]"'
            ) from None
        return sacremoses

    @cached_property
    def _tools(self) -> tuple[Any, Any, Any]:
        kinds = ("MosesPunctNormalizer", "MosesTokenizer", "MosesDetokenizer")
        normalizer, tokenizer, joiner = (
            getattr(self._moses, kind)(lang=self._language) for kind in kinds
        )
        return normalizer, tokenizer, joiner

    def cut(self, text: str) -> list[str]:
        return [piece for word in self._words(text) for piece in self._bpe.cut(word)]

    def _words(self, text: str) -> list[str]:
        if not self._cuts_words:
            return text.split()
        normalizer, tokenizer, _ = self._tools
        if self._normalised:
            text = normalizer.normalize(text)
        return tokenizer.tokenize(text, aggressive_dash_splits=self._dashes, escape=True)

    def join(self, pieces: Iterable[str]) -> str:
        words = (" ".join(pieces) + " ").replace(f"{GLUE} ", "").split()
        if not self._cuts_words:
            return " ".join(words)
        _, _, joiner = self._tools
        return joiner.detokenize(words)


def marked(pieces: Sequence[str]) -> list[str]:
    """Pieces as others show them: with a sign at the start of a word, not where one goes on"""
    inside = [False] + [piece.endswith(GLUE) for piece in pieces]
    return [
        ("" if goes_on else WORD_START) + piece.removesuffix(GLUE)
        for piece, goes_on in zip(pieces, inside, strict=False)
    ]


class BpeSide(NumberedPieces):
    """Moses's words cut by BPE codes; `vocab` numbers the pieces."""

    SPECIAL = frozenset(("<s>", "</s>", "<blank>", "<pad>"))

    def __init__(self, cutter: MosesBpe, vocab: Mapping[str, int]) -> None:
        super().__init__(vocab)
        self._cutter = cutter

    def _cut(self, text: str) -> list[str]:
        return self._cutter.cut(text)

    def decode(self, ids: Iterable[int]) -> str:
        pieces = super().tokens(ids)
        return self._cutter.join(piece for piece in pieces if piece and piece not in self.SPECIAL)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return marked(super().tokens(ids))


class Bpe:
    """The pairs that were joined most often are joined again, the first of the list first."""

    def __init__(self, codes: str) -> None:
        lines = codes.splitlines()
        has_header = bool(lines) and lines[0].startswith(HEADER)
        pairs = [line.split() for line in lines[has_header:] if line.strip()]
        if any(len(pair) not in (2, 3) for pair in pairs):
            raise InputError("the BPE codes are not pairs, one a line")
        # Before version 0.2 of subword-nmt the end of a word was a symbol of its own; fastBPE,
        # whose lines end in a count, has no header either.
        counted = any(len(pair) == 3 for pair in pairs)
        self._end_apart = not (counted or (has_header and lines[0].split()[-1] != "0.1"))
        self._ranks: Mapping[tuple[str, ...], int] = {
            tuple(pair[:2]): rank for rank, pair in reversed(list(enumerate(pairs)))
        }
        self._cut = lru_cache(maxsize=1 << 16)(self._pieces)

    def cut(self, word: str) -> list[str]:
        return list(self._cut(word))

    def _pieces(self, word: str) -> tuple[str, ...]:
        symbols = [*word, END] if self._end_apart else [*word[:-1], word[-1:] + END]
        while len(symbols) > 1:
            best = min(pairwise(symbols), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            symbols = _joined(symbols, best)
        if symbols[-1] == END:
            symbols = symbols[:-1]
        symbols[-1] = symbols[-1].removesuffix(END)
        return (*(symbol + GLUE for symbol in symbols[:-1]), symbols[-1])


def _joined(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Every occurrence of the pair made one symbol, from left to right."""
    made: list[str] = []
    for symbol in symbols:
        # What was joined is longer than the left half, so it is not joined twice.
        if made and (made[-1], symbol) == pair:
            made[-1] += symbol
        else:
            made.append(symbol)
    return made
