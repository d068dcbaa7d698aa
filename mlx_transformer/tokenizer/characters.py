"""Vocabularies that number whole characters, or whole words."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from mlx_transformer.tokenizer.sides import WORD_START


class CharacterSide:
    """Every character has its id; what is not listed is the unknown one."""

    def __init__(self, vocab: Mapping[str, int], special: Collection[int], unk_id: int) -> None:
        self._ids = vocab
        self._special = frozenset(special)
        self._characters = {i: character for character, i in vocab.items()}
        self.size = max([*vocab.values(), *special]) + 1
        self.unk_id = unk_id

    def id_of(self, piece: str) -> int | None:
        return self._ids.get(piece)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(unit, self.unk_id) for unit in self._units(text)] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return self._join([self._characters.get(int(i), "") for i in ids if i not in self._special])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._characters.get(int(i), "").replace(" ", WORD_START) for i in ids]

    def _units(self, text: str) -> Iterable[str]:
        return text

    def _join(self, units: list[str]) -> str:
        return "".join(units)


class WordSide(CharacterSide):
    """Every word between spaces has its id."""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [WORD_START + token for token in super().tokens(ids)]

    def _units(self, text: str) -> Iterable[str]:
        return text.split()

    def _join(self, units: list[str]) -> str:
        return " ".join(filter(None, units))
