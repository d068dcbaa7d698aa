"""One thread owns the models and searches everybody's sentences, a few batches in turn.

A request is cut into sentences, and sentences are what waits: those of one length are searched
together whoever sent them. Several batches are under way at once and the device's time is shared
out evenly among them, so a short line that comes late overtakes a long document.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol, TypeVar

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.decoding.batch import ROWS, SearchBatch
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Results, Search, advance
from mlx_transformer.decoding.step import SearchStep
from mlx_transformer.decoding.translator import Plan, SourceSentence, Translation, Translator
from mlx_transformer.decoding.writer import whole_characters
from mlx_transformer.serve.metrics import Metrics

MOST_BATCHES = 4
# The first sentences of a request may use every batch, later ones only half of them.
FIRST_SENTENCES = 16
WINDOW = 256  # sentences among which those of like length are looked for
LEAST_SHARE = 8  # sentences that are not worth sharing out among lanes
STEP_COST = 8  # of launching a step, in rows: what a small batch costs at least

T = TypeVar("T")
BatchKey = tuple[Translator, SearchOptions]


class BusyError(Exception):
    """The queue is full; come back after so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__("the server is busy")
        self.seconds = seconds


class Watcher(Protocol):
    """Sees the sentences of a request grow; called by the engine's thread."""

    def began(self, lines: list[int]) -> None:
        """How many sentences each line of the text has; called before the request is submitted"""

    def grew(self, sentence: int, text: str) -> None:
        """All that is certain of a sentence so far"""

    def finished(self, sentence: int, source: str, translation: Translation) -> None:
        """A sentence, what it was translated from, and its translation"""


@dataclass(eq=False)
class Request:
    """Texts to translate alike. Cancelling `future` takes them out of the search."""

    translator: Translator
    plans: list[Plan]
    options: SearchOptions
    attention: bool = False
    watcher: Watcher | None = None
    future: "Future[list[Translation]]" = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.sentences = [sentence for plan in self.plans for sentence in plan.sentences]
        self.found: list[Results] = [[] for _ in self.sentences]
        self.missing = len(self.sentences)

    @property
    def cancelled(self) -> bool:
        return self.future.cancelled()

    @property
    def batch_key(self) -> "BatchKey":
        """Requests of one key can share a batch."""
        return self.translator, self.options

    def store(self, sentence: int, results: Results) -> None:
        """Keep the results of a sentence; the last one finishes the request."""
        self.found[sentence] = results
        self.missing -= 1
        if self.watcher is not None:
            source = self.sentences[sentence]
            alone = Plan([[source]])
            translation = self.translator.translation(alone, [results], attention=self.attention)
            self.watcher.finished(sentence, source.text, translation)
        if not self.missing:
            self.finish()

    def finish(self) -> None:
        wanted = self.attention and self.watcher is None  # a watcher got it by sentence
        found = iter(self.found)
        parts = [[next(found) for _ in plan.sentences] for plan in self.plans]
        translations = [
            self.translator.translation(plan, results, attention=wanted)
            for plan, results in zip(self.plans, parts, strict=True)
        ]
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(translations)

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(frozen=True)
class Unit:
    """One sentence of a request."""

    request: Request
    number: int

    @property
    def sentence(self) -> SourceSentence:
        return self.request.sentences[self.number]

    @property
    def length(self) -> int:
        return len(self.sentence.ids)


class Running:
    """A batch under way, and whose sentences are in it."""

    def __init__(self, step: SearchStep, units: list[Unit], lane: int, spent: float) -> None:
        self.lane = lane
        self.open = dict(enumerate(units))  # by number in the batch
        self.is_late = all(unit.number >= FIRST_SENTENCES for unit in units)
        self.spent = spent  # its share of the device's time so far, in rows
        sentences = [unit.sentence for unit in units]
        with device.lane(lane):
            self.batch = SearchBatch(step, [s.ids for s in sentences], [s.start for s in sentences])

    def let_go(self) -> None:
        """Of sentences that nobody waits for any more"""
        gone = [number for number, unit in self.open.items() if unit.request.cancelled]
        self.batch.drop(gone)
        for number in gone:
            del self.open[number]

    def account(self) -> None:
        """After a step: what it cost, and what it made certain"""
        self.spent += self.batch.rows + STEP_COST
        self._tell()

    def done(self) -> Iterator[tuple[Unit, Results]]:
        """Sentences whose search has ended since the last call"""
        for number in [n for n in self.open if self.batch.results[n]]:
            yield self.open.pop(number), self.batch.results[number]

    @property
    def is_over(self) -> bool:
        return not self.batch.open

    def _tell(self) -> None:
        watched = {n: unit for n, unit in self.open.items() if unit.request.watcher}
        for number, ids in self.batch.certain(list(watched)).items():
            unit = watched[number]
            assert unit.request.watcher is not None
            text = unit.request.translator.text(unit.sentence, ids)
            unit.request.watcher.grew(unit.number, whole_characters(text))


