"""A lexical shortlist: which target words the words of a sentence can become.

Firefox's models come with one. A search that keeps to it weighs some hundred words at each step
instead of tens of thousands.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding.choose import NONE
from mlx_transformer.errors import InputError, naming
from mlx_transformer.inputs.untrusted import read_header
from mlx_transformer.model import Transformer
from mlx_transformer.storage import SHORTLIST_FILE

ROUNDED = 1024  # a compiled step should meet few sizes


class Words(NamedTuple):
    """The words that a batch may write, and what it takes to weigh them."""

    ids: mx.array  # (W,)
    matrix: mx.array  # (W,d_model), their rows of the output matrix
    bias: mx.array | None  # (W,)
    banned: mx.array  # (B,1,W), -inf at words that are on the lists of other sentences only

    def logits(self, hidden: mx.array) -> mx.array:
        """(B,K,d_model) -> (B,K,W); probabilities are of the words on a sentence's own list"""
        return device.linear(hidden, self.matrix, self.bias) + self.banned

    def of_rows(self, rows: mx.array) -> "Words":
        return self._replace(banned=self.banned[rows])


class Shortlist:
    """For each source word the target words it becomes; `first` words are on every list."""

    def __init__(self, starts: np.ndarray, words: np.ndarray, first: int) -> None:
        """The list of source word i is words[starts[i]:starts[i + 1]]."""
        self._starts, self._words = starts, words
        self._first = np.arange(first)

    def of(self, source: Sequence[int], given: Sequence[int]) -> np.ndarray:
        """The words a sentence may be translated to, those that are given included"""
        lists = [self._words[self._starts[i] : self._starts[i + 1]] for i in set(source)]
        needed = [word for word in given if word != NONE]
        return np.unique(np.concatenate([self._first, needed, *lists]).astype(np.int32))

    def words(
        self, model: Transformer, sources: Sequence[Sequence[int]], given: np.ndarray, coarse: bool
    ) -> Words:
        """Of a batch: the words of all its sentences, and which of them are whose"""
        own = [self.of(*sentence) for sentence in zip(sources, given.tolist(), strict=True)]
        ids = np.unique(np.concatenate(own))
        if coarse:
            others = np.setdiff1d(np.arange(model.config.target_size, dtype=ids.dtype), ids)
            ids = np.concatenate([ids, others[: -len(ids) % ROUNDED]])
        banned = np.full((len(own), 1, len(ids)), -np.inf, np.float32)
        for row, allowed in zip(banned, own, strict=True):
            row[0, np.isin(ids, allowed)] = 0
        return Words(mx.array(ids), *output_rows(model, mx.array(ids)), mx.array(banned))


def output_rows(model: Transformer, words: mx.array) -> tuple[mx.array, mx.array | None]:
    """What the logits of some words (W,) are computed with -> (W,d_model), (W,)"""
    config = model.config
    layer = model[config.output_matrix]
    if isinstance(layer, nn.QuantizedLinear):
        weight, scales, biases = (layer[name][words] for name in ("weight", "scales", "biases"))
        rows = mx.dequantize(weight, scales, biases, layer.group_size, layer.bits)
    else:
        rows = layer.weight[words] if isinstance(layer, nn.Linear) else layer(words)
    return rows * config.logit_scale, model.output_bias[words] if config.output_bias else None


def load_shortlist(directory: Path, config: ModelConfig) -> Shortlist | None:
    """The shortlist of a model directory, if it has one"""
    path = directory / SHORTLIST_FILE
    if not path.is_file():
        return None
    with naming(path):
        found = {name: (each.dtype, len(each.shape)) for name, each in read_header(path).items()}
        if found != {"starts": ("int32", 1), "words": ("int32", 1), "first": ("int32", 0)}:
            raise InputError("this is no shortlist of words")
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict)
        starts, words, first = (np.array(arrays[name]) for name in ("starts", "words", "first"))
        rows = config.vocab_size
        if len(starts) != rows + 1 or starts[0] or starts[-1] != len(words):
            raise InputError(f"the shortlist is not of the {rows:,} source words of the model")
        if (np.diff(starts) < 0).any() or not 0 <= first <= config.target_size:
            raise InputError("the shortlist is damaged")
        if len(words) and not 0 <= words.min() <= words.max() < config.target_size:
            raise InputError("the shortlist names words that the model does not have")
    return Shortlist(starts, words, int(first))
