"""What a model learns from plain text; which of it, the halves that it has decide.

A decoder alone says the next token (GPT), an encoder alone the tokens that are hidden from it
(BERT), both together the spans that are missing (T5). What is hidden follows from the seed, the
epoch and the number of the text, whatever batch it is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer import Frame, Tokenizer
from mlx_transformer.tokenizer.pieces import MASK, sentinel

Pieces = list[int]
HIDDEN = 0.15  # share of the tokens that BERT and T5 hide
SPAN = 3  # tokens of a span of T5's, on average
MOST_SPANS = 100  # as many as T5's vocabulary has names for
# Of the tokens that BERT hides: behind the mask, behind any word; the others stay as they are.
MASKED, REPLACED = 0.8, 0.1


class Objective(Protocol):
    """Makes what a model reads and what it should say out of the pieces of a text.

    `aligned`: one token is expected at each place that is read (padding: none). Otherwise what is
    expected is written, token by token, from a start token on.
    """

    @property
    def aligned(self) -> bool: ...

    def lengths(self, pieces: np.ndarray) -> np.ndarray:
        """Of texts of so many pieces (n,) -> (n,2) of what is read and expected"""

    def example(self, pieces: Pieces, random: np.random.Generator) -> tuple[Pieces, Pieces]:
        """What is read, and what is expected"""


@dataclass(frozen=True)
class Causal:
    """The next token, at each place (GPT)."""

    start: int
    end: int
    aligned: bool = True

    def lengths(self, pieces: np.ndarray) -> np.ndarray:
        return np.stack([pieces + 1, pieces + 1], axis=1)

    def example(self, pieces: Pieces, random: np.random.Generator) -> tuple[Pieces, Pieces]:
        return [self.start, *pieces], [*pieces, self.end]


@dataclass(frozen=True)
class Masked:
    """The tokens that are hidden, or might be (BERT)."""

    frame: Frame
    mask: int
    words: range  # that may stand in the place of another
    pad: int
    end: int
    aligned: bool = True

    def lengths(self, pieces: np.ndarray) -> np.ndarray:
        whole = pieces + len(self.frame.source([], self.end))
        return np.stack([whole, whole], axis=1)

    def example(self, pieces: Pieces, random: np.random.Generator) -> tuple[Pieces, Pieces]:
        hidden = random.choice(len(pieces), max(1, round(HIDDEN * len(pieces))), replace=False)
        read, expected = list(pieces), [self.pad] * len(pieces)
        for place, draw in zip(hidden.tolist(), random.random(len(hidden)), strict=True):
            expected[place] = pieces[place]
            if draw < MASKED:
                read[place] = self.mask
            elif draw < MASKED + REPLACED:
                read[place] = int(random.choice(self.words))
        source, before = self.frame.source(read, self.end), [self.pad] * len(self.frame.before)
        after = [self.pad] * (len(source) - len(before) - len(read))
        return source, before + expected + after


@dataclass(frozen=True)
class Spans:
    """The spans that are missing, each behind the sentinel that stands in its place (T5)."""

    frame: Frame
    sentinels: Sequence[int]
    end: int
    aligned: bool = False

    def lengths(self, pieces: np.ndarray) -> np.ndarray:
        hidden, spans = hidden_and_spans(pieces, len(self.sentinels))
        read = pieces - hidden + spans + len(self.frame.source([], self.end))
        return np.stack([read, hidden + spans + 1], axis=1)

    def example(self, pieces: Pieces, random: np.random.Generator) -> tuple[Pieces, Pieces]:
        (hidden,), (spans,) = hidden_and_spans(np.array([len(pieces)]), len(self.sentinels))
        gaps = cut(int(hidden), int(spans), random)
        # A gap may also be at the very beginning or end.
        kept = cut(len(pieces) - int(hidden) + 2, int(spans) + 1, random)
        kept[0] -= 1
        read: Pieces = []
        expected: Pieces = []
        place = 0
        for mark, stay, gap in zip(self.sentinels, kept, gaps, strict=False):
            read += [*pieces[place : place + stay], mark]
            expected += [mark, *pieces[place + stay : place + stay + gap]]
            place += stay + gap
        return self.frame.source(read + pieces[place:], self.end), [*expected, self.end]


def hidden_and_spans(pieces: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Of so many pieces (n,), how many are hidden, and in how many spans, at most `most`"""
    hidden = np.maximum(np.round(HIDDEN * pieces), 1).astype(pieces.dtype)
    return hidden, np.clip(np.round(hidden / SPAN), 1, most).astype(pieces.dtype)


def cut(total: int, parts: int, random: np.random.Generator) -> list[int]:
    """A number as the sum of so many, none below 1"""
    bounds = np.sort(random.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff([0, *bounds, total]).tolist()


def gaps_for(config: ModelConfig, longest: int) -> list[str]:
    """The tokens that a vocabulary needs besides words, for texts of at most so many pieces."""
    if config.alone == "decoder":
        return []
    if config.alone == "encoder":
        return [MASK]
    (spans,) = hidden_and_spans(np.array([longest]), MOST_SPANS)[1]
    return [sentinel(n) for n in range(int(spans))]


def objective_for(config: ModelConfig, tokenizer: Tokenizer) -> Objective:
    """What a model with these halves learns from text."""
    end = config.eos_id
    if config.alone == "decoder":
        return Causal(config.first_id, end)
    if config.alone == "encoder":
        if tokenizer.mask is None:
            raise InputError("the tokenizer has no mask: the model cannot learn to fill gaps")
        mask = tokenizer.mask[1]
        return Masked(tokenizer.frame, mask, range(mask + 1, config.vocab_size), config.pad_id, end)
    sentinels = [tokenizer.source.id_of(sentinel(n)) for n in range(MOST_SPANS)]
    known = [i for i in sentinels if i is not None]
    if not known:
        raise InputError(f"the tokenizer has no {sentinel(0)}: the model cannot learn to fill gaps")
    return Spans(tokenizer.frame, known, end)
