"""Where a paragraph can be cut into sentences, and a sentence too long for a model into parts."""

import re
from collections.abc import Callable

# Words whose full stop rarely ends a sentence, in English, German, French and Spanish.
ABBREVIATIONS = """
mr mrs ms dr prof st mt ft jr sr rev gen col capt lt sgt gov sen rep hon messrs mme mlle
vs eg ie cf al figs vol nos pp eds approx dept inc ltd corp
jan feb apr jul aug sept oct nov dec
hr frl bzw ca evtl ggf inkl vgl zb nr hrsg abs tel env nb sra sres srta ud uds pág núm
"""
_ABBREVIATED = frozenset(ABBREVIATIONS.split())

_END = re.compile(
    r"""
    (?P<mark> [.!?…]+ ) ["'”’»)\]]* \s+ (?= ["'“‘„«¿¡(\[]* (?P<next> \w ) )
    | [。！？]+ (?: [」』”’）)] | ["'](?=\s|$) )* \s*
    """,
    re.VERBOSE,
)
_LAST_WORD = re.compile(r"[\w.]*$")
_CLAUSE = re.compile(r"(?<=[;:,，；：、])\s*")
_SPACE = re.compile(r"\s+")


def split_sentences(paragraph: str) -> list[str]:
    """Sentences with the space after each: joined again they are the paragraph."""
    sentences, start = [], 0
    for end in _END.finditer(paragraph):
        if end["mark"]:
            before = paragraph[start : end.start()]
            if end["next"].islower() or (end["mark"] == "." and _is_abbreviated(before)):
                continue
        sentences.append(paragraph[start : end.end()])
        start = end.end()
    return [*sentences, paragraph[start:]] if start < len(paragraph) else sentences


def _is_abbreviated(before: str) -> bool:
    """Does the full stop after this text belong to its last word, as in Dr. or U.S. or 3.?"""
    found = _LAST_WORD.search(before)
    word = found[0].lower() if found else ""
    is_ordinal = word.isdigit() and len(word) <= 2
    return len(word) == 1 or "." in word or is_ordinal or word in _ABBREVIATED


def split_to_fit(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts that fit, cut between clauses, else words, else anywhere; joined, the sentence."""
    if len(sentence) < 2 or fits(sentence):
        return [sentence]
    cut = _near_middle(sentence)
    return [*split_to_fit(sentence[:cut], fits), *split_to_fit(sentence[cut:], fits)]


def _near_middle(sentence: str) -> int:
    middle = len(sentence) // 2
    for boundary in (_CLAUSE, _SPACE):
        places = [found.end() for found in boundary.finditer(sentence)]
        nearest = min(places, key=lambda place: abs(place - middle), default=0)
        if abs(nearest - middle) < middle / 2:
            return nearest
    return middle
