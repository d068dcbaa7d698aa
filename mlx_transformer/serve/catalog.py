"""The models by language: which one, or which two in a row, a pair of languages takes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mlx_transformer import hub
from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError
from mlx_transformer.storage import check_is_model_directory
from mlx_transformer.tokenizer.languages import pair_of

# How many models a route may take: any of those there are, or exactly one.
ANY_ROUTE, ONE_MODEL = range(3), range(1, 2)

_CARD = re.compile(r"^language:\s*\[\s*([a-z]{2,3})\s*,\s*([a-z]{2,3})\s*\]", re.MULTILINE)


@dataclass(frozen=True)
class ServedModel:
    """A model and the direction it translates."""

    translator: Translator
    source: str
    target: str


class Catalog:
    """All models. A route is the legs from one language to another, none if both are the same."""

    def __init__(self, legs: Iterable[ServedModel]) -> None:
        self._legs = {(leg.source, leg.target): leg for leg in reversed(list(legs))}
        pairs = self._legs.keys()
        self.languages = sorted({language for pair in pairs for language in pair})

    @property
    def first(self) -> ServedModel:
        """The model that was named first"""
        return list(self._legs.values())[-1]

    @property
    def by_use(self) -> list[str]:
        """All languages; those that models translate from come first, in the order given."""
        sources = [source for source, _ in reversed(self._legs)]
        return list(dict.fromkeys([*sources, *self.languages]))

    def route(self, source: str, target: str) -> list[ServedModel] | None:
        """The direct model, else two by way of a third language; None if there is no way."""
        if source == target:
            return []
        if (source, target) in self._legs:
            return [self._legs[source, target]]
        for pivot in self.languages:
            legs = [self._legs.get((source, pivot)), self._legs.get((pivot, target))]
            if legs[0] and legs[1]:
                return [legs[0], legs[1]]
        return None

    def targets(self, source: str, legs: range = ANY_ROUTE) -> list[str]:
        """The languages that one can be translated to, by so many models in a row"""
        routes = {target: self.route(source, target) for target in self.languages}
        return [target for target, route in routes.items() if fits(route, legs)]


def fits(route: list[ServedModel] | None, legs: range) -> bool:
    return route is not None and len(route) in legs


def languages_of(directory: Path, given: Path) -> tuple[str, str]:
    """The languages of a model, from the name it was given by, its tokenizer or else its card."""
    check_is_model_directory(directory)
    found = pair_of(given.name) or pair_of(directory.resolve().name)
    sources, targets = hub.languages_of(directory)
    if found is None and len(sources) == len(targets) == 1:
        found = sources[0], targets[0]
    card = directory / "README.md"
    if found is None and card.is_file():
        line = _CARD.search(card.read_text(encoding="utf-8", errors="replace"))
        found = (line[1], line[2]) if line else None
    if found is None:
        raise InputError(f"the languages of {given} are not known: name them, as in en-de={given}")
    return found
