"""Around which words of a translation the elements of a text go.

Neighbours go around words in a row, apart from each other. An element that stood around words of
the text stands around words of the translation as long as there are enough.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

Span = tuple[int, int]  # words [first, last); a point where both are the same
Links = Sequence[Sequence[int]]  # by word of the translation, those it comes from, the first most
Runs = dict[int, Span]  # by element


class Element(Protocol):
    """Stands around words [start, end) of the text, and needs so many of the translation."""

    start: int
    end: int
    needs: int


def runs_for(elements: Sequence[Element], links: Links, low: int, high: int) -> list[Span]:
    """For each of these neighbours, in the order of the text, its words among [low, high)"""
    words = WordsBySource(links, low, high)
    own = own_runs(word_owners(elements, links, low, high), low)
    runs = apart(elements, with_free_words(elements, own, words), set(own), low, high)
    inside = {j: last for first, last in runs.values() for j in range(first + 1, last)}
    for n, element in enumerate(elements):
        if n not in runs:
            point = words.first_from(element.start)
            runs[n] = (inside.get(point, point),) * 2
    return [runs[n] for n in range(len(elements))]


class WordsBySource:
    """The words [low, high) of a translation, by where they come from."""

    def __init__(self, links: Links, low: int, high: int) -> None:
        self.all = range(low, high)
        self._by_source = sorted((links[j][0], j) for j in self.all)
        backwards = [j for _, j in reversed(self._by_source)]
        self._firsts = [*accumulate(backwards, min, initial=high)][::-1]

    def first_from(self, source: int) -> int:
        """The first one that comes from a word of the text or from behind it"""
        return self._firsts[bisect_left(self._by_source, (source,))]

    def beside(self, element: Element) -> int:
        """Where an element goes that no word comes from: behind the first word that comes from the
        text before it or before the last one from the text behind it, whichever text is closer"""
        at = bisect_left(self._by_source, (element.start,))
        before = self._by_source[at - 1][0] if at else -math.inf
        after = self._by_source[at][0] if at < len(self._by_source) else math.inf
        if element.start - before <= after - (element.end - 1):
            return self._by_source[bisect_left(self._by_source, (before,))][1] + 1
        return self._by_source[bisect_left(self._by_source, (after + 1,)) - 1][1] - 1


def word_owners(elements: Sequence[Element], links: Links, low: int, high: int) -> list[int | None]:
    """The element that each word of [low, high) comes from, most of all.

    An element that no word comes from most of all gets one that comes from it as well, unless that
    is the only one of another.
    """
    by_source = {
        i: n
        for n, element in reversed(list(enumerate(elements)))
        if element.needs
        for i in range(element.start, element.end)
    }
    owners = [by_source.get(links[j][0]) for j in range(low, high)]
    counts = Counter(owners)
    for j in range(low, high):
        for n in map(by_source.get, links[j][1:]):
            holder = owners[j - low]
            if n is not None and not counts[n] and (holder is None or counts[holder] > 1):
                owners[j - low] = n
                counts.update({n: 1, holder: -1})
    return owners


def own_runs(owners: Sequence[int | None], low: int) -> Runs:
    """By element, the words in a row with most of its own and fewest that belong to none.

    No run has a word of another element in it, so they are apart.
    """
    best: dict[int, tuple[int, Span]] = {}
    owner, score, start = None, 0, low  # of the run that word j may continue
    for j, own in enumerate(owners, low):
        if own is None:
            score -= 1
            continue
        if own == owner and score > 0:
            score += 1
        else:
            owner, score, start = own, 1, j
        if own not in best or score > best[own][0]:
            best[own] = score, (start, j + 1)
    return {n: run for n, (_, run) in best.items()}


def with_free_words(elements: Sequence[Element], own: Runs, words: WordsBySource) -> Runs:
    """The runs, and for each element that has none the closest word that is in no run.

    When all words are taken, it is a point where it should be.
    """
    runs = dict(own)
    taken = {j for run in runs.values() for j in range(*run)}
    free = [j for j in words.all if j not in taken]
    for n, element in enumerate(elements):
        if element.needs and n not in runs and words.all:
            wanted = words.beside(element)
            at = bisect_left(free, wanted)
            near = free[max(at - 1, 0) : at + 1]
            if near:
                word = min(near, key=lambda j: abs(j - wanted))
                free.remove(word)
                runs[n] = word, word + 1
            else:
                runs[n] = wanted, wanted
    return runs


def apart(elements: Sequence[Element], runs: Runs, own: set[int], low: int, high: int) -> Runs:
    """The runs in their order, each as long as its element needs as far as words last."""
    order = sorted(runs, key=lambda n: (runs[n], n))
    needs = affordable({n: elements[n].needs for n in order}, own, high - low)
    later = sum(needs.values())
    made: Runs = {}
    end = low
    for n in order:
        later -= needs[n]
        start = min(max(runs[n][0], end), high - later - needs[n])
        end = min(max(runs[n][1], start + needs[n]), high - later)
        made[n] = start, end
    return made


def affordable(needs: dict[int, int], own: set[int], words: int) -> dict[int, int]:
    """What each needs. Of too few words each gets one, those with words of their own first."""
    if sum(needs.values()) <= words:
        return needs
    served = set(sorted(needs, key=lambda n: n not in own)[:words])
    return {n: int(n in served) for n in needs}