class Engine:
    """The thread and its queue. `submit` and `call` may be used from any thread."""

    def __init__(self, metrics: Metrics, queue_limit: int) -> None:
        self._metrics, self._queue_limit = metrics, queue_limit
        self._change = threading.Condition()
        self._waiting: list[Unit] = []  # least served requests first
        self._calls: list[Callable[[], None]] = []
        self._closing = False
        self._steps: dict[BatchKey, SearchStep] = {}
        self._running: list[Running] = []
        self._lanes = device.lane_count()
        # Not a daemon: MLX must not be at work while the interpreter is taken down.
        self._thread = threading.Thread(target=self._live, name="engine")
        self._thread.start()

    def submit(self, request: Request) -> "Future[list[Translation]]":
        units = [Unit(request, number) for number in range(len(request.sentences))]
        with self._change:
            queue = [*self._waiting, *units]
            # A text longer than the queue is let in when nothing waits: else it never fits.
            if self._waiting and len(queue) > self._queue_limit:
                raise BusyError(self._metrics.seconds_for(len(queue)))
            self._waiting = sorted(queue, key=lambda unit: unit.number)
            if not units:
                self._calls.append(request.finish)
            self._change.notify()
        return request.future

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Have the engine's thread do something between two steps."""
        future: Future[T] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        with self._change:
            self._calls.append(do)
            self._change.notify()
        return future

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        with self._change:
            return not (self._waiting or self._calls or self._running)

    def close(self) -> None:
        """Finish what there is, and stop."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _live(self) -> None:
        try:
            with device.side_by_side(self._lanes):
                self._work()
        finally:
            mx.clear_streams()  # of this thread: at the end of the program MLX would look for them

    def _work(self) -> None:
        while True:
            with self._change:
                while not (self._waiting or self._calls or self._running or self._closing):
                    self._change.wait()
                calls, self._calls = self._calls, []
                chosen = self._choose()
                self._metrics.waiting = len(self._waiting)
                # Nothing to do is no reason to stop: all who waited may have hung up.
                if not (calls or chosen or self._running or self._waiting) and self._closing:
                    return
            for do in calls:
                do()
            if chosen:
                self._start(chosen)
            self._turn(self._next())

    def _choose(self) -> list[Unit]:
        """Sentences for one more batch, taken from the queue if there may be one."""
        if not self._waiting or len(self._running) >= MOST_BATCHES:
            return []
        units = self._waiting = [u for u in self._waiting if not u.request.cancelled]
        if sum(running.is_late for running in self._running) >= MOST_BATCHES // 2:
            units = [unit for unit in units if unit.number < FIRST_SENTENCES]
        if not units:
            return []
        chosen = alike(units, self._lanes)
        taken = set(chosen)
        self._waiting = [unit for unit in self._waiting if unit not in taken]
        return chosen

    def _start(self, units: list[Unit]) -> None:
        request = units[0].request
        # A new batch counts as having had as much time as the one that had least. With 0 it would
        # hold up all others.
        spent = min((running.spent for running in self._running), default=0.0)
        try:
            if request.batch_key not in self._steps:
                self._steps[request.batch_key] = Search(
                    request.translator.model, request.options
                ).step
            lanes = [running.lane for running in self._running]
            lane = min(range(self._lanes), key=lanes.count)
            self._running.append(Running(self._steps[request.batch_key], units, lane, spent))
        except Exception as error:
            for unit in units:
                unit.request.fail(error)

    def _next(self) -> list[Running]:
        """In each lane, the batch that has had least of it"""
        by_lane = [[r for r in self._running if r.lane == lane] for lane in range(self._lanes)]
        return [min(some, key=lambda running: running.spent) for some in by_lane if some]

    def _turn(self, chosen: list[Running]) -> None:
        """One step of these batches, side by side"""
        try:
            for running in chosen:
                running.let_go()
            advance({running.lane: running.batch for running in chosen})
            for running in chosen:
                running.account()
                self._deliver(running)
        except Exception as error:
            for running in chosen:
                for unit in running.open.values():
                    unit.request.fail(error)
            self._running = [running for running in self._running if running not in chosen]
        self._running = [running for running in self._running if not running.is_over]

    def _deliver(self, running: Running) -> None:
        for unit, results in running.done():
            self._metrics.translated(len(results[0].ids))
            unit.request.store(unit.number, results)


def alike(units: list[Unit], lanes: int) -> list[Unit]:
    """The first of these sentences and, as many as fit a batch, those most like it in length.

    Other lanes get their share.
    """
    first = units[0]
    window = [unit for unit in units if unit.request.batch_key == first.request.batch_key][:WINDOW]
    window.sort(key=lambda unit: abs(unit.length - first.length))
    longest = accumulate((unit.length for unit in window), max)
    fits = sum(n * length <= device.search_tokens() for n, length in enumerate(longest, 1))
    share = max(LEAST_SHARE, -(-len(window) // lanes))
    return window[: max(n for n in ROWS if n <= max(1, min(fits, share)))]
