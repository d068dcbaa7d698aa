"""What a search is asked to do: one frozen, validated set of options."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

from mlx_transformer.errors import InputError, naming
from mlx_transformer.inputs.checks import between, must_be, typed
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json

# Beside a model: the options it is meant to be used with.
FILE = "generation.json"

LengthPenalty = Literal["paper", "plain"]
Stop = Literal["certain", "likely", "full"]


# Beyond these nothing gets better, and numbers overflow or memory ends.
MOST_HYPOTHESES = 1000
MOST_TOKENS = 1_000_000
MOST_SEED = 2**63 - 1


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
    # When a beam is done: no open hypothesis can become one of the nbest any more; or, as
    # transformers has it, there are as many finished ones as the beam is wide (full), and the best
    # open one is not above the worst of them as it stands (likely).
    stop: Stop = "certain"

    # Draw words instead of searching; `nbest` is then the number of independent draws.
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    # A line is read sentence by sentence, as most models were trained; or as it is.
    whole_lines: bool = False
    # Keep to the words that the model's shortlist has for a sentence, as Firefox does.
    shortlist: bool = False
    # None: as long as the source and 50 more, the paper's limit.
    max_tokens: int | None = None
    min_tokens: int = 0
    no_repeat_ngram: int | None = None
    banned: tuple[int, ...] = ()
    banned_phrases: tuple[tuple[int, ...], ...] = ()
    ban_padding: bool = True  # and the start token, which a trained model does not write either
    renormalize: bool = False  # probabilities are of the words that are not banned

    # Words that are given, at no cost: the first, and the end of a sentence at its length limit.
    first_word: int | None = None
    end_at_limit: bool = False

    def __post_init__(self) -> None:
        for name, hint in _plain_hints().items():
            object.__setattr__(self, name, typed(name, getattr(self, name), hint))
        between(0, MOST_TOKENS, self, "min_tokens")
        between(0, MOST_SEED, self, "seed")
        between(1, MOST_HYPOTHESES, self, "beam", "nbest")
        between(1, MOST_TOKENS, self, "top_k", "max_tokens", "no_repeat_ngram")
        between(0, 100, self, "alpha")
        must_be("from 0.001 to 1,000", lambda t: 0.001 <= t <= 1000, self, "temperature")
        must_be("more than 0 and at most 1", lambda p: 0 < p <= 1, self, "top_p")
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SearchOptions":
        """From plain values, such as those of a file: lists become tuples."""
        known = {field.name for field in fields(cls)}
        if odd := values.keys() - known:
            raise InputError(f"unknown search option {shown(min(odd))}")
        return cls(**{name: _frozen(value) for name, value in values.items()})


@cache
def _plain_hints() -> dict[str, Any]:
    """The types of all options but lists of ids; asked for once, there are many searches."""
    hints = get_type_hints(SearchOptions)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not tuple}


def model_options(directory: Path) -> SearchOptions:
    """The options a model is meant to be used with; ours, where it does not say."""
    path = directory / FILE
    if not path.is_file():
        return SearchOptions()
    values = read_json(path)
    with naming(path):
        return SearchOptions.from_dict(values)


def differing(options: SearchOptions) -> dict[str, Any]:
    """Those that are not ours."""
    ours = asdict(SearchOptions())
    return {name: value for name, value in asdict(options).items() if value != ours[name]}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
