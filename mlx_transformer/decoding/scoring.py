"""How probable a given translation is, or to a decoder alone a text."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding.batch import Ids, padded
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer

Item = TypeVar("Item")


@dataclass(frozen=True)
class Score:
    """Log-probability of a translation and its end, or of a text, and how many tokens that is."""

    logp: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logp / self.tokens) if self.tokens else math.nan

    def __add__(self, other: "Score") -> "Score":
        return Score(self.logp + other.logp, self.tokens + other.tokens)


def check_are_lists(*texts: Sequence[str]) -> None:
    """A text is a sequence, too: its letters would be scored."""
    if any(isinstance(each, str) for each in texts):
        raise InputError("score takes lists of texts: put a single one in brackets, [text]")


def score_pairs(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], given: int = 0
) -> list[Score]:
    """log P(target | source) of each pair, both whole; the first `given` target ids are certain."""
    config = model.config

    def logits(numbers: list[int]) -> mx.array:
        pad, most = config.pad_id, config.max_length
        source = padded([sources[i] for i in numbers], pad, config.vocab_size, most=most)
        shifted = [[config.first_id, *targets[i][:-1]] for i in numbers]
        target = padded(shifted, pad, config.target_size, most=most)
        return model(mx.array(source), mx.array(target))

    return _scores(model, targets, list(map(len, sources)), logits, given)


def score_texts(model: Transformer, texts: Sequence[Ids]) -> list[Score]:
    """log P(text | its first id) of each text, by a decoder alone"""
    config = model.config

    def logits(numbers: list[int]) -> mx.array:
        ids = [texts[i][:-1] for i in numbers]
        text = padded(ids, config.pad_id, config.vocab_size, most=config.max_length)
        return model(mx.array(text))

    return _scores(model, [ids[1:] for ids in texts], [0] * len(texts), logits, given=0)


def _scores(
    model: Transformer,
    expected: Sequence[Ids],
    sizes: Sequence[int],
    logits: Callable[[list[int]], mx.array],
    given: int,
) -> list[Score]:
    """By the logits of some, given their numbers; sizes are what each needs besides"""
    device.tidy_thread()
    scores = [Score(0.0, 0)] * len(expected)

    def launched() -> Iterator[tuple[list[int], mx.array]]:
        for numbers in _batches(expected, sizes):
            found = _log_probabilities(
                model.config, logits(numbers), [expected[i] for i in numbers], given
            )
            mx.async_eval(found)
            yield numbers, found

    for numbers, found in one_ahead(launched()):
        for i, logp in zip(numbers, np.array(found).tolist(), strict=True):
            scores[i] = Score(logp, len(expected[i]) - given)
    return scores


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each when the one after it has been asked for: the device works on that one
    while the host reads this one."""
    iterator = iter(items)
    for before in islice(iterator, 1):
        for item in iterator:
            yield before
            before = item
        yield before


def _log_probabilities(
    config: ModelConfig, logits: mx.array, expected: Sequence[Ids], given: int
) -> mx.array:
    """logits (B,T,V) -> (B,)"""
    logits = logits.astype(mx.float32)
    words = mx.array(padded(expected, config.pad_id, config.target_size))
    chosen = mx.take_along_axis(logits, words[..., None], axis=-1)[..., 0]
    lengths = mx.array([[len(ids)] for ids in expected])
    place = mx.arange(words.shape[1])
    scored = (given <= place) & (place < lengths)
    return mx.where(scored, chosen - device.logsumexp(logits), 0.0).sum(axis=1)


def _batches(expected: Sequence[Ids], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Numbers, those of like length together; nothing is expected of some"""
    batch: list[int] = []
    width = 0
    numbers = [i for i, ids in enumerate(expected) if ids]
    for i in sorted(numbers, key=lambda i: (len(expected[i]), sizes[i])):
        wider = max(width, sizes[i] + len(expected[i]))
        if batch and wider * (len(batch) + 1) > device.search_tokens():
            yield batch
            batch, wider = [], sizes[i] + len(expected[i])
        batch.append(i)
        width = wider
    if batch:
        yield batch
