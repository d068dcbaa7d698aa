"""Text in, text out: a model and its tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Hypothesis, search
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Translation:
    """One translation of one text."""

    text: str
    score: float
    tokens: list[str]


class Translator:
    def __init__(self, model: Transformer, tokenizer: Tokenizer):
        self.model = model
        self.tokenizer = tokenizer

    def translate(
        self, texts: Sequence[str], options: SearchOptions | None = None
    ) -> list[Translation]:
        """The best translation of each text, in their order."""
        eos = self.model.config.eos_id
        sources = [[*ids, eos] for ids in self.tokenizer.encode_source_batch(texts)]
        return [self._translation(best) for best, *_ in search(self.model, sources, options)]

    def _translation(self, found: Hypothesis) -> Translation:
        return Translation(
            self.tokenizer.decode(found.ids), found.score, self.tokenizer.target_tokens(found.ids)
        )


def load(directory: str | Path, dtype: mx.Dtype | None = None) -> Translator:
    """A translator from a model directory."""
    path = Path(directory)
    return Translator(load_model(path, dtype), load_tokenizer(path))
