"""Vocabularies that are a list in JSON, as people save their own, and what is special in them."""

import re
from collections.abc import Mapping
from pathlib import Path

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json_value

# Names of special tokens without their brackets, in small letters; of several the first counts.
SPECIAL = {
    "pad": ("pad", "blank", "padding"),
    "start": ("s", "sos", "bos", "start", "go"),
    "end": ("/s", "eos", "end"),
    "unknown": ("unk", "unknown", "oov"),
}
# Those that may stand in [...]; no single letter, as atoms of molecules are written [S] and [nH].
BRACKETED = {name for names in SPECIAL.values() for name in names if len(name) > 1}
BRACKETED |= {"cls", "sep", "mask"}


def is_special(word: str) -> bool:
    """<...>, and of [...] only what has such a name."""
    if re.fullmatch(r"\[.+\]", word):
        return word[1:-1].lower() in BRACKETED
    return re.fullmatch(r"<.+>", word) is not None


def special_ids(vocab: Mapping[str, int]) -> dict[str, int]:
    """The ids of padding, start, end and unknown, of those that are there: <PAD>, [PAD], <pad>"""
    plain = {word[1:-1].lower(): i for word, i in vocab.items() if is_special(word)}
    return {
        meaning: plain[name]
        for meaning, names in SPECIAL.items()
        for name in reversed(names)  # the first one is set last
        if name in plain
    }


def read_list(path: Path) -> dict[str, int]:
    """{word: id}, {id: word} or a list of words"""
    content = read_json_value(path)
    if isinstance(content, list):
        content = dict(enumerate(content))
    if isinstance(content, dict) and all(isinstance(word, str) for word in content.values()):
        odd = [i for i in content if not re.fullmatch(r"[0-9]{1,9}", str(i))]
        if odd:
            raise InputError(f"{path} numbers words, but {shown(odd[0])} is no id: take it out")
        content = {word: int(i) for i, word in content.items()}
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(w, str) and type(i) is int and i >= 0 for w, i in content.items())
    ):
        raise InputError(f"{path} must be a JSON list of words, or an object from words to ids")
    return content
