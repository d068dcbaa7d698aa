"""From next-word logits to the next hypotheses: one step of beam search, of greedy, of sampling.

Shapes: B sentences, K open hypotheses each, V words, T positions of room, n wanted results.
Everything stays on the device; nothing here depends on a value, only on shapes and options.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.decoding.options import SearchOptions, Stop

NONE = -1  # fills positions not yet written


class Hypotheses(NamedTuple):
    """The open hypotheses of a batch and the best finished ones."""

    tokens: mx.array  # (B,K) the newest word of each, which the next step reads
    words: mx.array  # (B,K,T) generated so far, NONE beyond
    slots: mx.array  # (B,K,T) which of the K cache slots of a position is its own past
    logp: mx.array  # (B,K) log-probability; -inf: no hypothesis
    final_words: mx.array  # (B,n,T) finished, best first
    final_scores: mx.array  # (B,n) log-probability / penalty(length); -inf: none yet
    done: mx.array  # (B,) nothing open can still win


class StepInputs(NamedTuple):
    """What a step knows besides the hypotheses."""

    t: mx.array  # () tokens generated before this step
    penalty: mx.array  # () of hypotheses that end in this step
    last: mx.array  # (B,) the length limit is reached with this step
    open_penalty: mx.array  # (B,) or (), that an open hypothesis is judged with
    ban_logits: mx.array  # (V,) -inf at words that must not come, else 0
    draws: mx.array | None  # (B,K) uniform in [0,1), for sampling
    ids: mx.array | None = None  # (V,) of the words that are weighed; None: all of the vocabulary


def start(token: int, B: int, K: int, n: int, T: int, *, apart: bool) -> Hypotheses:
    """K empty hypotheses a sentence if they stay apart; else one, whose continuations fill K."""
    only_first = mx.where((mx.arange(K) == 0) | apart, 0.0, -mx.inf)
    return Hypotheses(
        tokens=mx.full((B, K), token, mx.int32),
        words=mx.full((B, K, T), NONE, mx.int32),
        slots=mx.full((B, K, T), NONE, mx.int32),
        logp=mx.broadcast_to(only_first, (B, K)),
        final_words=mx.full((B, n, T), NONE, mx.int32),
        final_scores=mx.full((B, n), -mx.inf),
        done=mx.zeros((B,), mx.bool_),
    )


def beam_step(
    hyps: Hypotheses,
    logits: mx.array,
    ban_logits: mx.array,
    now: StepInputs,
    eos: int,
    stop: Stop,
) -> Hypotheses:
    """logits (B,K,V), ban_logits 0 or -inf -> the hypotheses one token longer.

    Of all K*V continuations the 2K of highest log-probability are candidates, best first. Those
    of the first K that end in eos are finished; the first K that do not stay open. At the length
    limit the first K are finished wherever they stand. A sentence is done when the n-th best
    finished score is not below what the best open hypothesis would score now (likely), or if all
    its words up to the limit were certain (certain): log-probabilities only fall, so nothing open
    can win any more. With `full`, when there are n finished ones.
    """
    B, K, V = logits.shape
    n = hyps.final_scores.shape[1]
    continued = (hyps.logp - device.logsumexp(logits))[..., None] + logits + ban_logits
    logp, flat = top_k(continued.reshape(B, K * V), 2 * K)
    parent, token = (flat // V).astype(mx.int32), named(flat % V, now.ids)
    words = write(rows(hyps.words, parent), now.t, token)

    ends = token == eos
    final = (ends[:, :K] | now.last[:, None]) & ~hyps.done[:, None]
    new_scores = mx.where(final, logp[:, :K] / now.penalty, -mx.inf)
    final_scores = mx.concatenate([hyps.final_scores, new_scores], axis=1)
    best = mx.argsort(-final_scores, axis=1)[:, :n]
    final_words = rows(mx.concatenate([hyps.final_words, words[:, :K]], axis=1), best)
    final_scores = mx.take_along_axis(final_scores, best, axis=1)

    order = mx.arange(2 * K)
    stay = mx.argsort(mx.where(ends, order + 2 * K, order), axis=1)[:, :K]
    logp = mx.take_along_axis(logp, stay, axis=1)
    worst = final_scores[:, -1]
    can_win = worst == -mx.inf if stop == "full" else logp[:, 0] / now.open_penalty > worst
    return Hypotheses(
        tokens=mx.take_along_axis(token, stay, axis=1),
        words=rows(words, stay),
        slots=rows(hyps.slots, mx.take_along_axis(parent, stay, axis=1)),
        logp=logp,
        final_words=final_words,
        final_scores=final_scores,
        done=hyps.done | now.last | ~can_win,
    )


def draw_step(
    hyps: Hypotheses,
    logits: mx.array,
    ban_logits: mx.array,
    now: StepInputs,
    eos: int,
    choose: Callable[[mx.array, mx.array | None], mx.array],
) -> Hypotheses:
    """K hypotheses that never meet, each taking the word `choose(logits, draws)` until its eos."""
    token = choose(logits + ban_logits, now.draws)
    chosen = mx.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    logp = hyps.logp + chosen - device.logsumexp(logits)
    token = named(token, now.ids)
    words = write(hyps.words, now.t, token)

    ended = mx.any(hyps.final_words != NONE, axis=-1)
    final = ((token == eos) | now.last[:, None]) & ~ended
    return Hypotheses(
        tokens=token,
        words=words,
        slots=hyps.slots,
        logp=logp,
        final_words=mx.where(final[..., None], words, hyps.final_words),
        final_scores=mx.where(final, logp / now.penalty, hyps.final_scores),
        done=mx.all(ended | final, axis=1),
    )


def named(words: mx.array, ids: mx.array | None) -> mx.array:
    """The ids of words that were chosen by their place among those weighed"""
    return (words if ids is None else ids[words]).astype(mx.int32)


def certain(
    logits: mx.array, ban_logits: mx.array, forced: mx.array, ids: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Logits (B,K,V) and ban_logits where `forced` (B,) names words: their probability is 1.

    So a prefix costs nothing: hypotheses are ranked by what follows it.
    """
    word = forced[:, None, None]
    only = mx.where(named(mx.arange(logits.shape[-1]), ids) == word, 0.0, -mx.inf)
    return mx.where(word == NONE, logits, only), mx.where(word == NONE, ban_logits, 0.0)


