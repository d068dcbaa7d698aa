"""What people call languages, and the codes by which models know them.

A model's codes differ: `deu_Latn` (NLLB), `de` (M2M100, MADLAD), `de_DE` (mBART), `deu` (OPUS-MT).
All begin with a language, and some go on with a script or a country.
"""

import difflib
import re
from collections.abc import Sequence
from functools import cache

from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.language_names import TABLE

# Where a language has several scripts, a country says which one is meant.
SCRIPT_OF_COUNTRY = {"tw": "hant", "hk": "hant", "mo": "hant", "cn": "hans", "sg": "hans"}
# What people write instead of a code with a script.
SPELLED_OUT = {
    "traditional chinese": "zh_hant",
    "chinese (traditional)": "zh_hant",
    "simplified chinese": "zh_hans",
    "chinese (simplified)": "zh_hans",
    "brazilian portuguese": "pt_br",
}


def find_language(typed: str, codes: Sequence[str]) -> str:
    """The model's code for what was typed: a code of any kind, or the name of a language."""
    wanted = SPELLED_OUT.get(typed.casefold(), typed).casefold().strip().replace("-", "_")
    for code in codes:
        if code.casefold() == wanted:
            return code
    language, _, rest = wanted.partition("_")
    same = _same_language(language, codes)
    if not same:
        raise InputError(f"the model does not know the language {typed!r}{_nearest(typed, codes)}")
    if not rest:
        return _usual(same)
    script = SCRIPT_OF_COUNTRY.get(rest, rest)
    fitting = [code for code in same if _rest(code) in (rest, script)]
    if fitting or len(same) == 1:  # a model has most languages once, whatever country is named
        return (fitting or same)[0]
    raise InputError(f"the model knows {', '.join(same)}, but not {typed!r}: take one of them")


def language_name(code: str) -> str:
    """German for `de`, `deu_Latn`, `de_DE`; the code itself where we know no name."""
    row = _rows().get(_language(code))
    if row is None:
        return code
    rest = code.partition("_")[2]
    return f"{row[1][0]} ({rest})" if len(rest) == 4 and rest != "Latn" else row[1][0]


def pair_of(name: str) -> tuple[str, str] | None:
    """The languages that the name of a model says: `opus-mt-en-de` and `en-de-8bit` do.

    The last pair counts: mt is Maltese, too.
    """
    words = re.finditer(r"(?<![a-z])(?=([a-z]{2,3})-([a-z]{2,3})(?![a-z]))", name)
    pairs = [(word[1], word[2]) for word in words if word[1] in _rows() and word[2] in _rows()]
    return pairs[-1] if pairs else None


def _same_language(language: str, codes: Sequence[str]) -> list[str]:
    row = _rows().get(language)
    known = {language} if row is None else {*row[0]}
    return [code for code in codes if _language(code) in known]


def _usual(same: list[str]) -> str:
    """Of one language in several scripts, the one that most people write."""
    row = _rows().get(_language(same[0]))
    usual = ("", row[2] if row else "")
    return next((code for code in same if _rest(code) in usual), same[0])


def _language(code: str) -> str:
    return code.casefold().partition("_")[0]


def _rest(code: str) -> str:
    return code.casefold().partition("_")[2]


def _nearest(typed: str, codes: Sequence[str]) -> str:
    """`; did you mean deu_Latn (German)?` by code and by name"""
    spelled: dict[str, str] = {}
    for code in codes:
        row = _rows().get(_language(code))
        for spelling in (code.casefold(), *(row[0] + row[1] if row else ())):
            spelled.setdefault(spelling.casefold(), code)
    near = difflib.get_close_matches(typed.casefold(), spelled, n=3)
    found = list(dict.fromkeys(spelled[word] for word in near))
    if not found:
        return f"; it knows {', '.join(codes[:8])}{', ...' if len(codes) > 8 else ''}"
    return "; did you mean " + " or ".join(f"{c} ({language_name(c)})" for c in found) + "?"


LanguageRow = tuple[
    tuple[str, ...], tuple[str, ...], str
]  # codes, names (English first), usual script


@cache
def _rows() -> dict[str, LanguageRow]:
    """Every code and every name, in lower case, with its language."""
    rows: dict[str, LanguageRow] = {}
    for line in TABLE.strip().split("\n"):
        codes, names, *script = (part.strip() for part in line.split("|"))
        row = (tuple(codes.split()), tuple(names.split(", ")), "".join(script).casefold())
        for spelling in (*row[0], *(name.casefold() for name in row[1])):
            rows.setdefault(spelling, row)
    return rows
