"""Vocabularies that are a list in JSON, as people save their own, and what is special in them."""

import re
from collections.abc import Mapping
from pathlib import Path

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.untrusted import parse_json

# Names of special tokens without their brackets, in small letters.
SPECIAL = {
    "pad": ("pad", "blank", "padding"),
    "start": ("s", "sos", "bos", "start", "go"),
    "end": ("/s", "eos", "end"),
    "unknown": ("unk", "unknown", "oov"),
}


BRACKETED = {name for names in SPECIAL.values() for name in names} | {"cls", "sep", "mask"}


def is_special(word: str) -> bool:
    """<...>, and of [...] what has such a name: atoms of molecules are written [nH]."""
    if re.fullmatch(r"\[.+\]", word):
        return word[1:-1].lower() in BRACKETED
    return re.fullmatch(r"<.+>", word) is not None


def special_ids(vocab: Mapping[str, int]) -> dict[str, int]:
    """The ids of padding, start, end and unknown, of those that are there: <PAD>, [PAD], <pad>"""
    plain = {word[1:-1].lower(): i for word, i in vocab.items() if is_special(word)}
    return {
        meaning: plain[name]
        for meaning, names in SPECIAL.items()
        for name in reversed(names)
        if name in plain
    }


def read_list(path: Path) -> dict[str, int]:
    """{word: id}, {id: word} or a list of words"""
    content = parse_json(b'{"words": ' + path.read_bytes() + b"}", str(path))["words"]
    if isinstance(content, list):
        content = dict(enumerate(content))
    if isinstance(content, dict) and all(isinstance(word, str) for word in content.values()):
        content = {word: int(i) for i, word in content.items() if re.fullmatch(r"\d{1,9}", str(i))}
    if (
        not isinstance(content, dict)
        or not content
        or not all(type(i) is int and i >= 0 for i in content.values())
    ):
        raise InputError(f"{path} must be a JSON list of words, or an object from words to ids")
    return content
