"""What a family of checkpoints is, and a checkpoint as seen by its family."""

import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.checkpoint import Checkpoint
from mlx_transformer.convert.mapping import Table
from mlx_transformer.convert.tensors import Tensor
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

SECONDS_A_KEY = 2  # for a user's regular expression


@dataclass(frozen=True)
class Options:
    """What a user can say about a checkpoint that it does not say itself."""

    renames: tuple[tuple[str, str], ...] = ()  # regular expression, replacement
    source_embedding: str | None = None
    target_embedding: str | None = None
    output: str | None = None
    positions: str | None = None
    source_vocab: Path | None = None
    target_vocab: Path | None = None
    source_start: bool = False  # sources, too, begin with the start id
    settings: Mapping[str, Any] = field(default_factory=dict)  # of ModelConfig, stronger than ours


@dataclass(frozen=True)
class Source:
    """A checkpoint whose tensors go by the names of the family's table."""

    checkpoint: Checkpoint
    tensors: dict[str, Tensor]
    original: dict[str, str]  # the name in the file
    options: Options

    def has(self, key: str) -> bool:
        return key in self.tensors

    def key_of(self, original: str) -> str:
        """What a key that the user names is called here."""
        for key, name in self.original.items():
            if name == original:
                return key
        raise InputError(f"the checkpoint has no key {original!r}", options=["list"])

    def rows(self, *keys: str) -> int:
        """How many words the first of these matrices has."""
        for key in keys:
            if self.has(key) and self.tensors[key].shape:
                return self.tensors[key].shape[0]
        raise InputError(f"the checkpoint has no {' and no '.join(keys)}")

    def count_layers(self, pattern: str) -> int:
        """How many layers there are: `{i}` counts from 0, `{n}` from 1."""
        number = re.escape(pattern).replace(r"\{i\}", r"(\d+)").replace(r"\{n\}", r"(\d+)")
        found = {int(m[1]) for key in self.tensors if (m := re.match(number, key))}
        first = 1 if "{n}" in pattern else 0
        return next(i for i in range(len(found) + 1) if i + first not in found)


# Ids (B,S), (B,T) -> (B,T,V); a model of one half reads the first alone.
Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Original:
    """The model that a checkpoint was saved from, to compare the converted one with."""

    description: str
    logits: Logits
    independent: bool = False  # its settings are its own, not those of the converted model


def _any(source: Source) -> bool:
    return True


def _as_it_is(source: Source) -> Source:
    return source


def _nowhere_else(keys: Collection[str]) -> dict[str, str]:
    return {}


def _nothing(source: Source) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """How checkpoints of one origin are recognised, read and described.

    The sizes, the number of layers, which biases and norms exist, what is tied and where positions
    come from is read off the tensors that `table` finds. `settings` adds what they cannot show:
    heads, the place of the norms, the activation, special ids. `original` runs the checkpoint
    without us, given the converted model's config (`originals` has ready-made ones).
    """

    name: str
    title: str
    anchor: str  # a key that all of its checkpoints have
    layers: Mapping[str, str]  # what the keys of an encoder and of a decoder layer start with
    table: Table
    settings: Callable[[Source], dict[str, Any]]
    original: Callable[[Source, ModelConfig], Original]
    matches: Callable[[Source], bool] = _any  # where the anchor is not enough
    # Where its stacks can be anywhere: what keys start with, and what the table says instead.
    stacks: Callable[[Collection[str]], Mapping[str, str]] = _nowhere_else
    prepared: Callable[[Source], Source] = _as_it_is  # e.g. layers that a file holds once for many
    found: Callable[[Source], Table] = _nothing  # lines that depend on the checkpoint
    copies: Mapping[str, str] = field(default_factory=dict)  # keys that must repeat another one
    ignored: tuple[str, ...] = ()  # regular expressions of keys that mean nothing
    vocabulary: Callable[[Source], Mapping[str, Path | bytes]] = _nothing  # by name in the output
    generation: Callable[[Source], Mapping[str, Any]] = _nothing  # of SearchOptions
    embedding: Callable[[Source], Mapping[str, Any]] = _nothing  # of EmbeddingOptions


def open_source(
    checkpoint: Checkpoint, family: Family, options: Options, *, trusted: bool = False
) -> Source | None:
    """The checkpoint under the family's names, if it is of that family (the user knows: trusted).

    Prefixes that wrappers add (`module.`, `model.`) are dropped: from all keys if all have it, and
    whatever stands before the family's anchor.
    """
    names = {_renamed(key, options): key for key in checkpoint.tensors}
    _check_one_to_one(names, checkpoint)
    names = _without_common_prefix(names)
    stacks = family.stacks(names)
    names = {_moved(name, stacks): key for name, key in names.items()}
    _check_one_to_one(names, checkpoint)
    anchor = re.compile(r"(?:^|.*\.)(?=" + re.escape(family.anchor) + "$)")
    prefixes = sorted({m[0] for name in names if (m := anchor.match(name))}, key=len)
    if not prefixes:
        return None
    names = {name.removeprefix(prefixes[0]): key for name, key in names.items()}
    _check_one_to_one(names, checkpoint)
    tensors = {name: checkpoint.tensors[key] for name, key in names.items()}
    source = Source(checkpoint, tensors, names, options)
    return family.prepared(source) if trusted or family.matches(source) else None


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """A regular expression can run for ever. Python lets a signal stop it, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it takes more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _renamed(key: str, options: Options) -> str:
    for pattern, replacement in options.renames:
        try:
            with _time_limit(SECONDS_A_KEY):
                key = re.sub(pattern, replacement, key)
        except (re.error, IndexError, TimeoutError) as error:
            message = f"the renaming {pattern}={replacement} is wrong: {error}"
            raise InputError(message, options=["rename"]) from error
    return key


def _moved(name: str, stacks: Mapping[str, str]) -> str:
    start = next((start for start in stacks if name.startswith(start)), None)
    return name if start is None else stacks[start] + name.removeprefix(start)


def _check_one_to_one(names: Mapping[str, str], checkpoint: Checkpoint) -> None:
    lost = checkpoint.tensors.keys() - set(names.values())
    if lost:
        raise InputError(f"two keys would get one name: {shown(min(lost))} and another one")


def _without_common_prefix(names: dict[str, str]) -> dict[str, str]:
    while len(names) > 1:
        heads = {name.partition(".")[0] for name in names if "." in name}
        if len(heads) != 1 or any("." not in name for name in names):
            break
        names = {name.partition(".")[2]: key for name, key in names.items()}
    return names
