"""Two translators in a row: what the first writes, the second reads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, overload

from mlx_transformer.decoding.alignment import Link
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import LAST_WINDOW
from mlx_transformer.decoding.translator import Translation, Translator


class Pivot:
    """Translates as a `Translator` does, by way of a third language.

    Options are of the second search, as are scores and alternatives; the first has those of its own
    model, as wide a beam, and reads lines in the same way.
    """

    def __init__(self, first: Translator, second: Translator) -> None:
        self.first = first
        self.second = second

    @property
    def defaults(self) -> SearchOptions:
        return self.second.defaults

    @overload
    def translate(
        self, texts: str, options: SearchOptions | None = None, **wishes: Any
    ) -> Translation: ...

    @overload
    def translate(
        self, texts: Sequence[str], options: SearchOptions | None = None, **wishes: Any
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
        """As `Translator.translate`; `attention` brings a word alignment, and no weights."""
        options = replace(options or self.defaults, **changes)
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
        window: int | None = LAST_WINDOW,
    ) -> Iterator[Translation]:
        """As `translate`, for any number of texts: a window after the other, in their order."""
        options, waiting = options or self.defaults, iter(texts)
        while block := list(islice(waiting, window)):
            first = self.first.translate(block, self._before(options), attention=attention)
            middle = [found.text for found in first]
            second = self.second.translate(middle, options, prefix=prefix, attention=attention)
            yield from map(through, first, second)

    def stream(
        self, text: str, options: SearchOptions | None = None, *, prefix: str = "", **changes: Any
    ) -> Iterator[str]:
        """As `Translator.stream`, when the first translation is whole"""
        options = replace(options or self.defaults, **changes)
        middle = self.first.translate(text, self._before(options)).text
        yield from self.second.stream(middle, options, prefix=prefix)

    def _before(self, options: SearchOptions) -> SearchOptions:
        usual = replace(self.first.defaults, nbest=1, sample=False)
        shortlist = options.shortlist and self.first.search.shortlist is not None
        return replace(
            usual, beam=options.beam, whole_lines=options.whole_lines, shortlist=shortlist
        )


def through(first: Translation, second: Translation) -> Translation:
    """The translation of a translation, as one of the first source."""
    return replace(
        second,
        source_tokens=first.source_tokens,
        complete=first.complete and second.complete,
        attention=None,
        alignment=links_through(first, second),
        alternatives=[through(first, other) for other in second.alternatives],
    )


def links_through(first: Translation, second: Translation) -> list[Link] | None:
    """Which words of the first source the words of the last translation mean."""
    if first.alignment is None or second.alignment is None:
        return second.alignment
    sources: dict[int, list[int]] = {}
    for i, middle in first.alignment:
        sources.setdefault(middle, []).append(i)
    links = [(i, j) for middle, j in second.alignment for i in sources.get(middle, [])]
    return list(dict.fromkeys(links))