def greedy(logits: mx.array, _: mx.array | None) -> mx.array:
    """(B,K,V) -> (B,K), the most probable words"""
    return device.argmax(logits)


def sampler(options: SearchOptions) -> Callable[[mx.array, mx.array | None], mx.array]:
    """Draw a word from the top-k words, or the fewest that hold top-p of the mass.

    The word is the one in whose share of the cumulated probability the draw falls.
    """

    def sample(logits: mx.array, draws: mx.array | None) -> mx.array:
        """logits (B,K,V), draws (B,K) -> (B,K)"""
        assert draws is not None
        V = logits.shape[-1]
        logits = logits * (1 / options.temperature)
        some = min(options.top_k or V, V)
        if some == V and options.top_p == 1:
            return pick(mx.softmax(logits, axis=-1), draws)
        values, ids = top_k(logits.reshape(-1, V), some)
        weights = mx.softmax(values, axis=-1)
        before = mx.cumsum(weights, axis=-1, inclusive=False)
        choice = pick(mx.where(before < options.top_p, weights, 0), draws.reshape(-1))
        return mx.take_along_axis(ids, choice[:, None], axis=1).reshape(draws.shape)

    return sample


def pick(weights: mx.array, draws: mx.array) -> mx.array:
    """weights (..., V), draws (...) in [0,1) -> index (...)"""
    mass = mx.cumsum(weights, axis=-1)
    return mx.argmax(mass > draws[..., None] * mass[..., -1:], axis=-1).astype(mx.int32)


def repeats(words: mx.array, t: mx.array, n: int, V: int) -> mx.array:
    """(B,K,T) -> (B,K,V), true at words that would repeat an n-gram of the hypothesis"""
    B, K, T = words.shape
    if n > T:
        return mx.zeros((B, K, V), mx.bool_)
    windows = T - n + 1
    same = mx.broadcast_to(mx.arange(windows) + n - 1 < t, (B, K, windows))
    for i in range(n - 1):
        recent = mx.take(words, mx.maximum(t - (n - 1) + i, 0), axis=2)[..., None]
        same &= words[:, :, i : i + windows] == recent
    # Windows that do not match write to word V, one too many; it is cut off in the end.
    ends = mx.where(same, words[:, :, n - 1 :], V)
    seen = mx.zeros((B, K, V + 1), mx.bool_)
    return mx.put_along_axis(seen, ends, mx.array(True), axis=-1)[..., :V]


def completes(words: mx.array, t: mx.array, phrase: tuple[int, ...]) -> mx.array:
    """(B,K,T) -> (B,K), true where one more word would complete the phrase"""
    n = len(phrase) - 1
    same = mx.broadcast_to(t >= n, words.shape[:2])
    for i, word in enumerate(phrase[:-1]):
        same &= mx.take(words, mx.maximum(t - n + i, 0), axis=2) == word
    return same


def top_k(x: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """The k largest of each row and their indices, best first: (B,N) -> (B,k), (B,k)

    Seen as a table of columns, the k largest lie in the k columns of largest maximum, or in the
    rest that does not fill the table: one cheap pass, then a partition of what is left instead of
    the whole row.
    """
    B, N = x.shape
    indices = None
    C = 64 * max(1, round(math.sqrt(N * k) / 64))
    R, rest = divmod(N, C)
    if 2 * (C + R * k + rest) < N:
        table = x[:, : R * C].reshape(B, R, C)
        columns = largest(mx.max(table, axis=1), k)[:, None, :].astype(mx.int32)
        indices = (mx.arange(R)[:, None] * C + columns).reshape(B, R * k)
        if rest:
            behind = mx.broadcast_to(mx.arange(R * C, N), (B, rest))
            indices = mx.concatenate([indices, behind], axis=1)
        x = mx.take_along_axis(x, indices, axis=1)
    found = largest(x, k)
    values = mx.take_along_axis(x, found, axis=1)
    order = mx.argsort(-values, axis=1)
    found = mx.take_along_axis(found, order, axis=1)
    values = mx.take_along_axis(values, order, axis=1)
    return values, found if indices is None else mx.take_along_axis(indices, found, axis=1)


def largest(x: mx.array, k: int) -> mx.array:
    """Indices of the k largest of each row, in any order: (B,N) -> (B,k)"""
    N = x.shape[1]
    return mx.argpartition(x, N - k, axis=1)[:, N - k :]


def rows(x: mx.array, indices: mx.array) -> mx.array:
    """Pick hypotheses: (B,K,T), (B,J) -> (B,J,T)"""
    return mx.take_along_axis(x, indices[..., None], axis=1)


def write(words: mx.array, t: mx.array, token: mx.array) -> mx.array:
    """Put token (B,J) at position t of words (B,J,T)"""
    return mx.where(mx.arange(words.shape[-1]) == t, token[..., None], words)


def own_slots(slots: mx.array, t: mx.array, Q: int) -> mx.array:
    """Position t of hypothesis k lies in slot k, or in the last of only Q: (B,K,T) -> (B,K,T)"""
    B, K, _ = slots.shape
    return write(slots, t, mx.broadcast_to(mx.minimum(mx.arange(K), Q - 1), (B, K)))
