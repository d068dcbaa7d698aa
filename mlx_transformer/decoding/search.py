"""Search on the device: from source ids to the best target ids.

A batch advances all its sentences by one token a step. The host only launches steps: it reads one
flag a sentence, and that one step late, so that the device never waits for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np

from mlx_transformer.decoding import choose
from mlx_transformer.decoding.cache import CHUNK, SlotCache, empty_slots, grow
from mlx_transformer.decoding.choose import NONE, Hypotheses, Moment
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.errors import InputError
from mlx_transformer.model import KeysValues, Transformer

Ids = Sequence[int]

# Batches shrink to these sizes only, and sources are padded to these lengths: few shapes.
ROWS = sorted({2**i for i in range(11)} | {3 * 2**i for i in range(9)})
SOURCE_MULTIPLE = 8
BATCH_TOKENS = 1024


@dataclass(frozen=True)
class Hypothesis:
    """One result: its ids, without the end of sentence."""

    ids: list[int]
    score: float  # log-probability / penalty(length)
    logp: float  # log-probability of the ids and of the end of sentence
    complete: bool  # false: cut at the length limit


def search(
    model: Transformer,
    sources: Sequence[Ids],
    options: SearchOptions | None = None,
    prefixes: Sequence[Ids] | None = None,
) -> list[list[Hypothesis]]:
    """Search one batch: source ids ending in eos -> by sentence, at most nbest results, best first.

    `prefixes` are the ids with which every result of a sentence begins.
    """
    batch = Batch(model, sources, options or SearchOptions(), prefixes)
    while batch.open:
        batch.step()
    return batch.results


def search_all(
    model: Transformer,
    sources: Sequence[Ids],
    options: SearchOptions | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[Hypothesis]]:
    """Search any number of sentences, batched by length; results in the order of the sources."""
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in batches(sources, batch_tokens):
        found = search(model, [sources[i] for i in batch], options)
        for i, hypotheses in zip(batch, found, strict=True):
            results[i] = hypotheses
    return results


def batches(sources: Sequence[Ids], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences of like length, longest first, at most `batch_tokens` with padding."""
    batch: list[int] = []
    for i in sorted(range(len(sources)), key=lambda i: -len(sources[i])):
        if batch and (len(batch) + 1) * len(sources[batch[0]]) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class Batch:
    """Sentences in search together; those that are done leave it."""

    def __init__(
        self,
        model: Transformer,
        sources: Sequence[Ids],
        options: SearchOptions,
        prefixes: Sequence[Ids] | None = None,
    ):
        check(model, sources, options)
        config, B, K = model.config, len(sources), options.width
        self.model, self.options = model, options
        self.results: list[list[Hypothesis]] = [[] for _ in sources]
        self._sentences = np.arange(B)  # by row of the batch
        self._t = 0
        self._late_flags: mx.array | None = None
        self._limits = np.array(
            [options.limit(len(ids) - 1, config.max_length) for ids in sources], np.int32
        )
        self._limit_penalties = np.array([options.penalty(n) for n in self._limits], np.float32)
        self._draws = draws(sources, options, self._limits)
        self._forced = padded(prefixes or [()] * B, NONE)
        self._choose = chooser(options, config.eos_id)
        if B == 0:
            return
        source = mx.array(padded(sources, config.pad_id, SOURCE_MULTIPLE))
        memory = model.encode(source)
        self._memory = model.memory_keys_values(memory)
        self._memory_mask = model.source_mask(source)
        self._caches = empty_slots(config, B, K, memory.dtype)
        start_id = config.pad_id if config.start_id is None else config.start_id
        self._hyps = choose.start(start_id, B, K, options.nbest, CHUNK, apart=options.sample)

    @property
    def open(self) -> bool:
        return len(self._sentences) > 0

    def step(self) -> mx.array:
        """Launch the next token of every open sentence and return them, not yet evaluated: (B,K)"""
        if self._t == self._hyps.words.shape[-1]:
            self._make_room()
        bar = barred(self.model, self.options, self._hyps, self._t, self._forced)
        self._hyps, self._caches = advance(
            self.model,
            self._choose,
            self._hyps,
            self._caches,
            self._memory,
            self._memory_mask,
            bar,
            self._moment(),
        )
        mx.async_eval(self._hyps, self._caches)
        tokens = self._hyps.tokens
        self._t += 1
        flags, self._late_flags = self._late_flags, self._hyps.done
        if self._t == self._limits.max():
            self._let_go(np.ones(len(self._sentences), np.bool_))
        elif flags is not None:
            self._let_go(np.array(flags))
        return tokens

    def _moment(self) -> Moment:
        options, length = self.options, self._t + 1
        return Moment(
            t=mx.array(self._t),
            penalty=mx.array(options.penalty(length)),
            last=mx.array(length >= self._limits),
            best_penalty=mx.array(self._limit_penalties),
            draws=mx.array(self._draws[:, :, self._t]) if options.sample else None,
        )

    def _make_room(self) -> None:
        K = self.options.width
        self._caches = [
            (grow(keys, 2, CHUNK * K), grow(values, 2, CHUNK * K)) for keys, values in self._caches
        ]
        longer = {
            name: grow(getattr(self._hyps, name), 2, CHUNK, NONE)
            for name in ("words", "slots", "final_words")
        }
        self._hyps = self._hyps._replace(**longer)

    def _let_go(self, done: np.ndarray) -> None:
        """Store what is done, and go on with fewer rows if that makes the batch a size smaller."""
        still = np.flatnonzero(~done)
        size = next((n for n in ROWS if n >= len(still)), len(done))
        if len(still) and size >= len(done):
            return
        self._store(np.flatnonzero(done))
        # Sentences already done fill up the rows; they no longer change.
        keep = np.concatenate([still, np.flatnonzero(done)])[: size if len(still) else 0]
        self._sentences = self._sentences[keep]
        if not len(keep):
            return
        self._limits, self._limit_penalties = self._limits[keep], self._limit_penalties[keep]
        self._draws, self._forced = self._draws[keep], self._forced[keep]
        rows = mx.array(keep)
        self._hyps = Hypotheses(*(x[rows] for x in self._hyps))
        self._late_flags = self._hyps.done
        self._memory_mask = self._memory_mask[rows]
        self._memory = [(k[rows], v[rows]) for k, v in self._memory]
        self._caches = [(k[rows], v[rows]) for k, v in self._caches]

    def _store(self, rows: np.ndarray) -> None:
        scores, words = np.array(self._hyps.final_scores), np.array(self._hyps.final_words)
        for row in rows:
            found = [
                self._hypothesis(word, float(score))
                for word, score in zip(words[row], scores[row], strict=True)
                if score > -np.inf
            ]
            # A search that may say nothing at all (everything banned) still has an answer.
            found = found or [Hypothesis([], -np.inf, -np.inf, complete=False)]
            self.results[self._sentences[row]] = sorted(found, key=lambda h: -h.score)

    def _hypothesis(self, words: np.ndarray, score: float) -> Hypothesis:
        ids = words[words != NONE].tolist()
        complete = ids[-1] == self.model.config.eos_id
        logp = score * self.options.penalty(len(ids))
        return Hypothesis(ids[:-1] if complete else ids, score, logp, complete)


