"""A fairseq dictionary: ids are the lines of a word list."""

from collections.abc import Iterable, Sequence

from mlx_transformer.tokenizer.moses import GLUE, MosesBpe, marked
from mlx_transformer.tokenizer.sides import WORD_START, load_sentencepiece


class FairseqSide:
    """Ids are lines of a word list after four special tokens; words are cut beforehand.

    Beside a SentencePiece model the words are its pieces, beside BPE codes those of Moses's words.
    Without, text is taken as tokenised: words are separated by spaces, and `@@` at the end of one
    glues it to the next.
    """

    SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")

    def __init__(self, words: str, model: bytes | None, moses: MosesBpe | None = None) -> None:
        self._moses = moses
        self._model = None if model is None else load_sentencepiece(model)
        lines = (line.rstrip().removesuffix(" #fairseq:overwrite") for line in words.split("\n"))
        self._words = [*self.SPECIAL, *(line.rsplit(" ", 1)[0] for line in lines if line)]
        self._ids = {word: i for i, word in enumerate(self._words)}

    @property
    def size(self) -> int:
        return len(self._words)

    @property
    def unk_id(self) -> int:
        return self.SPECIAL.index("<unk>")

    def id_of(self, piece: str) -> int | None:
        return self._ids.get(piece)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(word, self.unk_id) for word in words] for words in self._cut(texts)]

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        if self._moses is not None:
            return [self._moses.cut(text) for text in texts]
        if self._model is not None:
            return self._model.encode(list(texts), out_type=str)
        return [text.split() for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        words = self._known(ids)
        if self._model is not None:
            return "".join(words).replace(WORD_START, " ").strip()
        if self._moses is not None:
            return self._moses.join(words)
        return (" ".join(words) + " ").replace(GLUE + " ", "").strip()

    def _known(self, ids: Iterable[int]) -> list[str]:
        skipped = len(self.SPECIAL) - 1  # <unk> is the last of them and stays visible
        return [self._words[int(i)] for i in ids if skipped <= i < self.size]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        words = [self._words[int(i)] if 0 <= i < self.size else "" for i in ids]
        return words if self._model is not None else marked(words)
