"""Search any number of sentences, in batches of like length.

Several batches run side by side, each in a lane of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.blocks import lay_out_for_search, twin
from mlx_transformer.decoding.batch import COARSE, ROWS, Hypothesis, Ids, SearchBatch
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.shortlist import Shortlist
from mlx_transformer.decoding.step import SearchStep
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer

BATCH_HYPOTHESES = 2048  # a wide beam takes fewer sentences at a time
FIRST_WINDOW, LAST_WINDOW = 256, 4096  # sentences sorted together

Sentence = tuple[Ids, Ids]  # a source (or a prompt), and the ids its results begin with
Numbered = tuple[int, Sentence]
Results = list[Hypothesis]


def search(
    model: Transformer,
    sources: Sequence[Ids],
    options: SearchOptions | None = None,
    prefixes: Sequence[Ids] | None = None,
) -> list[Results]:
    """Source ids ending in eos -> by sentence, at most nbest results, best first.

    `prefixes` are the ids with which every result of a sentence begins: given, and not scored.
    The sources of a decoder alone are prompts; results are what comes behind them.
    """
    sentences = list(zip(sources, prefixes or [()] * len(sources), strict=True))
    return list(Search(model, options or SearchOptions()).each(sentences, window=None))


class BatchLimits(NamedTuple):
    """What one batch may hold."""

    sentences: int
    tokens: int  # of sources, padding included
    one_length: bool  # a decoder alone reads prompts of one length together


class Job(NamedTuple):
    """Sentences for one batch, and their numbers."""

    numbers: Sequence[int]
    sources: Sequence[Ids]
    prefixes: Sequence[Ids]


class Search:
    """A model and options, for search after search.

    `shortlist` is the model's, if it has one: options say whether a search keeps to it.
    """

    def __init__(
        self, model: Transformer, options: SearchOptions, shortlist: Shortlist | None = None
    ):
        device.keep_memory()
        self.shortlist = shortlist
        own = twin(model)
        lay_out_for_search(own)
        for name in {"source_embedding", "target_embedding"} & own.keys():
            own[name].reserve(COARSE)
        mx.eval(own.state)  # once, before several lanes use it
        self.step = SearchStep(own, options, shortlist if options.shortlist else None)
        self._limits = BatchLimits(
            sentences=max(1, BATCH_HYPOTHESES // options.width),
            tokens=device.search_tokens(options.width),
            one_length=model.config.alone == "decoder",
        )

    def under(self, options: SearchOptions) -> "Search":
        """The search with these options on what is now the default device: this one, if it is."""
        step, words = self.step, self.step.model.config.target_size
        if not options.sample and options.beam > words:
            raise InputError(
                f"a beam of {options.beam:,} is wider than the {words:,} words of the model"
            )
        if options.shortlist and self.shortlist is None:
            raise InputError("the model has no shortlist: search without one")
        if step.options == options and step.compiled == device.compiles_search():
            return self
        return Search(step.model, options, self.shortlist)

    def each(
        self, sentences: Iterable[Sentence], window: int | None = FIRST_WINDOW
    ) -> Iterator[Results]:
        """The results of each sentence, in their order, as soon as they are there.

        Sentences are read and sorted a window at a time, and windows grow: the first results come
        early, later batches fit better. None is one window for all.
        """
        numbered = enumerate(sentences)
        first = list(islice(numbered, window))
        rows = len(first) * self.step.options.width
        width = device.search_lanes(rows)
        found: dict[int, Results] = {}
        due = 0
        with device.side_by_side(width, rows):
            for job, results in self._run(jobs(first, numbered, width, self._limits), width):
                found |= zip(job.numbers, results, strict=True)
                while due in found:
                    yield found.pop(due)
                    due += 1

    def _run(self, waiting: Iterator[Job], width: int) -> Iterator[tuple[Job, list[Results]]]:
        """Jobs as they are done. Lanes begin together: they go from step to step together, and
        beside a new batch one that nears its end would mostly wait."""
        busy: dict[int, tuple[Job, SearchBatch]] = {}  # by lane
        while True:
            if not busy:
                for lane, job in zip(range(width), waiting, strict=False):
                    with device.lane(lane):
                        busy[lane] = job, SearchBatch(self.step, job.sources, job.prefixes)
            if not busy:
                return
            advance({lane: batch for lane, (_, batch) in busy.items()})
            for lane, (job, batch) in list(busy.items()):
                if not batch.open:
                    del busy[lane]
                    yield job, batch.results


def advance(batches: Mapping[int, SearchBatch]) -> None:
    """One step of each batch, each in its lane."""
    launched = []
    for lane, batch in batches.items():
        with device.lane(lane):
            launched.append(batch.step())
    mx.async_eval(launched)  # all at once: MLX queues only some operations ahead
    for lane, batch in batches.items():
        with device.lane(lane):
            batch.settle()


def jobs(
    first: list[Numbered], rest: Iterator[Numbered], width: int, limits: BatchLimits
) -> Iterator[Job]:
    """Batches of a first window, then of further ones, each twice as large"""
    window = max(FIRST_WINDOW, len(first))
    while first:
        yield from batches(first, width, limits)
        window = min(2 * window, LAST_WINDOW)
        first = list(islice(rest, window))


def batches(window: list[Numbered], width: int, limits: BatchLimits) -> Iterator[Job]:
    """Sentences of like or of one length, longest first, as many as the device takes at once.

    As many batches as there are lanes are alike: lanes go from step to step together, and the
    slowest would keep the others waiting.
    """
    waiting = sorted(window, key=lambda item: -len(item[1][0]))
    while waiting:
        longest = len(waiting[0][1][0])
        fits = min(limits.sentences, max(1, limits.tokens // max(1, longest)))
        size = width * max(n for n in ROWS if n <= fits)
        if limits.one_length:
            size = min(size, sum(len(source) == longest for _, (source, _) in waiting))
        alike, waiting = waiting[:size], waiting[size:]
        for lane in range(min(width, len(alike))):
            numbers, sentences = zip(*alike[lane::width], strict=True)
            yield Job(numbers, *zip(*sentences, strict=True))
