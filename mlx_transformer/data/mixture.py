"""Mixing training text: corpora by weight, and pairs as people type them.

Nothing is drawn at random, so the same recipe always gives the same text.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import TypeVar

Item = TypeVar("Item")
Unread = TypeVar("Unread")  # what stands for a line that is no text
TextPair = tuple[str, str]

SENTENCE_ENDS = ".!?"


def share_of(count: int, weight: float) -> int:
    """How many items `repeated` makes of so many."""
    return int(count * weight)


def repeated(items: Iterable[Item], weight: float) -> Iterator[Item]:
    """Each item `weight` times on average: 0.5 is every second one, 2.5 two and three in turn."""
    for number, item in enumerate(items):
        for _ in range(share_of(number + 1, weight) - share_of(number, weight)):
            yield item


def with_variants(
    pairs: Iterable[tuple[str | Unread, str | Unread]], share: float
) -> Iterator[tuple[str | Unread, str | Unread]]:
    """All pairs and, evenly between them, variants of a `share` of them, each kind in turn.

    A pair of which no variant can be made is given once more as it is.
    """
    kinds = cycle(VARIANTS)
    before: TextPair | None = None
    for number, pair in enumerate(pairs):
        yield pair
        source, target = pair
        text = (source, target) if isinstance(source, str) and isinstance(target, str) else None
        if share_of(number + 1, share) > share_of(number, share):
            vary = next(kinds)
            yield vary(text, before or text) if text else pair
        before = text


def lower_case(pair: TextPair, before: TextPair) -> TextPair:
    """A source typed in haste, its translation as it should be."""
    return pair[0].lower(), pair[1]


def unfinished(pair: TextPair, before: TextPair) -> TextPair:
    """Both without their full stop."""
    source, target = (side.rstrip() for side in pair)
    if source[-1:] in SENTENCE_ENDS and target[-1:] in SENTENCE_ENDS:
        return source[:-1], target[:-1]
    return pair


def capitals(pair: TextPair, before: TextPair) -> TextPair:
    return pair[0].upper(), pair[1].upper()


def joined(pair: TextPair, before: TextPair) -> TextPair:
    """Two sentences in one line, as in a paragraph."""
    return f"{before[0]} {pair[0]}", f"{before[1]} {pair[1]}"


# Full stops are left out far more often than whole lines are typed in capitals.
VARIANTS: tuple[Callable[[TextPair, TextPair], TextPair], ...] = (
    unfinished, joined, unfinished, lower_case, joined, unfinished, capitals,
)  # fmt: skip
