"""Batches by token budget on a fixed grid of shapes, in an order that any position restores.

A compiled step is traced once a shape, so shapes must be few; padding is wasted work, so they must
fit the text. Both are settled once: pairs are put into buckets of one shape (B, S, T) each, chosen
from the lengths in the corpus. What changes from epoch to epoch is only which pairs of a bucket
meet in a batch and in which order the batches come, and that follows from (seed, epoch) alone.
"""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.data.corpus import ParallelCorpus, Sentences
from mlx_transformer.data.grid import Shape, choose_grid
from mlx_transformer.data.objectives import Objective
from mlx_transformer.errors import InputError

T = TypeVar("T")


class Position(NamedTuple):
    """A place in the stream: the batch that comes next."""

    epoch: int = 0
    batch: int = 0


START = Position()


@dataclass(frozen=True)
class Batch:
    """What one step reads; B rows of which the last may be nothing but padding.

    Of several processes each has its own rows of a batch; `position` and `total_target_tokens`
    are those of the whole.
    """

    source: np.ndarray  # (B,S) int32: pieces, end
    target_in: np.ndarray  # (B,T) int32: start, pieces
    target_out: np.ndarray  # (B,T) int32: pieces, end
    source_tokens: int  # real ones here, end tokens included
    target_tokens: int
    total_target_tokens: int  # of all processes
    position: Position  # where the stream goes on after this batch: what a checkpoint stores


class PlannedBatch(NamedTuple):
    """A batch before it is read: its shape and the pairs in it."""

    shape: Shape
    pairs: np.ndarray  # (at most B,) indices into the corpus
    epoch: int


