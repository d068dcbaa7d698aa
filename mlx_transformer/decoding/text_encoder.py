"""An encoder alone: vectors of texts, and words for the gaps in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints, overload

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding.batch import Ids, padded
from mlx_transformer.decoding.choose import top_k
from mlx_transformer.decoding.scoring import one_ahead
from mlx_transformer.decoding.writer import check_halves
from mlx_transformer.errors import InputError, naming
from mlx_transformer.inputs.checks import at_least, typed
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_to_compute
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer

# Beside a model: how its vectors are meant to be made.
FILE = "embedding.json"
Pooling = Literal["mean", "cls", "max"]


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """How the vectors of a text's tokens become one."""

    pooling: Pooling = "mean"  # of all tokens, the first one, or the greatest of each number
    normalize: bool = False  # to length 1
    max_tokens: int | None = None  # what is longer is cut; None: what the model can read

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(EmbeddingOptions).items():
            typed(name, getattr(self, name), hint)
        at_least(1, self, "max_tokens")


def embedding_options(directory: Path) -> EmbeddingOptions:
    """Those a model is meant to be used with; ours, where it does not say."""
    path = directory / FILE
    values = read_json(path) if path.is_file() else {}
    with naming(path):
        if odd := values.keys() - get_type_hints(EmbeddingOptions).keys():
            raise InputError(f"unknown option {shown(min(odd))}")
        return EmbeddingOptions(**values)


@dataclass(frozen=True)
class Guess:
    """A word for a gap, and the text with it; other gaps have their best words."""

    word: str
    probability: float
    text: str


def load_text_encoder(directory: Path, dtype: mx.Dtype | None = None) -> "TextEncoder":
    """From a model directory; `dtype` is what it computes in, None: as stored, on a CPU float32."""
    model = load_to_compute(directory, dtype)
    tokenizer = load_tokenizer(directory, model.config)
    return TextEncoder(model, tokenizer, embedding_options(directory))


