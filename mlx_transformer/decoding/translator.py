"""Text in, text out: a model and its tokenizer."""

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, overload

import mlx.core as mx
import numpy as np

from mlx_transformer.decoding.alignment import Link, cross_attention, join_attention, join_links
from mlx_transformer.decoding.batch import Hypothesis, Ids
from mlx_transformer.decoding.options import SearchOptions, model_options
from mlx_transformer.decoding.scoring import Score, check_are_lists, score_pairs
from mlx_transformer.decoding.search import FIRST_WINDOW, Sentence
from mlx_transformer.decoding.sentences import split_sentences, split_to_fit
from mlx_transformer.decoding.shortlist import load_shortlist
from mlx_transformer.decoding.writer import Writer
from mlx_transformer.errors import InputError
from mlx_transformer.storage import default_model, load_to_compute
from mlx_transformer.tokenizer import WORD_START, Tokenizer, load_tokenizer

# Tokens of a sentence read at once. Some models take any number, but no machine has the memory.
LONGEST = 4096


@dataclass(frozen=True)
class Translation:
    """One translation of a text. What belongs to its sentences is summed or strung together."""

    text: str
    score: float  # log-probability / length penalty
    logp: float
    tokens: list[str]
    source_tokens: list[str]
    complete: bool  # false: cut at the length limit
    attention: np.ndarray | None = None  # (tokens, source tokens), on request
    # Source word and target word, on request; of one target word's the strongest comes first.
    alignment: list[Link] | None = None
    alternatives: list["Translation"] = field(default_factory=list)  # the next best


class SourceSentence(NamedTuple):
    """A sentence as the model reads it."""

    text: str
    ids: Ids
    own: slice  # where in `ids` its text stands; around it are languages and the end
    start: Ids  # what its translation begins with: the target's language, where a model wants it
    unknown: Sequence[str] = ()  # what has no piece, to be written as it is


@dataclass
class Plan:
    """A text as lines of sentences."""

    lines: list[list[SourceSentence]]

    @property
    def sentences(self) -> list[SourceSentence]:
        return [sentence for line in self.lines for sentence in line]


def load(directory: str | Path | None = None, dtype: mx.Dtype | None = None) -> "Translator":
    """A translator from a model directory, by default the model that ships.

    `dtype` is what it computes in; None: as stored, but on a CPU plain float32.
    """
    path = default_model() if directory is None else Path(directory)
    model = load_to_compute(path, dtype)
    tokenizer, shortlist = load_tokenizer(path, model.config), load_shortlist(path, model.config)
    return Translator(model, tokenizer, model_options(path), shortlist)


