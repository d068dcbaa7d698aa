"""How settings are checked: a mistake is an `InputError` that names the setting."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

LARGEST_FLOAT = 10**300  # greater whole numbers do not become floating-point ones
NEAR_PATH = 0.75  # as difflib counts: en-fr is not a mistyped en-de
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def typed(name: str, value: Any, hint: Any) -> Any:
    """`value`, if it is what the annotation of its field says; 1 is a float where one is wanted."""
    allowed = get_args(hint) or (hint,)
    if get_origin(hint) is Literal or any(get_origin(kind) is Literal for kind in allowed):
        return _one_of(name, value, hint)
    if float in allowed and type(value) is int and abs(value) < LARGEST_FLOAT:
        return float(value)
    # type() rather than isinstance(): True is not a number of layers.
    if type(value) not in allowed:
        words = " or ".join(WORDS[kind] for kind in allowed if kind is not NoneType)
        raise InputError(f"{name} must be {words}, not {shown(value)}")
    return value


def _one_of(name: str, value: Any, hint: Any) -> Any:
    """`hint` is a Literal, or one or None."""
    kinds = [hint] if get_origin(hint) is Literal else get_args(hint)
    choices = [choice for kind in kinds for choice in get_args(kind)]
    if value not in choices and not (value is None and NoneType in kinds):
        listed = ", ".join(map(repr, choices))
        raise InputError(f"{name} must be one of {listed}, not {shown(value)}")
    return value


def must_be(
    wanted: str, holds: Callable[[Any], bool], owner: object, *names: str, section: str = ""
) -> None:
    """Each of these settings of `owner` is None, or `holds` of it; `wanted` says it in words."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not holds(value):
            raise InputError(f"{section}{name} must be {wanted}, not {shown(value)}")


def at_least(lowest: float, owner: object, *names: str, section: str = "") -> None:
    must_be(f"at least {lowest}", lambda value: value >= lowest, owner, *names, section=section)


def between(lowest: int, most: int, owner: object, *names: str) -> None:
    wanted = f"from {lowest} to {most:,}"
    must_be(wanted, lambda value: lowest <= value <= most, owner, *names)


def above_zero(owner: object, *names: str, section: str = "") -> None:
    must_be("above 0", lambda value: value > 0, owner, *names, section=section)


def below_one(owner: object, *names: str, section: str = "") -> None:
    must_be("in [0, 1)", lambda value: 0 <= value < 1, owner, *names, section=section)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` where some known word is near, else nothing."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest_path(path: Path) -> str:
    """`; did you mean weights/en-de?` where each folder of a mistyped path is near one that is
    there, else nothing."""
    found = Path(path.anchor)
    for part in path.parts[len(found.parts) :]:
        if not (found / part).exists():
            beside = [each.name for each in found.glob("*")]
            matches = difflib.get_close_matches(part, beside, n=1, cutoff=NEAR_PATH)
            if not matches:
                return ""
            part = matches[0]
        found /= part
    return f"; did you mean {found}?"