class TextEncoder:
    """An encoder alone and its tokenizer. Any number of threads may share one."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, defaults: EmbeddingOptions | None = None
    ):
        check_halves(model.config, "encoder")
        mx.eval(model.state)  # MLX arrays not computed yet belong to this thread: compute them here
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults or EmbeddingOptions()

    @overload
    def embed(
        self, texts: str, options: EmbeddingOptions | None = None, **changes: Any
    ) -> np.ndarray: ...

    @overload
    def embed(
        self, texts: Sequence[str], options: EmbeddingOptions | None = None, **changes: Any
    ) -> np.ndarray: ...

    def embed(
        self, texts: str | Sequence[str], options: EmbeddingOptions | None = None, **changes: Any
    ) -> np.ndarray:
        """The vector of a text (d_model,), or of several (n,d_model).

        Single options can be given by name, as in `embed(text, pooling="cls")`.
        """
        device.tidy_thread()
        options = replace(options or self.defaults, **changes)
        several = [texts] if isinstance(texts, str) else texts
        ids = self._encoded(several, options)
        vectors = np.zeros((len(several), self.model.config.d_model), np.float32)

        def launched() -> Iterator[tuple[list[int], mx.array]]:
            for numbers in batches_of_like_length(ids):
                found = self._pooled([ids[i] for i in numbers], options)
                mx.async_eval(found)
                yield numbers, found

        for numbers, found in one_ahead(launched()):
            vectors[numbers] = np.array(found)
        return vectors[0] if isinstance(texts, str) else vectors

    def _encoded(self, texts: Sequence[str], options: EmbeddingOptions) -> list[list[int]]:
        """Whole texts, cut before what stands behind them"""
        config, frame = self.model.config, self.tokenizer.frame
        around = len(frame.source([], config.eos_id))
        room = min(options.max_tokens or config.max_length, config.max_length) - around
        pieces = self.tokenizer.encode_source_batch(texts)
        return [frame.source(ids[: max(room, 0)], config.eos_id) for ids in pieces]

    def _pooled(self, texts: Sequence[Ids], options: EmbeddingOptions) -> mx.array:
        """(B,d_model)"""
        source = ids_array(texts, self.model.config)
        hidden = self.model.encode(source).astype(mx.float32)
        return pooled(hidden, mx.array([len(ids) for ids in texts]), options)

    def fill(self, text: str, nbest: int = 5) -> list[list[Guess]]:
        """The `nbest` most probable words for each gap of the text, in their order.

        A gap is written as the model's mask, or as `<mask>` or `[MASK]`.
        """
        device.tidy_thread()
        mask = self.tokenizer.mask
        if self.model.config.word_head == "none" or mask is None:
            raise InputError("the model has no head for words: it makes vectors, it fills no gaps")
        for other in MASKS:
            text = text.replace(other, mask[0])
        ids = self.tokenizer.sources([text], self.model.config.eos_id)[0]
        places = [place for place, word in enumerate(ids) if word == mask[1]]
        if not places:
            raise InputError(f"the text has no gap: write {mask[0]} where a word is missing")
        hidden = self.model.hidden(ids_array([ids], self.model.config))[0, mx.array(places)]
        weights = mx.softmax(self.model.logits(hidden).astype(mx.float32), axis=-1)
        shares, words = top_k(weights, min(nbest, weights.shape[-1]))
        return self._guesses(text.split(mask[0]), np.array(words), np.array(shares))

    def _guesses(
        self, parts: Sequence[str], words: np.ndarray, shares: np.ndarray
    ) -> list[list[Guess]]:
        """parts (gaps + 1,) of the text around gaps; words and their probabilities (gaps, nbest)"""
        read = [[self.tokenizer.decode([word]).strip() for word in row] for row in words.tolist()]
        best = [row[0] for row in read]
        return [
            [
                Guess(word, share, joined(parts, [*best[:gap], word, *best[gap + 1 :]]))
                for word, share in zip(row, shares[gap].tolist(), strict=True)
            ]
            for gap, row in enumerate(read)
        ]


MASKS = ("[MASK]", "<mask>")


def ids_array(texts: Sequence[Ids], config: ModelConfig) -> mx.array:
    """(B,S); an empty text is padding"""
    rows = [ids or [config.pad_id] for ids in texts]
    return mx.array(padded(rows, config.pad_id, config.vocab_size, most=config.max_length))


def pooled(hidden: mx.array, lengths: mx.array, options: EmbeddingOptions) -> mx.array:
    """(B,S,d), lengths (B,) -> (B,d)"""
    real = (mx.arange(hidden.shape[1]) < mx.maximum(lengths, 1)[:, None])[..., None]
    if options.pooling == "cls":
        vectors = hidden[:, 0]
    elif options.pooling == "max":
        vectors = mx.where(real, hidden, -mx.inf).max(axis=1)
    else:
        vectors = mx.where(real, hidden, 0).sum(axis=1) / real.sum(axis=1)
    if options.normalize:
        length = mx.sqrt(mx.square(vectors).sum(axis=-1, keepdims=True))
        vectors = vectors / mx.maximum(length, 1e-12)
    return vectors


def batches_of_like_length(texts: Sequence[Ids]) -> Iterator[list[int]]:
    """Numbers of texts, the longest first, as many together as keep the device busy"""
    waiting = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    while waiting:
        size = max(1, device.search_tokens() // max(1, len(texts[waiting[0]])))
        yield waiting[:size]
        waiting = waiting[size:]


def joined(parts: Sequence[str], words: Sequence[str]) -> str:
    """The parts with the words between them; BERT's `##` goes on with the word before."""
    text = parts[0]
    for word, part in zip(words, parts[1:], strict=True):
        text = text.rstrip() + word[2:] if word.startswith("##") else text + word
        text += part
    return text
