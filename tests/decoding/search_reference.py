"""Search in plain Python over an uncached model: slow, obvious, and independent of `decoding`."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx
import numpy as np

from mlx_transformer.model import Transformer

Words = tuple[int, ...]
Scored = tuple[Words, float]  # the words, the end of sentence included, and the score


class Judge:
    """log P(next word | source, words so far), by a full forward pass over everything."""

    def __init__(self, model: Transformer, source: Sequence[int]):
        self.model, self.source = model, source
        self.known: dict[Words, np.ndarray] = {}

    def ask(self, hypotheses: Iterable[Words]) -> None:
        """Answer for many hypotheses of equal length at once."""
        new = [words for words in hypotheses if words not in self.known]
        if not new:
            return
        logits = np.array(self.logits(new))[:, -1].astype(np.float64)
        top = logits.max(axis=-1, keepdims=True)
        logp = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
        self.known.update(zip(new, logp, strict=True))

    def logits(self, hypotheses: list[Words]) -> mx.array:
        """(B,T,V); to a decoder alone the source is a prompt"""
        if self.model.config.alone == "decoder":
            return self.model(mx.array([[*self.source, *words] for words in hypotheses]))
        start = self.model.config.start_id or 0
        target = mx.array([[start, *words] for words in hypotheses])
        return self.model(mx.array([list(self.source)] * len(hypotheses)), target)

    def __call__(self, words: Words) -> np.ndarray:
        self.ask([words])
        return self.known[words]


def paper_penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def plain_penalty(length: int, alpha: float) -> float:
    return length**alpha


Forbidden = Callable[[Words], set[int]]


def beam_search(
    judge: Judge,
    beam: int,
    nbest: int,
    penalty: Callable[[int], float],
    limit: int,
    eos: int,
    forbidden: Forbidden,
) -> list[Scored]:
    opened: list[Scored] = [((), 0.0)]
    finished: list[Scored] = []
    for length in range(1, limit + 1):
        judge.ask(words for words, _ in opened)
        candidates = [
            ((*words, word), total + logp)
            for words, total in opened
            for word, logp in enumerate(judge(words))
            if word not in forbidden(words)
        ]
        candidates = best(candidates)[: 2 * beam]
        for words, total in candidates[:beam]:
            if words[-1] == eos or length == limit:
                finished.append((words, total / penalty(length)))
        finished = best(finished)[:nbest]
        opened = [c for c in candidates if c[0][-1] != eos][:beam]
        if not opened:
            break
        if len(finished) == nbest and opened[0][1] / penalty(limit) <= finished[-1][1]:
            break
    return finished


def greedy_search(
    judge: Judge, penalty: Callable[[int], float], limit: int, eos: int, forbidden: Forbidden
) -> Scored:
    words: Words = ()
    total = 0.0
    while len(words) < limit and (not words or words[-1] != eos):
        logp = judge(words)
        allowed = [w for w in range(len(logp)) if w not in forbidden(words)]
        word = max(allowed, key=lambda w: logp[w])
        words, total = (*words, word), total + logp[word]
    return words, total / penalty(len(words))


def exhaustive_search(
    judge: Judge, penalty: Callable[[int], float], limit: int, eos: int, vocabulary: Sequence[int]
) -> list[Scored]:
    """Every sequence that ends in eos or at the limit, best first."""
    scored = []
    ordinary = [w for w in vocabulary if w != eos]
    for length in range(1, limit + 1):
        for stem in itertools.product(ordinary, repeat=length - 1):
            for last in [eos] if length < limit else vocabulary:
                words = (*stem, last)
                total = math.fsum(judge(words[:i])[w] for i, w in enumerate(words))
                scored.append((words, total / penalty(length)))
    return best(scored)


def best(scored: Iterable[Scored]) -> list[Scored]:
    return sorted(scored, key=lambda s: -s[1])