Chooser = Callable[[Hypotheses, mx.array, mx.array, Moment], Hypotheses]


def chooser(options: SearchOptions, eos: int) -> Chooser:
    """The step these options ask for."""
    if options.sample:
        return partial(choose.draw_step, eos=eos, choose=choose.sampler(options))
    if options.beam == 1:
        return partial(choose.draw_step, eos=eos, choose=choose.greedy)
    return partial(choose.beam_step, eos=eos)


def advance(
    model: Transformer,
    choose_next: Chooser,
    hyps: Hypotheses,
    caches: list[KeysValues],
    memory: list[KeysValues],
    memory_mask: mx.array,
    bar: mx.array,
    now: Moment,
) -> tuple[Hypotheses, list[KeysValues]]:
    """One step: the decoder reads the newest word of every hypothesis, then the next are chosen."""
    B, K, T = hyps.words.shape
    hyps = hyps._replace(slots=choose.own_slots(hyps.slots, now.t))
    layers = [SlotCache(slots, (now.t * K)[None]) for slots in caches]
    hidden = model.decode(
        hyps.tokens,
        memory,
        memory_mask,
        position=now.t - mx.arange(K),  # the K hypotheses stand side by side at position t
        mask=(hyps.slots[..., None] == mx.arange(K)).reshape(B, 1, K, T * K),
        caches=layers,
    )
    logits = model.logits(hidden).astype(mx.float32)
    return choose_next(hyps, logits, bar, now), [layer.slots for layer in layers]


def barred(
    model: Transformer, options: SearchOptions, hyps: Hypotheses, t: int, prefixes: np.ndarray
) -> mx.array:
    """-inf at words that must not come next, else 0: (V,), (B,1,V) or (B,K,V)"""
    config = model.config
    V = config.target_size
    bar = np.zeros(V, np.float32)
    bar[[config.pad_id, *options.banned]] = -np.inf
    if config.start_id not in (None, config.eos_id):
        bar[config.start_id] = -np.inf
    if t < options.min_tokens:
        bar[config.eos_id] = -np.inf
    result = mx.array(bar)
    if options.no_repeat_ngram:
        seen = choose.repeats(hyps.words, mx.array(t), options.no_repeat_ngram, V)
        result = mx.where(seen, -mx.inf, result)
    if t < prefixes.shape[1]:
        forced = mx.array(prefixes[:, t])[:, None, None]
        only = mx.where(mx.arange(V) == forced, 0.0, -mx.inf)
        result = mx.where(forced == NONE, result, only)
    return result


def draws(sources: Sequence[Ids], options: SearchOptions, limits: np.ndarray) -> np.ndarray:
    """Uniform numbers for sampling (B,K,longest limit), the same whatever batch a sentence is in"""
    longest = int(limits.max(initial=0)) if options.sample else 0
    numbers = np.zeros((len(sources), options.width, longest), np.float32)
    for row, ids, limit in zip(numbers, sources, limits, strict=True):
        if options.sample:
            generator = np.random.default_rng([options.seed, *ids])
            row[:, :limit] = generator.random((options.width, int(limit)), np.float32)
    return numbers


def padded(sequences: Sequence[Ids], fill: int, multiple: int = 1) -> np.ndarray:
    """Ids as one array, filled up on the right: (B, longest, rounded up)"""
    longest = max((len(ids) for ids in sequences), default=0)
    table = np.full((len(sequences), -(-longest // multiple) * multiple), fill, np.int32)
    for row, ids in zip(table, sequences, strict=True):
        row[: len(ids)] = ids
    return table


def check(model: Transformer, sources: Sequence[Ids], options: SearchOptions) -> None:
    """What the options alone cannot know."""
    config = model.config
    longest = max((len(ids) for ids in sources), default=0)
    if longest > config.max_length:
        raise InputError(
            f"a source of {longest} tokens is longer than the model's {config.max_length}: split it"
        )
    for token in options.banned:
        if not 0 <= token < config.target_size:
            raise InputError(f"banned token {token} is not an id below {config.target_size}")
