"""A decoder alone: goes on with a text, and says how probable one is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import mlx.core as mx

from mlx_transformer.decoding.batch import Hypothesis, Ids
from mlx_transformer.decoding.options import SearchOptions, model_options
from mlx_transformer.decoding.scoring import Score, check_are_lists, score_texts
from mlx_transformer.decoding.search import FIRST_WINDOW, Sentence
from mlx_transformer.decoding.writer import Writer
from mlx_transformer.storage import load_to_compute
from mlx_transformer.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Completion:
    """What follows a prompt."""

    prompt: str
    text: str  # behind the prompt
    score: float  # log-probability / length penalty
    logp: float
    tokens: list[str]
    complete: bool  # false: cut at the length limit
    alternatives: list["Completion"] = field(default_factory=list)  # the next best


def load_completer(directory: Path, dtype: mx.Dtype | None = None) -> "Completer":
    """From a model directory; `dtype` is what it computes in, None: as stored, on a CPU float32."""
    model = load_to_compute(directory, dtype)
    return Completer(model, load_tokenizer(directory, model.config), model_options(directory))


class Completer(Writer):
    """Completes texts; one may be empty, a word or many lines.

    `defaults` are the options of a search that is given none. Any number of threads may share one.
    """

    alone = "decoder"

    @overload
    def complete(
        self, prompts: str, options: SearchOptions | None = None, **changes: Any
    ) -> Completion: ...

    @overload
    def complete(
        self, prompts: Sequence[str], options: SearchOptions | None = None, **changes: Any
    ) -> list[Completion]: ...

    def complete(
        self, prompts: str | Sequence[str], options: SearchOptions | None = None, **changes: Any
    ) -> Completion | list[Completion]:
        """Go on with a text, or with several, for at most `max_tokens` (50 if not given).

        Single options can be given by name, as in `complete(text, sample=True)`.
        """
        options = replace(options or self.defaults, **changes)
        several = [prompts] if isinstance(prompts, str) else prompts
        found = list(self.each(several, options, window=None))
        return found[0] if isinstance(prompts, str) else found

    def each(
        self,
        prompts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        window: int | None = FIRST_WINDOW,
    ) -> Iterator[Completion]:
        """As `complete`, for any number of prompts: read as needed, yielded in order when done."""
        waiting: list[tuple[str, Ids]] = []

        def sentences() -> Iterator[Sentence]:
            for prompt in prompts:
                waiting.append((prompt, self.prompt_ids(prompt)))
                yield waiting[-1][1], ()

        search = self.search = self.search.under(options or self.defaults)
        for results in search.each(sentences(), window):
            best, *others = (self._completion(*waiting[0], result) for result in results)
            del waiting[0]
            yield replace(best, alternatives=others)

    def stream(
        self, prompt: str, options: SearchOptions | None = None, **changes: Any
    ) -> Iterator[str]:
        """Pieces of what follows the prompt as soon as they are certain.

        A greedy or sampled word is certain at once, a word of a beam when all hypotheses share it.
        """
        options = replace(options or self.defaults, **{**changes, "nbest": 1})
        source = self.prompt_ids(prompt)
        yield from self.stream_ids(source, options, partial(self.text, source))

    def score(self, texts: Sequence[str]) -> list[Score]:
        """How probable each text is, given its first token: the start, where the model has one."""
        check_are_lists(texts)
        return score_texts(self.model, self.tokenizer.sources(texts, self.model.config.eos_id))

    def prompt_ids(self, prompt: str) -> list[int]:
        """What stands before a text, and its pieces; of an empty text the start alone"""
        ids = [*self.tokenizer.frame.before, *self.tokenizer.encode_source(prompt)]
        return ids or [self.model.config.first_id]

    def text(self, source: Ids, ids: Ids) -> str:
        """As it stands behind its prompt: a piece may begin with a space, or not"""
        before, whole = self.tokenizer.decode(source), self.tokenizer.decode([*source, *ids])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(ids)

    def _completion(self, prompt: str, source: Ids, found: Hypothesis) -> Completion:
        return Completion(
            prompt=prompt,
            text=self.text(source, found.ids),
            score=found.score,
            logp=found.logp,
            tokens=self.tokenizer.target.tokens(found.ids),
            complete=found.complete,
        )
