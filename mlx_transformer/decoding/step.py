"""One step of a search as one function of arrays: decode a position, choose the next words."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.blocks import KeysValues
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding import choose
from mlx_transformer.decoding.cache import LayerSlots, Prompt, layer_caches
from mlx_transformer.decoding.choose import Hypotheses, StepInputs
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.shortlist import Shortlist, Words
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer

Caches = list[LayerSlots]  # by decoder layer


class Memory(NamedTuple):
    """What all steps read of the sources: kept per sentence, not per hypothesis.

    A decoder alone has its prompt instead, whose keys and values are in its caches.
    """

    layers: list[KeysValues]  # by decoder layer
    mask: mx.array | None  # (B,1 or h,1,S) true at real tokens; None: all are
    prompt: Prompt | None = None
    words: Words | None = None  # None: every word may be written


class SearchStep:
    """The step of a model under given options. Its work depends on shapes only, not on values.

    Where it is compiled, it is so once for each of the few shapes of a batch.
    """

    def __init__(
        self, model: Transformer, options: SearchOptions, shortlist: Shortlist | None = None
    ):
        """`shortlist`: which words each source may become, if the search is to keep to it."""
        self.model, self.options, self.shortlist = model, options, shortlist
        self.compiled = device.compiles_search()
        self._choose = chooser(options, model.config.eos_id)
        # (V,), -inf at words that must not come, else 0; the second, below the least length
        self.ban_logits = [banned_logits(options, model.config, end=end) for end in (False, True)]
        # The weights are inputs. As constants, every compiled shape would keep a copy of them.
        self.run = mx.compile(self._run, inputs=model.state) if self.compiled else self._run

    def _run(
        self,
        hyps: Hypotheses,
        caches: Caches,
        memory: Memory,
        now: StepInputs,
        forced: mx.array | None,
        reach: int,
        Q: int,
    ) -> tuple[Hypotheses, Caches]:
        """Every hypothesis one token longer.

        `forced` (B,) are words that are given, or NONE; no hypothesis will be longer than `reach`;
        the first Q stand for all.
        """
        B, K, _ = hyps.words.shape
        hyps = hyps._replace(slots=choose.own_slots(hyps.slots, now.t, Q))
        # A single hypothesis sees its whole past. Uncompiled, the cache holds nothing else.
        alone = K == 1 and not self.compiled
        prompt = memory.prompt
        layers = layer_caches(caches, hyps.slots, now.t, reach, Q, prompt, alone=alone)
        before = now.t if prompt is None else now.t + prompt.length - 1
        hidden = self.model.decode(
            hyps.tokens[:, :Q],
            memory.layers,
            memory.mask,
            position=before - mx.arange(Q),  # the hypotheses stand side by side at one position
            caches=layers,
        )
        words = memory.words
        logits = (self.model if words is None else words).logits(hidden).astype(mx.float32)
        logits = mx.broadcast_to(logits, (B, K, logits.shape[-1]))
        ban_logits = now.ban_logits
        if self.options.no_repeat_ngram or self.options.banned_phrases:
            ban_logits = self._ban_by_past(hyps, now, prompt)
        if words is not None:
            ban_logits, now = ban_logits[..., words.ids], now._replace(ids=words.ids)
        if self.options.renormalize:
            logits, ban_logits = logits + ban_logits, mx.zeros(())
        if forced is not None:
            logits, ban_logits = choose.certain(logits, ban_logits, forced, now.ids)
        return self._choose(hyps, logits, ban_logits, now), [layer.slots for layer in layers]

    def _ban_by_past(self, hyps: Hypotheses, now: StepInputs, prompt: Prompt | None) -> mx.array:
        """(B,K,V), -inf also at words that the words before them rule out"""
        ban_logits, V, options = now.ban_logits, now.ban_logits.size, self.options
        words, t = self._from_start(hyps.words, now.t, prompt)
        if options.no_repeat_ngram:
            repeated = choose.repeats(words, t, options.no_repeat_ngram, V)
            ban_logits = mx.where(repeated, -mx.inf, ban_logits)
        for phrase in options.banned_phrases:
            end = choose.completes(words, t, phrase)[..., None] & (mx.arange(V) == phrase[-1])
            ban_logits = mx.where(end, -mx.inf, ban_logits)
        return ban_logits

    def _from_start(
        self, words: mx.array, t: mx.array, prompt: Prompt | None
    ) -> tuple[mx.array, mx.array]:
        """The words with what stands before them and could be written once more: a prompt, or the
        start token"""
        if prompt is not None:
            B, K, _ = words.shape
            given = mx.broadcast_to(prompt.ids[:, None], (B, K, prompt.ids.shape[1]))
            return mx.concatenate([given, words], axis=2), t + prompt.ids.shape[1]
        start = self.model.config.start_id
        if start in (None, self.model.config.eos_id):
            return words, t
        first = mx.full((*words.shape[:2], 1), start, words.dtype)
        return mx.concatenate([first, words], axis=2), t + 1


Chooser = Callable[[Hypotheses, mx.array, mx.array, StepInputs], Hypotheses]


def chooser(options: SearchOptions, eos: int) -> Chooser:
    """How these options choose the next words."""
    if options.sample:
        return partial(choose.draw_step, eos=eos, choose=choose.sampler(options))
    if options.beam == 1:
        return partial(choose.draw_step, eos=eos, choose=choose.greedy)
    return partial(choose.beam_step, eos=eos, stop=options.stop)


def banned_logits(options: SearchOptions, config: ModelConfig, *, end: bool) -> mx.array:
    """(V,), -inf at padding, start and banned words, and at the end of sentence if `end`"""
    given = () if options.first_word is None else (options.first_word,)
    for token in (*options.banned, *given, *chain(*options.banned_phrases)):
        if not 0 <= token < config.target_size:
            raise InputError(f"a search option names word {token}: ids end at {config.target_size}")
    ban_logits = np.zeros(config.target_size, np.float32)
    ban_logits[list(options.banned)] = -np.inf
    if options.ban_padding:
        if config.pad_id != config.eos_id:
            ban_logits[config.pad_id] = -np.inf
        if config.start_id not in (None, config.eos_id):
            ban_logits[config.start_id] = -np.inf
    if end:
        ban_logits[config.eos_id] = -np.inf
    return mx.array(ban_logits)
