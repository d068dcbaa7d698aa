"""Sentences in search together, one token a step; those that are done leave.

The host only launches steps. It reads one flag a sentence, and that one step late, so that the
device never waits for it.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding import choose
from mlx_transformer.decoding.cache import Prompt, empty_slots, grow, read_prompt, with_room
from mlx_transformer.decoding.choose import NONE, Hypotheses, StepInputs
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.step import Caches, Memory, SearchStep
from mlx_transformer.errors import InputError

Ids = Sequence[int]

# Batches begin with these numbers of rows (the last of a text may have others). A compiled step
# should meet few shapes: it shrinks to these only, and lengths are a multiple of COARSE.
ROWS = sorted({2**i for i in range(11)} | {3 * 2**i for i in range(9)})
COARSE = 16


@dataclass(frozen=True)
class Hypothesis:
    """One result: its ids, without the end of sentence."""

    ids: list[int]
    score: float  # log-probability / penalty(length)
    logp: float  # log-probability of the ids and of the end of sentence
    complete: bool  # false: cut at the length limit


class SearchBatch:
    """A search under way; `results` are filled in as sentences are done."""

    def __init__(
        self, step: SearchStep, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None
    ):
        device.tidy_thread()
        model, options = step.model, step.options
        config, B, K = model.config, len(sources), options.width
        self._multiple = COARSE if step.compiled else 1
        self.results: list[list[Hypothesis]] = [[] for _ in sources]
        self._step = step
        self._t = 0
        self._sentences = np.arange(B)  # by row
        limits = [length_limit(options, config, ids) for ids in sources]
        check_memory(config, B, K, max(limits))
        self._limits = np.array(limits, np.int32)
        self._limit_penalties = np.array([options.penalty(n) for n in limits], np.float32)
        self._draws = draws(sources, options, limits) if options.sample else None
        first = () if options.first_word is None else (options.first_word,)
        given = [prefix or first for prefix in prefixes or [()] * B]
        self._forced = padded(given, NONE, config.target_size)
        # Room grows with what is written: a step that is launched while the one before is still
        # under way copies the caches whole.
        finished = options.nbest if options.stop == "certain" else K
        self.hyps = choose.start(config.first_id, B, K, finished, COARSE, apart=options.sample)
        if config.alone == "decoder":
            self._read_prompts(sources)
        else:
            self._read_sources(sources)
        self._flags: mx.array | None = None
        self._dropped: set[int] = set()
        # As of a step ago: those are computed, and reading them does not wait.
        self._before = self.hyps, self._sentences

    def _read_sources(self, sources: Sequence[Ids]) -> None:
        """Encode them: what all steps attend to"""
        model, (B, K, room) = self._step.model, self.hyps.words.shape
        config = model.config
        sizes = config.vocab_size, self._multiple, config.max_length
        source = mx.array(padded(sources, config.pad_id, *sizes))
        memory = model.encode(source)
        device.launch_early(memory, rows=B * K)
        # Every step reads them: lay them out head by head once.
        layers = [(mx.contiguous(k), mx.contiguous(v)) for k, v in model.memory_keys_values(memory)]
        # Compiled, a case without padding would be one more shape: always pass the mask.
        padding = self._step.compiled or any(len(ids) < source.shape[1] for ids in sources)
        words, shortlist = None, self._step.shortlist
        if shortlist is not None:
            words = shortlist.words(model, sources, self._forced, coarse=self._step.compiled)
        mask = model.source_mask(source) if padding else None
        self._memory = Memory(layers, mask, words=words)
        model.target_embedding.reserve(room)
        self._caches = empty_slots(config, B, K, room, memory.dtype)

    def _read_prompts(self, prompts: Sequence[Ids]) -> None:
        """All but the last token of each in one pass; the first step reads that"""
        model, (B, K, room) = self._step.model, self.hyps.words.shape
        config, length = model.config, len(prompts[0])
        ids = padded(prompts, NONE, config.vocab_size)
        width = round_up(length, self._multiple)
        before = np.full((B, width - length), NONE, np.int32)
        prompt = Prompt(mx.array(np.concatenate([before, ids], axis=1)), mx.array(length))
        model.target_embedding.reserve(length + room)
        dtype = model.target_vectors(prompt.last, 0).dtype
        slots = empty_slots(config, B, K, room, dtype, prompt.columns)
        self._memory = Memory([], None, prompt)
        self._caches = read_prompt(model, mx.array(ids[:, :-1]), slots)
        self.hyps = self.hyps._replace(tokens=mx.broadcast_to(prompt.last, (B, K)))

    @property
    def open(self) -> bool:
        return len(self._sentences) > 0

    @property
    def rows(self) -> int:
        """Sentences that steps are taken for; some may be done already."""
        return len(self._sentences)

    def drop(self, sentences: Iterable[int]) -> None:
        """Nobody waits for these any more: go on without them."""
        self._dropped.update(sentences)

    def step(self) -> tuple[Hypotheses, Caches]:
        """The next token of every sentence: what to launch, before `settle`."""
        self._before = self.hyps, self._sentences
        if self._t == self.hyps.words.shape[-1]:
            self._make_room()
        reach = round_up(self._t + 1, self._multiple)
        # At t=0 all K hypotheses are equal: decode one. Compiled, that would be one more shape.
        Q = 1 if self._t == 0 and not self._step.compiled else self._step.options.width
        hyps, self._caches = self._step.run(
            self.hyps, self._caches, self._memory, self._step_inputs(), self._given(), reach, Q
        )
        self.hyps = Hypotheses(*hyps)  # which a compiled step gives back as a plain tuple
        self._t += 1
        return self.hyps, self._caches

    def _given(self) -> mx.array | None:
        """(B,) words that need not be searched for, or NONE: of prefixes, the end at the limit"""
        words = np.full(len(self._sentences), NONE, np.int32)
        if self._t < self._forced.shape[1]:
            words = self._forced[:, self._t]
        if self._step.options.end_at_limit:
            words = np.where(self._limits == self._t + 1, self._step.model.config.eos_id, words)
        return mx.array(words) if (words != NONE).any() else None

    def settle(self) -> None:
        """Let go of what the step before finished."""
        flags, self._flags = self._flags, self.hyps.done
        if self._t == self._limits.max():
            self._let_go(np.ones(len(self._sentences), np.bool_))
        elif flags is not None:
            dropped = np.isin(self._sentences, list(self._dropped))
            self._let_go(np.array(flags) | dropped)

    def certain(self, sentences: Sequence[int]) -> dict[int, list[int]]:
        """By open sentence, the ids with which every possible result begins, as of a step ago."""
        if not sentences:
            return {}
        hyps, numbers = self._before
        kinds = ((hyps.words, hyps.logp), (hyps.final_words, hyps.final_scores))
        read = [(np.array(words), np.array(scores)) for words, scores in kinds]
        return {
            int(number): self._common_start(
                [w for words, scores in read for w in words[row][scores[row] > -np.inf]]
            )
            for row, number in enumerate(numbers)
            if number in sentences
        }

    def _common_start(self, hypotheses: Sequence[np.ndarray]) -> list[int]:
        ids = []
        for column in zip(*hypotheses, strict=True):
            if len(set(column)) > 1 or column[0] in (NONE, self._step.model.config.eos_id):
                break
            ids.append(int(column[0]))
        return ids

    def _step_inputs(self) -> StepInputs:
        t, options = self._t, self._step.options
        return StepInputs(
            t=mx.array(t),
            penalty=mx.array(options.penalty(t + 1)),
            last=mx.array(self._limits <= t + 1),
            open_penalty=mx.array(
                options.penalty(t + 1) if options.stop == "likely" else self._limit_penalties
            ),
            ban_logits=self._step.ban_logits[t < options.min_tokens],
            draws=None if self._draws is None else mx.array(self._draws[:, :, t]),
        )

    def _make_room(self) -> None:
        """A few positions more, in the caches and in the words written"""
        slots = COARSE * self._step.options.width
        prompt = self._memory.prompt
        read = 0 if prompt is None else prompt.columns
        self._step.model.target_embedding.reserve(read + self._t + COARSE)
        self._caches = [with_room(layer, slots) for layer in self._caches]
        longer = {
            name: grow(getattr(self.hyps, name), 2, COARSE, NONE)
            for name in ("words", "slots", "final_words")
        }
        self.hyps = self.hyps._replace(**longer)

    def _let_go(self, done: np.ndarray) -> None:
        """Go on without what is done, if that makes the batch a size smaller."""
        still, gone = np.flatnonzero(~done), np.flatnonzero(done)
        size = self._size_for(len(still), len(done))
        if size >= len(done):
            return
        self._store(gone)
        # Sentences already done fill up the rows: they no longer change.
        rows = np.concatenate([still, gone])[:size]
        self._sentences, self._limits = self._sentences[rows], self._limits[rows]
        self._limit_penalties = self._limit_penalties[rows]
        self._draws = None if self._draws is None else self._draws[rows]
        self._forced = self._forced[rows]
        if size == 0:
            return
        kept = mx.array(rows)
        self.hyps = Hypotheses(*(x[kept] for x in self.hyps))
        self._flags = self.hyps.done
        layers, mask, prompt, words = self._memory
        self._memory = Memory(
            [(k[kept], v[kept]) for k, v in layers],
            None if mask is None else mask[kept],
            None if prompt is None else prompt._replace(ids=prompt.ids[kept]),
            None if words is None else words.of_rows(kept),
        )
        self._caches = tree_map(lambda x: x[kept], self._caches)

    def _size_for(self, still: int, rows: int) -> int:
        """Rows for those that are still open: a compiled step should meet few shapes. Otherwise an
        eighth less is worth moving the caches."""
        if still == 0:
            return 0
        if self._step.compiled:
            return next((n for n in ROWS if n >= still), rows)
        return still if still <= rows * 7 // 8 else rows

    def _store(self, rows: np.ndarray) -> None:
        scores, words = np.array(self.hyps.final_scores), np.array(self.hyps.final_words)
        for row in rows:
            found = [
                self._hypothesis(row_words, float(score))
                for row_words, score in zip(words[row], scores[row], strict=True)
                if score > -np.inf
            ]
            # Where all words are banned nothing can be written: the answer is empty.
            found = found or [Hypothesis([], -np.inf, -np.inf, complete=False)]
            best = nlargest(self._step.options.nbest, found, key=attrgetter("score"))
            self.results[self._sentences[row]] = best

    def _hypothesis(self, words: np.ndarray, score: float) -> Hypothesis:
        ids = words[words != NONE].tolist()
        complete = ids[-1] == self._step.model.config.eos_id
        logp = score * self._step.options.penalty(len(ids))
        return Hypothesis(ids[:-1] if complete else ids, score, logp, complete)


def length_limit(options: SearchOptions, config: ModelConfig, source: Ids) -> int:
    """How many tokens may be written: behind a prompt, within what the model can read"""
    if config.alone != "decoder":
        return options.limit(len(source) - 1, config.max_length)
    if not source or len(source) >= config.max_length:
        raise InputError(
            f"a prompt has 1 to {config.max_length - 1:,} tokens, not {len(source):,}: shorten it"
        )
    return options.limit(0, config.max_length - len(source))


def check_memory(config: ModelConfig, B: int, K: int, T: int) -> None:
    """Refuse what a step at position T cannot hold: scores of words, caches and attention."""
    words = 4 * K * config.target_size  # logits, their sum with the past, and what sorts them
    caches = 2 * config.decoder_layers * K * T * config.d_model
    attention = 2 * config.h * K * K * T  # every hypothesis to the slots of all
    needed = 4 * B * (words + caches + attention)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InputError(
            f"{K:,} hypotheses of this text need about {needed / 1e9:,.0f} GB of memory and this "
            f"machine has {there / 1e9:,.0f}: use a narrower beam"
        )


def padded(
    sequences: Sequence[Ids], fill: int, words: int, multiple: int = 1, most: int | None = None
) -> np.ndarray:
    """Ids as one array (B, longest, rounded up but not beyond `most`), filled up on the right

    All are below the model's `words`: MLX would read beyond the word matrix, or crash.
    """
    longest = max(len(ids) for ids in sequences)
    if most is not None and longest > most:
        raise InputError(f"{longest} tokens are more than the model's {most}: split the text")
    width = round_up(longest, multiple)
    table = np.full((len(sequences), min(width, most or width)), fill, np.int32)
    for row, ids in zip(table, sequences, strict=True):
        row[: len(ids)] = ids
    if table.size and table.max() >= words:
        raise InputError(f"the id {table.max()} is not below the model's {words:,} words")
    return table


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def draws(sources: Sequence[Ids], options: SearchOptions, limits: Sequence[int]) -> np.ndarray:
    """Uniform numbers for sampling (B,K,longest limit), the same whatever batch a sentence is in"""
    numbers = np.zeros((len(sources), options.width, max(limits)), np.float32)
    for row, ids, limit in zip(numbers, sources, limits, strict=True):
        generator = np.random.default_rng([options.seed, *ids])
        row[:, :limit] = generator.random((options.width, limit), np.float32)
    return numbers
