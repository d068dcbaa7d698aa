"""Text of strangers, made fit to be shown: a terminal obeys control characters, a reader cannot."""

import unicodedata

# Control and format characters, surrogates, and what ends a line or a paragraph.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    r"""For messages and lists: what cannot be seen is written out, as \x1b."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSEEN else c for c in text)


def without_controls(text: str) -> str:
    """For text to read: no control characters. Format characters stay, some scripts need them."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\t\n" or unicodedata.category(c) not in ("Cc", "Cs"))


def shown(value: object, most: int = 80) -> str:
    """A value from a file in a message: quoted if it is text, without control codes, cut short."""
    text = repr(value) if isinstance(value, str | int | float | bytes | None) else _kind(value)
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