class Translator(Writer):
    """Translates texts; one text may be a word, a paragraph or many lines.

    `defaults` are the options of a search that is given none. Any number of threads may share one.
    """

    alone = None

    def between(self, source: str | None = None, target: str | None = None) -> "Translator":
        """The same model between these languages: its own codes, or what people call them.

        Told what to translate into, it reads sentence by sentence.
        """
        bound = copy(self)
        if target is not None:
            bound.defaults = replace(self.defaults, whole_lines=False)
        bound.tokenizer = self.tokenizer.between(source, target)
        return bound

    @overload
    def translate(
        self,
        texts: str,
        options: SearchOptions | None = None,
        *,
        prefix: str = "",
        attention: bool = False,
        **changes: Any,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        prefix: str = "",
        attention: bool = False,
        **changes: Any,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        options: SearchOptions | None = None,
        *,
        prefix: str = "",
        attention: bool = False,
        **changes: Any,
    ) -> Translation | list[Translation]:
        """Translate a text, or several, in their order; a blank line stays a blank line.

        Single options can be given by name, as in `translate(text, beam=2)`. Every translation
        begins with `prefix`. With `attention` it comes with its cross-attention and a word
        alignment.
        """
        options = options or self.defaults
        if changes:
            options = replace(options, **changes)
        several = [texts] if isinstance(texts, str) else texts
        found = list(self.each(several, options, prefix=prefix, attention=attention, window=None))
        return found[0] if isinstance(texts, str) else found

    def each(
        self,
        texts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        prefix: str = "",
        attention: bool = False,
        window: int | None = FIRST_WINDOW,
    ) -> Iterator[Translation]:
        """As `translate`, for any number of texts: read as needed, yielded in order when done."""
        plans: deque[Plan] = deque()
        begin = self.tokenizer.encode_target(prefix) if prefix else []

        def sentences() -> Iterator[Sentence]:
            for text in texts:
                plans.append(self.plan(text, options, prefix))
                for number, sentence in enumerate(plans[-1].sentences):
                    yield sentence.ids, [*sentence.start, *(begin if number == 0 else [])]

        found: list[list[Hypothesis]] = []
        search = self.search = self.search.under(options or self.defaults)
        for results in search.each(sentences(), window):
            found.append(results)
            while plans and len(plans[0].sentences) <= len(found):
                plan = plans.popleft()
                count = len(plan.sentences)
                yield self.translation(plan, found[:count], attention)
                found = found[count:]
        for plan in plans:
            yield self.translation(plan, [], attention)

    def stream(
        self,
        text: str,
        options: SearchOptions | None = None,
        *,
        prefix: str = "",
        **changes: Any,
    ) -> Iterator[str]:
        """Pieces of the translation as soon as they are certain; together they are its text.

        A greedy or sampled word is certain at once, a word of a beam when all hypotheses share it.
        """
        options = replace(options or self.defaults, **{**changes, "nbest": 1})
        begin = self.tokenizer.encode_target(prefix) if prefix else []
        for number, line in enumerate(self.plan(text, options, prefix).lines):
            if number:
                yield "\n"
            for place, sentence in enumerate(line):
                if place:
                    yield " "
                whole = [*sentence.start, *begin]
                text_of = partial(self.text, sentence)
                found = yield from self.stream_ids(sentence.ids, options, text_of, whole)
                if not found.complete:
                    warn_of_cut(text_of(found.ids))
                begin = []

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        """How probable each target is as the translation of its source."""
        check_are_lists(sources, targets)
        if len(sources) != len(targets):
            raise InputError(
                f"each source needs its target: these are {len(sources)} sources and "
                f"{len(targets)} targets"
            )
        tokenizer, eos = self.tokenizer, self.model.config.eos_id
        read, written = tokenizer.sources(sources, eos), tokenizer.targets(targets, eos)
        return score_pairs(self.model, read, written, given=len(tokenizer.frame.start))

    def plan(self, text: str, options: SearchOptions | None = None, prefix: str = "") -> Plan:
        """What there is to search for a text; `translation` puts the results together.

        What has no piece in the prefix comes before what has none in the text.
        """
        whole = (options or self.defaults).whole_lines
        lines = [self._sources(line, whole) for line in text.split("\n")]
        first = next((line for line in lines if line), None)
        if prefix and first is not None:
            unknown = [*self.tokenizer.unknown_target(prefix), *first[0].unknown]
            first[0] = first[0]._replace(unknown=unknown)
        return Plan(lines)

    def _sources(self, line: str, whole: bool) -> list[SourceSentence]:
        """A line as sentences, or as one, each within what the model can read."""
        if not (line := line.strip()):
            return []
        tokenizer, line = self.tokenizer.of_tagged(line)
        frame, eos = tokenizer.frame, self.model.config.eos_id
        longest = min(self.model.config.max_length, LONGEST)
        room = longest - len(frame.source([], eos))
        parts = [line] if whole else split_sentences(line)
        encoded = tokenizer.encode_source_batch(parts)
        if any(len(ids) > room for ids in encoded):
            warnings.warn(
                f"a sentence is longer than the {longest} tokens the model can read, "
                f"and was translated in parts: {line[:40]}...",
                stacklevel=2,
            )
            parts = cut_to_fit(parts, tokenizer, room)
            encoded = tokenizer.encode_source_batch(parts)
        if line and not any(self._is_known(ids) for ids in encoded):
            warnings.warn(f"the model knows nothing of this text: {line[:40]}", stacklevel=2)
        before = len(frame.before)
        return [
            SourceSentence(
                part.strip(),
                frame.source(ids, eos),
                slice(before, before + len(ids)),
                frame.start,
                tokenizer.unknown_source(part) if tokenizer.source.unk_id in ids else (),
            )
            for part, ids in zip(parts, encoded, strict=True)
            if ids
        ]

    def _is_known(self, ids: Ids) -> bool:
        """Whether the model has a piece for any of it, the space before a word aside"""
        unknown = self.tokenizer.source.unk_id
        known = [i for i in ids if i != unknown]
        return any(token != WORD_START for token in self.tokenizer.source.tokens(known))

    def text(self, source: SourceSentence, ids: Ids) -> str:
        """A translated sentence on one line, even if a model writes line feeds byte by byte"""
        text = self.tokenizer.decode(ids, source.unknown)
        return text.replace("\n", " ").replace("\r", " ")

    def translation(
        self, plan: Plan, found: Sequence[Sequence[Hypothesis]], attention: bool
    ) -> Translation:
        """The best of each sentence put together, and as alternatives the next best sums."""
        if not found:
            return Translation("\n" * (len(plan.lines) - 1), 0.0, 0.0, [], [], complete=True)
        wanted = max((len(results) for results in found), default=1)
        best, *others = (self._joined(plan, parts, attention) for parts in best_sums(found, wanted))
        if not best.complete:
            warn_of_cut(best.text)
        return replace(best, alternatives=others)

    def _joined(self, plan: Plan, parts: Sequence[Hypothesis], attention: bool) -> Translation:
        tokenizer, sentences = self.tokenizer, plan.sentences
        pairs = list(zip(sentences, parts, strict=False))
        texts = iter([self.text(each, part.ids) for each, part in pairs])
        lines = [" ".join(filter(None, (next(texts) for _ in line))) for line in plan.lines]
        source_tokens = [tokenizer.source.tokens(each.ids[each.own]) for each in sentences]
        tokens = [tokenizer.target.tokens(part.ids[len(each.start) :]) for each, part in pairs]
        maps, links = None, None
        if attention and parts:
            whole = cross_attention(self.model, [(each.ids, part.ids) for each, part in pairs])
            weights = [
                matrix[len(each.start) :, each.own]
                for matrix, each in zip(whole, sentences, strict=True)
            ]
            maps, links = join_attention(weights), join_links(weights, source_tokens, tokens)
        return Translation(
            text="\n".join(lines),
            score=sum(part.score for part in parts),
            logp=sum(part.logp for part in parts),
            tokens=list(chain(*tokens)),
            source_tokens=list(chain(*source_tokens)),
            complete=all(part.complete for part in parts),
            attention=maps,
            alignment=links,
        )


def best_sums(found: Sequence[Sequence[Hypothesis]], n: int) -> list[list[Hypothesis]]:
    """One result of each sentence: the n choices of the greatest sum of scores, best first."""
    best: list[tuple[float, list[Hypothesis]]] = [(0.0, [])]
    for results in found:
        sums = [(total + one.score, i, one) for i, (total, _) in enumerate(best) for one in results]
        best = [(total, [*best[i][1], one]) for total, i, one in nlargest(n, sums, itemgetter(0))]
    return [choice for _, choice in best]


def cut_to_fit(sentences: Sequence[str], tokenizer: Tokenizer, room: int) -> list[str]:
    """Sentences of more than `room` tokens in parts"""

    def fits(part: str) -> bool:
        return len(tokenizer.encode_source(part)) <= room

    return [part for sentence in sentences for part in split_to_fit(sentence, fits)]


def warn_of_cut(text: str) -> None:
    warnings.warn(
        f"a translation reached its length limit and is cut there: {text[:40]}...", stacklevel=3
    )
