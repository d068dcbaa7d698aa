"""What the verbs that translate share: the flags of the search, and how it goes."""

import argparse
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from mlx_transformer.cli.output import STDERR, tell
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.errors import InputError

if TYPE_CHECKING:
    from mlx_transformer.decoding.completer import Completion
    from mlx_transformer.decoding.translator import Translation

_DEFAULTS = SearchOptions()


def add_search_flags(parser: argparse.ArgumentParser, *, with_source: bool = True) -> None:
    """Names are those of `SearchOptions`; some are of use only where a source is read."""
    group = parser.add_argument_group("search")
    add = group.add_argument
    add(
        "--beam",
        type=int,
        metavar="N",
        help=f"width; 1 is greedy (default: the model's own, else {_DEFAULTS.beam})",
    )
    add(
        "--alpha",
        type=float,
        metavar="A",
        help=f"length penalty (default: the model's own, else {_DEFAULTS.alpha})",
    )
    add(
        "--length-penalty",
        choices=("paper", "plain"),
        help="((5+L)/6)^A, or L^A as fairseq, Marian and transformers have it (default paper)",
    )
    add("--nbest", type=int, metavar="N", help="so many translations of each sentence")
    add("--sample", action="store_true", default=None, help="draw words instead of searching")
    add("--temperature", type=float, metavar="T", help="for --sample (default 1)")
    add("--top-k", type=int, metavar="K", help="for --sample: among the K most probable words")
    add("--top-p", type=float, metavar="P", help="for --sample: among the top P of probability")
    add("--seed", type=int, metavar="N", help="for --sample (default 0)")
    limit = "source + 50" if with_source else "50"
    add("--max-tokens", type=int, metavar="N", help=f"length limit (default: {limit})")
    add("--min-tokens", type=int, metavar="N", help="no translation ends before (default 0)")
    add("--no-repeat-ngram", type=int, metavar="N", help="no N tokens in a row come twice")
    if with_source:
        add(
            "--shortlist",
            action="store_true",
            default=None,
            help="choose among the words that the model's shortlist has for a sentence: faster",
        )
        add(
            "--whole-lines", action="store_true", default=None, help="no line is cut into sentences"
        )


def options_of(args: argparse.Namespace, defaults: SearchOptions) -> SearchOptions:
    """The options that were given, the others as the model has them; a wider n-best list brings a
    wider beam."""
    given = {
        field.name: value
        for field in fields(SearchOptions)
        if (value := getattr(args, field.name, None)) is not None
    }
    if "beam" in given:
        given.setdefault("sample", False)
    if not given.get("sample", defaults.sample):
        only = [name for name in ("temperature", "top_k", "top_p", "seed") if name in given]
        if only:
            raise InputError(f"--{only[0].replace('_', '-')} is for sampling: add --sample")
        if "beam" not in given:
            given["beam"] = max(defaults.beam, given.get("nbest", 1))
    return replace(defaults, **given)


@contextmanager
def notes(most: int = 3) -> Iterator[None]:
    """Warnings as sentences on stderr, when all is done: the first few, and how many more."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in found[:most]:
                tell(str(warning.message))
            if len(found) > most:
                tell(f"and {len(found) - most:,} more such warnings")


class Meter:
    """Counts what was translated, and how fast."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.sentences = 0
        self.tokens = 0

    def add(self, written: "Translation | Completion") -> None:
        self.sentences += 1
        self.tokens += len(written.tokens)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    @property
    def rate(self) -> str:
        return f"{self.tokens / self.seconds:,.0f} tokens/s"

    def __str__(self) -> str:
        import mlx.core as mx

        return (
            f"{self.sentences:,} sentences, {self.tokens:,} tokens in {self.seconds:.1f} s, "
            f"{self.rate}, peak memory {mx.get_peak_memory() / 1e9:.2f} GB"
        )


class ProgressBar:
    """A bar on a terminal, a line every ten seconds elsewhere; nothing for what is soon done."""

    SECONDS = 10

    def __init__(self, meter: Meter, total: int | None) -> None:
        from tqdm import tqdm

        self._meter = meter
        self._total = total
        self._next = self.SECONDS
        self._bar = tqdm(
            total=total, unit=" lines", file=STDERR, disable=None, leave=False, delay=1
        )

    def update(self) -> None:
        self._bar.set_postfix_str(self._meter.rate, refresh=False)
        self._bar.update()
        if self._bar.disable and self._meter.seconds > self._next:
            self._next += self.SECONDS
            of = f" of {self._total:,}" if self._total else ""
            tell(f"{self._meter.sentences:,}{of} lines, {self._meter.rate}")

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
