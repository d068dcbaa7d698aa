"""Search any number of sentences, in batches of like length.

On a CPU several batches run side by side, each in a lane of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import mlx.core as mx
import mlx.nn as nn

from mlx_transformer.cpu.lanes import LANE_ROWS, most_lanes, side_by_side
from mlx_transformer.decoding.batch import ROWS, Batch, Hypothesis, Ids
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.step import Step
from mlx_transformer.model import Transformer

BATCH_TOKENS = 1024  # of the sources of a batch, padding included
BATCH_HYPOTHESES = 2048  # a wide beam takes fewer sentences at a time
FIRST_WINDOW, LAST_WINDOW = 256, 4096  # sentences sorted together

Sentence = tuple[Ids, Ids]  # source ids ending in eos, and the ids its results begin with
Numbered = tuple[int, Sentence]
Results = list[Hypothesis]


def search(
    model: Transformer,
    sources: Sequence[Ids],
    options: SearchOptions | None = None,
    prefixes: Sequence[Ids] | None = None,
) -> list[Results]:
    """Source ids ending in eos -> by sentence, at most nbest results, best first.

    `prefixes` are the ids with which every result of a sentence begins.
    """
    sentences = list(zip(sources, prefixes or [()] * len(sources), strict=True))
    return list(Search(model, options or SearchOptions()).each(sentences, window=None))


@dataclass
class Job:
    """Sentences for one batch, and their numbers."""

    numbers: list[int]
    sentences: list[Sentence]

    def start(self, step: Step) -> Batch:
        sources, prefixes = zip(*self.sentences, strict=True)
        return Batch(step, sources, prefixes)


class Search:
    """A model and options, for search after search."""

    def __init__(self, model: Transformer, options: SearchOptions):
        lay_out(model)
        mx.eval(model.parameters())  # before several streams ask for them
        self.step = Step(model, options)

    def each(
        self, sentences: Iterable[Sentence], window: int | None = FIRST_WINDOW
    ) -> Iterator[Results]:
        """The results of each sentence, in their order, as soon as they are there.

        Sentences are read and sorted a window at a time, and windows grow: the first results come
        early, later batches fit better. None is one window for all.
        """
        numbered = enumerate(sentences)
        first = list(islice(numbered, window))
        width = self._lanes(len(first))
        found: dict[int, Results] = {}
        due = 0
        most = max(1, BATCH_HYPOTHESES // self.step.options.width)
        for job, results in self._run(jobs(first, numbered, width, most), width):
            found |= zip(job.numbers, results, strict=True)
            while due in found:
                yield found.pop(due)
                due += 1

    def _lanes(self, sentences: int) -> int:
        """How many batches to run side by side"""
        rows = sentences * self.step.options.width
        return max(1, min(most_lanes(), rows // LANE_ROWS))

    def _run(self, waiting: Iterator[Job], width: int) -> Iterator[tuple[Job, list[Results]]]:
        """Jobs as they are done; a lane that is free takes the next."""
        busy: list[tuple[mx.Stream, Job, Batch]] = []
        try:
            with side_by_side(width) as free:
                while True:
                    for lane, job in zip(list(free), waiting, strict=False):
                        with mx.stream(lane):
                            busy.append((lane, job, job.start(self.step)))
                        free.remove(lane)
                    if not busy:
                        return
                    states = []
                    for lane, _, batch in busy:
                        with mx.stream(lane):
                            states.append(batch.step())
                    mx.async_eval(states)  # all at once: MLX queues only some operations ahead
                    for lane, _, batch in busy:
                        with mx.stream(lane):
                            batch.settle()
                    for lane, job, batch in [one for one in busy if not one[2].open]:
                        free.append(lane)
                        yield job, batch.results
                    busy = [one for one in busy if one[2].open]
        finally:
            for lane, _, _ in busy:
                mx.synchronize(lane)


def lay_out(model: Transformer) -> None:
    """On CPU, matrices column by column: products of a few rows are up to 1.6 times as fast, and
    few_rows.cpp takes no others."""
    if mx.default_device() == mx.gpu:
        return
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            layer.weight = mx.contiguous(layer.weight.T).T


def jobs(first: list[Numbered], rest: Iterator[Numbered], width: int, most: int) -> Iterator[Job]:
    """Batches of a first window, then of further ones, each twice as large"""
    window = max(FIRST_WINDOW, len(first))
    while first:
        yield from batches(first, width, most)
        window = min(2 * window, LAST_WINDOW)
        first = list(islice(rest, window))


def batches(window: list[Numbered], width: int, most: int) -> Iterator[Job]:
    """Sentences of like length, longest first, at most so many and within BATCH_TOKENS.

    As many batches as there are lanes are alike: lanes go from step to step together, and the
    slowest would keep the others waiting.
    """
    waiting = sorted(window, key=lambda item: -len(item[1][0]))
    while waiting:
        longest = len(waiting[0][1][0])
        fits = min(most, max(1, BATCH_TOKENS // longest))
        size = width * max(n for n in ROWS if n <= fits)
        alike, waiting = waiting[:size], waiting[size:]
        for lane in range(min(width, len(alike))):
            numbers, sentences = zip(*alike[lane::width], strict=True)
            yield Job(list(numbers), list(sentences))
