"""tokenizer.json: read whole by the `tokenizers` library."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.sides import WORD_START

BYTE_SPACE = "Ġ"  # how byte-level BPE writes a space


class JsonSide:
    """`rows` is how many ids the model has. Some lack tokens of their pre-training, such as <mask>:
    those are unknown."""

    def __init__(self, content: bytes, rows: int | None = None) -> None:
        try:
            self._model = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library knows no narrower one
            raise InputError(f"tokenizer.json is damaged: {error}") from error
        self._model.no_truncation()
        self._model.no_padding()
        self._byte_level = isinstance(self._model.decoder, tokenizers.decoders.ByteLevel)
        self.vocab: Mapping[str, int] = self._model.get_vocab(with_added_tokens=True)
        self._cut = self._only_special_beyond(rows)
        if self._cut:
            self.vocab = {token: i for token, i in self.vocab.items() if i < (rows or 0)}
        self.size = max(self.vocab.values(), default=-1) + 1
        self.unk_id = self._find_unknown()

    def _only_special_beyond(self, rows: int | None) -> bool:
        beyond = [i for i in self.vocab.values() if rows is not None and i >= rows]
        added = self._model.get_added_tokens_decoder()
        return bool(beyond) and all(i in added for i in beyond)

    def _find_unknown(self) -> int:
        """A vocabulary of bytes knows everything; its <unk> is never used, and may be missing."""
        return next((i for t in ("<unk>", "[UNK]") if (i := self.id_of(t)) is not None), 0)

    def id_of(self, piece: str) -> int | None:
        return self._model.token_to_id(piece)

    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the file puts before and after a text."""
        bare, whole = (self._model.encode("a", add_special_tokens=s).ids for s in (False, True))
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        return (), ()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
        if not self._cut:
            return [encoding.ids for encoding in found]
        return [[i if i < self.size else self.unk_id for i in each.ids] for each in found]

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode([int(i) for i in ids if 0 <= i < self.size])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._token(int(i)) for i in ids]

    def _token(self, i: int) -> str:
        token = self._model.id_to_token(i) if i >= 0 else None
        if token is None or not self._byte_level:
            return token or ""
        start = WORD_START if token.startswith(BYTE_SPACE) else ""
        return start + self._model.decoder.decode([token.removeprefix(BYTE_SPACE)])


def byte_level_bpe(vocab: Mapping[str, int], merges: str, special: Sequence[str]) -> bytes:
    """The tokenizer.json of a BART directory that has only vocab.json and merges.txt."""
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    model = tokenizers.Tokenizer(tokenizers.models.BPE(dict(vocab), pairs))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    known = [token for token in special if token in vocab]
    model.add_special_tokens(
        [tokenizers.AddedToken(t, lstrip=t == "<mask>", special=True) for t in known]
    )
    return model.to_str().encode()


def word_pieces(words: str, settings: Mapping[str, Any]) -> bytes:
    """The tokenizer.json of a BERT directory that has only vocab.txt."""
    vocab = {word.rstrip("\r"): i for i, word in enumerate(words.removesuffix("\n").split("\n"))}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocab]
    if missing:
        raise InputError(f"vocab.txt has no {missing[0]}: it is not BERT's")
    lower = settings.get("do_lower_case", True)
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.decoder = tokenizers.decoders.WordPiece()
    around = [(token, vocab[token]) for token in ("[SEP]", "[CLS]")]
    model.post_processor = tokenizers.processors.BertProcessing(*around)
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    model.add_special_tokens([token for token in special if token in vocab])
    return model.to_str().encode()
