"""ByT5: the ids are the bytes of the text, after three special ones."""

import re
from collections.abc import Iterable, Sequence

from mlx_transformer.tokenizer.sides import WORD_START

SPECIAL = ("<pad>", "</s>", "<unk>")
OFFSET = len(SPECIAL)
SENTINELS = 125  # <extra_id_0> and so on, after the bytes
# As in the original, special tokens spelled out in a text take the spaces around them along.
_SPELLED = re.compile(r"\s*(<pad>|</s>|<unk>)\s*|(<extra_id_\d+>)")


class ByteSide:
    size = OFFSET + 256 + SENTINELS
    unk_id = SPECIAL.index("<unk>")

    def id_of(self, piece: str) -> int | None:
        return SPECIAL.index(piece) if piece in SPECIAL else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in filter(None, _SPELLED.split(text)):
            ids += self._special_id(part) or [byte + OFFSET for byte in part.encode()]
        return ids

    def _special_id(self, part: str) -> list[int]:
        if part in SPECIAL:
            return [SPECIAL.index(part)]
        sentinel = re.fullmatch(r"<extra_id_(\d+)>", part)
        if sentinel and int(sentinel[1]) < SENTINELS:
            return [OFFSET + 256 + int(sentinel[1])]
        return []

    def decode(self, ids: Iterable[int]) -> str:
        known = bytes(int(i) - OFFSET for i in ids if OFFSET <= i < OFFSET + 256)
        return known.decode("utf-8", "ignore")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._token(int(i)) for i in ids]

    def _token(self, i: int) -> str:
        if 0 <= i < OFFSET:
            return SPECIAL[i]
        byte = i - OFFSET
        if byte == ord(" "):
            return WORD_START
        if 0 <= byte < 256:
            return chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>"
        return f"<extra_id_{byte - 256}>" if i < self.size else ""
