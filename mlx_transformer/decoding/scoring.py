"""How probable a given translation is."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.decoding.batch import Ids, known, padded
from mlx_transformer.model import Transformer

Item = TypeVar("Item")


@dataclass(frozen=True)
class Score:
    """Log-probability of a translation and its end, and how many tokens that is."""

    logp: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logp / self.tokens) if self.tokens else math.nan

    def __add__(self, other: "Score") -> "Score":
        return Score(self.logp + other.logp, self.tokens + other.tokens)


def score_pairs(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], given: int = 0
) -> list[Score]:
    """log P(target | source) of each pair, both whole; the first `given` target ids are certain."""
    device.tidy_thread()
    scores = [Score(0.0, 0)] * len(sources)

    def launched() -> Iterator[tuple[list[int], mx.array]]:
        for numbers in _batches(sources, targets):
            batch = [sources[i] for i in numbers], [targets[i] for i in numbers]
            found = _log_probabilities(model, *batch, given)
            mx.async_eval(found)
            yield numbers, found

    for numbers, found in one_ahead(launched()):
        for i, logp in zip(numbers, np.array(found).tolist(), strict=True):
            scores[i] = Score(logp, len(targets[i]) - given)
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
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], given: int
) -> mx.array:
    """(B,)"""
    config = model.config
    start = config.first_id
    source = known(padded(sources, config.pad_id, most=config.max_length), config.vocab_size)
    expected = known(padded(targets, config.pad_id, most=config.max_length), config.target_size)
    shifted = padded([[start, *ids[:-1]] for ids in targets], config.pad_id)
    logits = model(mx.array(source), mx.array(shifted)).astype(mx.float32)
    chosen = mx.take_along_axis(logits, mx.array(expected)[..., None], axis=-1)[..., 0]
    lengths = mx.array([[len(ids)] for ids in targets])
    place = mx.arange(expected.shape[1])
    scored = (given <= place) & (place < lengths)
    return mx.where(scored, chosen - device.logsumexp(logits), 0.0).sum(axis=1)


def _batches(sources: Sequence[Ids], targets: Sequence[Ids]) -> Iterator[list[int]]:
    """Pair numbers, pairs of like length together"""
    batch: list[int] = []
    width = 0
    for i in sorted(range(len(sources)), key=lambda i: (len(targets[i]), len(sources[i]))):
        wider = max(width, len(sources[i]) + len(targets[i]))
        if batch and wider * (len(batch) + 1) > device.search_tokens():
            yield batch
            batch, wider = [], len(sources[i]) + len(targets[i])
        batch.append(i)
        width = wider
    if batch:
        yield batch
