"""The models on this machine by language: one that translates between two, or two in a row."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

from mlx_transformer import hub
from mlx_transformer.errors import InputError
from mlx_transformer.hub import Tell, silent
from mlx_transformer.storage import WEIGHTS, is_model_directory, shipped_models
from mlx_transformer.tokenizer.languages import find_language, language_name, pair_of

if TYPE_CHECKING:
    import mlx.core as mx

    from mlx_transformer.decoding.pivot import Pivot
    from mlx_transformer.decoding.translator import Translator

ARGOS_PACKAGE = ".argosmodel"
SHIPPED = "it ships"  # owner of the models that come with this program


@dataclass(frozen=True)
class Installed:
    """A model, the languages that it reads and writes by its own codes, and whose it is."""

    path: Path
    owner: str
    sources: Sequence[str]
    targets: Sequence[str]

    def translates(self, source: str | None, target: str | None) -> bool:
        """None: any language"""
        return _is_among(source, self.sources) and _is_among(target, self.targets)


class Leg(NamedTuple):
    """A model of a route, and what it translates there: as typed, or by a code of its own."""

    model: Installed
    source: str | None
    target: str | None


@overload
def load(model: str | Path | None = None, dtype: "mx.Dtype | None" = None) -> "Translator": ...


@overload
def load(*, source: str, target: str, dtype: "mx.Dtype | None" = None) -> "Translator | Pivot": ...


def load(
    model: str | Path | None = None,
    dtype: "mx.Dtype | None" = None,
    *,
    source: str | None = None,
    target: str | None = None,
) -> "Translator | Pivot":
    """A translator from a model directory, a checkpoint that can be converted, or `org/name` on
    the Hugging Face hub; by default the model that ships.

    `load(source="Portuguese", target="zh")` takes the model on this machine for these languages,
    or two by way of a third. `dtype` is what it computes in; None: as stored, but on a CPU plain
    float32.
    """
    if source is None and target is None:
        return _opened(model, dtype, silent)
    if source is None or target is None or model is not None:
        raise InputError(
            "name both languages and no model, or a model: load(...).between(source, target)"
        )
    legs = route(source, target)
    if not legs:
        raise no_way(source, target)
    if len(legs) > 1:
        warnings.warn(described(legs), stacklevel=2)
    return open_route(legs, dtype)


def open_route(
    legs: Sequence[Leg], dtype: "mx.Dtype | None" = None, tell: Tell = silent
) -> "Translator | Pivot":
    from mlx_transformer.decoding.pivot import Pivot

    first, *more = (_opened(leg.model.path, dtype, tell, leg) for leg in legs)
    return Pivot(first, *more) if more else first


def _opened(
    model: str | Path | None, dtype: "mx.Dtype | None", tell: Tell, leg: Leg | None = None
) -> "Translator":
    from mlx_transformer.decoding import translator

    if model is None:
        return translator.load(None, dtype)
    name = None if dtype is None else str(dtype).removeprefix("mlx.core.")
    found = translator.load(hub.resolve(model, name, tell=tell), dtype)
    if leg is None:
        return found
    tags = found.tokenizer.tags  # a model of one language is not told which
    return found.between(
        leg.source if len(tags.sources) > 1 else None, leg.target if len(tags.targets) > 1 else None
    )


def route(source: str | None, target: str | None) -> list[Leg]:
    """The model from one language to the other, or two by way of a third; none: there is no way.

    Models of one direction come before those of many languages, English before other ways. Where a
    language is None, it is any model of the other.
    """
    known = sorted(installed(), key=lambda model: len(model.targets))

    def direct(source: str | None, target: str | None) -> Leg | None:
        found = (model for model in known if model.translates(source, target))
        return next((Leg(model, source, target) for model in found), None)

    if leg := direct(source, target):
        return [leg]
    if source is None or target is None:
        return []
    ways = [
        [Leg(first, source, middle), second]
        for first in known
        if _is_among(source, first.sources)
        for middle in first.targets
        if (second := direct(middle, target)) and not _is_among(middle, [source])
        if not _is_among(source, [target])  # nothing is translated there and back
    ]
    return min(ways, key=lambda legs: not _is_among("en", [str(legs[0].target)]), default=[])


def described(legs: Sequence[Leg]) -> str:
    """A route in a sentence"""
    if len(legs) == 1:
        return f"translating with {legs[0].model.path}"
    models = " and then ".join(str(leg.model.path) for leg in legs)
    return f"translating by way of {language_name(str(legs[0].target))}, with {models}"


def no_way(source: str | None, target: str | None) -> InputError:
    sides = (("from", source), ("to", target))
    wanted = " ".join(f"{word} {language}" for word, language in sides if language)
    pairs = [f"{m.sources[0]}-{m.targets[0]}" for m in installed() if _is_one_way(m)]
    known = ", ".join(dict.fromkeys(pairs)) or "none"
    return InputError(
        f"no model on this machine translates {wanted}, nor do two in a row "
        f"(found: {known}): name a model, or a folder of models in MLX_TRANSFORMER_MODELS"
    )


def installed() -> Iterator[Installed]:
    """All models whose languages are known: those that ship and those beside them, what lies in
    $MLX_TRANSFORMER_MODELS, the cache, Argos Translate's packages and fxtranslate's models."""
    yield from _known(shipped_models(), SHIPPED)
    yield from _known(set(WEIGHTS.glob("*")) - set(shipped_models()), "mlx-transformer")
    if own := os.environ.get("MLX_TRANSFORMER_MODELS"):
        yield from _known(Path(own).glob("*"), own)
    for entry in hub.cached():
        if entry.sources and entry.targets:
            yield Installed(entry.model, "the cache", entry.sources, entry.targets)
    yield from _known(_argos_packages().glob("*"), "Argos Translate")
    for folder in _fxtranslate_models():
        yield from _known(folder.glob("*"), "fxtranslate")


def _known(paths: Iterable[Path], owner: str) -> Iterator[Installed]:
    for path in paths if owner == SHIPPED else sorted(paths):
        sources, targets = _languages(path)
        if sources and targets:
            yield Installed(path, owner, sources, targets)


def _languages(path: Path) -> tuple[Sequence[str], Sequence[str]]:
    """What a model says of its languages itself, else what its name says"""
    from mlx_transformer.convert.checkpoint import holds_weights
    from mlx_transformer.convert.languages import said_languages

    if path.is_dir() and is_model_directory(path):
        return hub.languages_of(path)
    if path.suffix != ARGOS_PACKAGE and not (path.is_dir() and holds_weights(path)):
        return (), ()
    pair = said_languages(path) or pair_of(path.name)
    return (pair[:1], pair[1:]) if pair else ((), ())


def _argos_packages() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("ARGOS_PACKAGES_DIR") or Path(data) / "argos-translate" / "packages")


def _fxtranslate_models() -> list[Path]:
    """Its cache on Linux and on a Mac"""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folders = (Path(cache), Path.home() / "Library" / "Caches")
    return [folder / "fxtranslate" / "models" for folder in folders]


def _is_one_way(model: Installed) -> bool:
    return len(model.sources) == len(model.targets) == 1


def _is_among(typed: str | None, codes: Sequence[str]) -> bool:
    try:
        return typed is None or bool(find_language(typed, codes))
    except InputError:
        return False