class Batches:
    """All batches of a corpus, epoch after epoch.

    `batch_tokens` bounds B*S and B*T alike. With `size` processes, process `rank` gets every
    size-th row of each batch; together they see what one process would. With an objective the
    corpus is plain text, of which that makes what is read and what is expected.
    """

    def __init__(
        self,
        corpus: ParallelCorpus,
        config: ModelConfig,
        batch_tokens: int,
        *,
        seed: int = 0,
        max_shapes: int = 32,
        rank: int = 0,
        size: int = 1,
        objective: Objective | None = None,
    ) -> None:
        self.corpus = corpus
        self._objective = objective
        self.config = config
        self.seed = seed
        self.rank, self.size = rank, size
        # What a pair takes in a batch: its pieces and the end token.
        eos = (config.eos_id,)
        self._ends = (eos if corpus.source_end is None else corpus.source_end, eos)
        if objective is not None:
            self._lengths = objective.lengths(corpus.source.lengths())
        else:
            lengths = np.stack([corpus.source.lengths(), corpus.target.lengths()], axis=1)
            self._lengths = lengths + [len(end) for end in self._ends]
        self._check_model()
        self.shapes, shape_of = choose_grid(self._lengths, batch_tokens, max_shapes)
        self._buckets = [np.flatnonzero(shape_of == k) for k in range(len(self.shapes))]

    def _check_model(self) -> None:
        corpus, config = self.corpus, self.config
        if not len(corpus):
            raise InputError("there are no sentence pairs to make batches of")
        if (longest := self._lengths.max()) > config.max_length:
            raise InputError(
                f"the longest sentence has {longest} tokens, but the model takes "
                f"{config.max_length}: lower data.max_length"
            )
        for name, ids, known in (
            ("source", corpus.source_vocab_size, config.vocab_size),
            ("target", corpus.target_vocab_size, config.target_size),
        ):
            if ids > known:
                raise InputError(
                    f"the {name} text is prepared with {ids} pieces, but the model knows {known}: "
                    "prepare it with the model's own tokenizer"
                )

    def __len__(self) -> int:
        """Batches in an epoch."""
        filled = zip(self._buckets, self.shapes, strict=True)
        return sum(ceil(len(bucket) / shape.B) for bucket, shape in filled)

    @property
    def efficiency(self) -> float:
        """The share of real tokens among all that the batches of an epoch hold."""
        filled = zip(self._buckets, self.shapes, strict=True)
        room = sum(ceil(len(pairs) / B) * B * (S + T) for pairs, (B, S, T) in filled)
        return float(self._lengths.sum()) / room

    def epoch(self, number: int) -> list[PlannedBatch]:
        """The batches of an epoch in their order: every pair of the corpus once."""
        random = np.random.default_rng([self.seed, number])
        planned = []
        for shape, bucket in zip(self.shapes, self._buckets, strict=True):
            pairs = random.permutation(bucket)
            planned += [
                PlannedBatch(shape, pairs[i : i + shape.B], number)
                for i in range(0, len(pairs), shape.B)
            ]
        return [planned[i] for i in random.permutation(len(planned))]

    def stream(self, start: Position = START) -> Iterator[Batch]:
        """All batches from a position on, without end."""
        epoch, first = start
        while True:
            planned = self.epoch(epoch)
            for index in range(first, len(planned)):
                last = index + 1 == len(planned)
                after = Position(epoch + 1, 0) if last else Position(epoch, index + 1)
                yield self.read(planned[index], after)
            epoch, first = epoch + 1, 0

    def read(self, planned: PlannedBatch, position: Position = START) -> Batch:
        """The arrays of a batch: this process' rows of them."""
        (B, S, T), pairs, epoch = planned
        mine = pairs[self.rank :: self.size]
        rows = ceil(B / self.size)
        if self._objective is None:
            source, target_out = self._pairs(mine, (rows, S), (rows, T))
        else:
            source, target_out = self._examples(mine, epoch, (rows, S), (rows, T))
        if self._objective is not None and self._objective.aligned:
            target_in = source
        else:
            target_in = self._shifted(target_out, self._lengths[mine, 1])
        source_tokens, target_tokens = map(int, self._lengths[mine].sum(0))
        total = int(self._lengths[pairs, 1].sum())
        return Batch(source, target_in, target_out, source_tokens, target_tokens, total, position)

    def _pairs(
        self, mine: np.ndarray, read: tuple[int, int], written: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets with their ends, as arrays of these shapes"""
        corpus, config = self.corpus, self.config
        source = _rows(corpus.source, mine, read, config, config.vocab_size, self._ends[0])
        target = _rows(corpus.target, mine, written, config, config.target_size, self._ends[1])
        return source, target

    def _examples(
        self, mine: np.ndarray, epoch: int, read: tuple[int, int], expected: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the objective makes of these texts, as arrays of these shapes"""
        config = self.config
        made = zip(*(self.example(int(text), epoch) for text in mine), strict=True)
        sides = [Sentences.from_lists(side) for side in made] or [Sentences.from_lists([])] * 2
        every = np.arange(len(mine))
        shapes = zip(sides, (read, expected), strict=True)
        source, target = (
            _rows(s, every, shape, config, config.vocab_size, ()) for s, shape in shapes
        )
        return source, target

    def example(self, text: int, epoch: int) -> tuple[list[int], list[int]]:
        """What the objective makes of a text in an epoch: always the same."""
        assert self._objective is not None
        random = np.random.default_rng([self.seed, epoch, text])
        return self._objective.example(self.corpus.source[text].tolist(), random)

    def _shifted(self, target_out: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """What the decoder reads: the start, and all but the last token"""
        target_in = np.full_like(target_out, self.config.pad_id)
        # Without a start token the decoder starts from a zero vector whatever stands there.
        target_in[: len(lengths), 0] = self.config.first_id
        inside = np.arange(1, target_out.shape[1]) < lengths[:, None]
        target_in[: len(lengths), 1:][inside] = target_out[: len(lengths), :-1][inside]
        return target_in


def _rows(
    sentences: Sentences,
    chosen: np.ndarray,
    shape: tuple[int, int],
    config: ModelConfig,
    words: int,
    end: tuple[int, ...],
) -> np.ndarray:
    """Sentences and their ends as rows of an array of that shape, padded."""
    lengths = sentences.offsets[chosen + 1] - sentences.offsets[chosen]
    inside = np.arange(shape[1]) < lengths[:, None]
    rows = np.full(shape, config.pad_id, np.int32)
    ids = np.concatenate([sentences[i] for i in chosen]) if len(chosen) else lengths
    if ids.size and ids.max() >= words:  # MLX would read beyond the word matrix
        raise InputError(
            f"the prepared text has the id {ids.max()}, but the model knows {words:,} words: "
            "the data is damaged, prepare it again"
        )
    rows[: len(chosen)][inside] = ids
    for place, token in enumerate(end):
        rows[np.arange(len(chosen)), lengths + place] = token
    return rows


def prefetch(items: Iterator[T], depth: int = 4) -> Iterator[T]:
    """The same items, made ahead in a thread that ends when this iterator is closed.

    Not for items with MLX arrays: those belong to the thread that made them.
    """
    # An item is wrapped in a tuple; an exception is handed over as it is; None is the end.
    ready: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(message: tuple[T] | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(message, timeout=0.1)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for item in items:
                put((item,))
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    worker = threading.Thread(target=work, name="prefetch", daemon=True)
    worker.start()
    try:
        while (message := ready.get()) is not None:
            if isinstance(message, BaseException):
                raise message
            yield message[0]
    finally:
        stopped.set()
        worker.join()
