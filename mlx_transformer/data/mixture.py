"""Mixing training text: corpora by weight, pairs as people type them, and other names in them.

What is drawn comes from a fixed seed, so the same recipe always gives the same text.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from random import Random
from typing import TypeVar

Item = TypeVar("Item")
Unread = TypeVar("Unread")  # takes the place of a line that cannot be read
TextPair = tuple[str, str]

SENTENCE_ENDS = ".!?"

CAPITALISED = re.compile(r"\b[A-Z][^\W\d_]{2,}\b")
# The first word of a sentence begins with a capital, whatever it is: no sign of a name.
INSIDE = re.compile(r"(?<=[\w,] )[A-Z][^\W\d_]{2,}\b")
NUMBER = re.compile(r"(?<![\d.,:])[1-9]\d*(?![.,:]?\d)")


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


def with_other_names(
    pairs: Iterable[tuple[str | Unread, str | Unread]], share: float
) -> Iterator[tuple[str | Unread, str | Unread]]:
    """The pairs, a `share` of them with other names and numbers: a model learns to copy them.

    A name is a word with a capital letter that both sides have, and that both sides of some pair so
    far had inside a sentence. Other names are those of the pairs before.
    """
    chance = Random(0)
    known: list[str] = []  # to choose from
    found: set[str] = set()  # the same, to look up
    for number, pair in enumerate(pairs):
        source, target = pair
        if not (isinstance(source, str) and isinstance(target, str)):
            yield pair
            continue
        exchange = share_of(number + 1, share) > share_of(number, share)
        names = [word for word in _in_both(CAPITALISED, source, target) if word in found]
        if exchange:
            pair = _exchanged((source, target), names, known, chance)
        yield pair
        known += [word for word in _in_both(INSIDE, source, target) if word not in found]
        found.update(known[len(found) :])


def _exchanged(pair: TextPair, names: list[str], known: list[str], chance: Random) -> TextPair:
    """The pair with other names instead of these, and other numbers of as many digits."""
    new = {name: chance.choice(known) for name in names}
    for digits in _in_both(NUMBER, *pair):
        lowest = 10 ** (len(digits) - 1)
        new[digits] = str(chance.randrange(lowest, 10 * lowest))
    if not new:
        return pair
    words = re.compile(rf"\b({'|'.join(new)})\b")
    source, target = (words.sub(lambda found: new[found[0]], side) for side in pair)
    return source, target


def _in_both(pattern: re.Pattern[str], source: str, target: str) -> list[str]:
    """What the pattern finds in both sides, in the order of the source."""
    found = set(pattern.findall(target))
    return [word for word in dict.fromkeys(pattern.findall(source)) if word in found]


def unfinished(pair: TextPair, before: TextPair) -> TextPair:
    """Both without their full stop."""
    source, target = (side.rstrip() for side in pair)
    if source[-1:] in SENTENCE_ENDS and target[-1:] in SENTENCE_ENDS:
        return source[:-1], target[:-1]
    return pair


def in_haste(pair: TextPair, before: TextPair) -> TextPair:
    """A source typed without capitals and full stop; the translation keeps its capitals."""
    source, target = unfinished(pair, before)
    return source.lower(), target


def capitals(pair: TextPair, before: TextPair) -> TextPair:
    return pair[0].upper(), pair[1].upper()


def joined(pair: TextPair, before: TextPair) -> TextPair:
    """Two sentences in one line, as in a paragraph."""
    return f"{before[0]} {pair[0]}", f"{before[1]} {pair[1]}"


# Full stops are left out far more often than whole lines are typed in capitals.
VARIANTS: tuple[Callable[[TextPair, TextPair], TextPair], ...] = (
    unfinished, joined, unfinished, in_haste, joined, in_haste, capitals,
)  # fmt: skip
