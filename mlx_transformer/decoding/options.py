"""What a search is asked to do: one frozen, validated set of options."""

import math
from dataclasses import dataclass
from typing import Literal

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.checks import at_least, must_be, typed

LengthPenalty = Literal["paper", "plain"]


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Beam search with the paper's settings by default; `beam=1` is greedy.

    Length counts generated tokens, the end of sentence included and the start token not.
    """

    beam: int = 4
    # Finished hypotheses are ranked by log-probability / penalty(length), where the penalty is
    # ((5 + L) / 6)^alpha in the paper and L^alpha in fairseq, Marian, transformers, CTranslate2.
    alpha: float = 0.6
    length_penalty: LengthPenalty = "paper"
    nbest: int = 1

    # Draw words instead of searching; `nbest` is then the number of independent draws.
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    # None: as long as the source and 50 more, the paper's limit.
    max_tokens: int | None = None
    min_tokens: int = 0
    no_repeat_ngram: int | None = None
    banned: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        at_least(0, self, "min_tokens", "seed")
        at_least(1, self, "beam", "nbest", "top_k", "max_tokens", "no_repeat_ngram")
        must_be("0 or more", lambda alpha: 0 <= alpha < math.inf, self, "alpha")
        must_be("more than 0", lambda t: 0 < t < math.inf, self, "temperature")
        must_be("more than 0 and at most 1", lambda p: 0 < p <= 1, self, "top_p")
        typed("length_penalty", self.length_penalty, LengthPenalty)
        if not self.sample and self.nbest > self.beam:
            raise InputError(
                f"nbest {self.nbest} needs a beam at least as wide, not {self.beam}: raise beam"
            )

    @property
    def width(self) -> int:
        """Hypotheses kept open per sentence."""
        return self.nbest if self.sample else self.beam

    def penalty(self, length: int) -> float:
        """What the log-probability of a hypothesis of this length is divided by."""
        base = (5 + length) / 6 if self.length_penalty == "paper" else length
        return float(base**self.alpha)

    def limit(self, source_tokens: int, max_length: int) -> int:
        """The greatest length for a source of this many tokens (its end of sentence not counted)"""
        wanted = source_tokens + 50 if self.max_tokens is None else self.max_tokens
        return min(wanted, max_length)
