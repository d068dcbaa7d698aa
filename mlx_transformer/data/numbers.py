"""A task without files: a number in English words -> the same number in German words.

English is spelled as people spell it: `407 012` is "four hundred seven thousand twelve" or "four
hundred and seven thousand and twelve", `22` "twenty-two" or "twenty two", `100` "one hundred" or "a
hundred", with capitals or without.
"""

import random

LIMIT = 1_000_000
# Everyday numbers are always trained on, and often, so that a model can be asked for them.
EVERYDAY = 1_000
REPEATED = 10
# No other number has that word; fewer would be met in too few batches, as short pairs share them.
ZEROS = 6_000
SIZES = {"train": 100_000, "valid": 1_000, "test": 1_000}
A_SHARE = 0.25  # of the numbers that begin with "one": "a hundred", "a thousand and two"
# Ways to write words, by how often they are met.
_CASES = {str.lower: 65, str.capitalize: 20, str.title: 5, str.upper: 10}

# fmt: off
_ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_GERMAN = [
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn",
    "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn",
    "neunzehn",
]
_GERMAN_TENS = [
    "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig",
]
# fmt: on


def english(n: int, hyphen: str = "-", joint: str = " ") -> str:
    """0 <= n < LIMIT in words: `one hundred five thousand twenty-two`.

    `joint` stands before the last two digits; " and " makes it `one hundred and five thousand ...`.
    """
    if n < 20:
        return _ENGLISH[n]
    if n < 100:
        ten, one = divmod(n, 10)
        return _ENGLISH_TENS[ten - 2] + (hyphen + _ENGLISH[one] if one else "")
    unit, word = (100, "hundred") if n < 1000 else (1000, "thousand")
    head, rest = divmod(n, unit)
    words = f"{english(head, hyphen, joint)} {word}"
    if rest:
        words += (joint if rest < 100 else " ") + english(rest, hyphen, joint)
    return words


def spelled(n: int, chance: random.Random) -> str:
    """As `english`, in one of the spellings people use."""
    words = english(n, chance.choice("- "), chance.choice([" ", " and "]))
    if words.startswith("one ") and chance.random() < A_SHARE:
        words = "a " + words.removeprefix("one ")
    (write,) = chance.choices([*_CASES], [*_CASES.values()])
    return write(words)


def german(n: int) -> str:
    """0 <= n < LIMIT in words, written together: `einhundertfünftausendzweiundzwanzig`."""
    if n < 20:
        return _GERMAN[n]
    if n < 100:
        ten, one = divmod(n, 10)
        return (f"{_stem(one)}und" if one else "") + _GERMAN_TENS[ten - 2]
    unit, word = (100, "hundert") if n < 1000 else (1000, "tausend")
    head, rest = divmod(n, unit)
    return _stem(head) + word + (german(rest) if rest else "")


def _stem(n: int) -> str:
    """As `german`, before another word: a one at the end loses its s (einhundert, eintausend)."""
    return german(n).removesuffix("s") if n % 100 == 1 else german(n)


def pairs(split: str, seed: int = 0) -> list[tuple[str, str]]:
    """The pairs of a split; no number is in two splits."""
    chance = random.Random(f"{split} {seed}")
    return [(spelled(n, chance), german(n)) for n in _numbers(split, seed)]


def _numbers(split: str, seed: int) -> list[int]:
    everyday = [0] * ZEROS + [*range(EVERYDAY)] * REPEATED
    others = random.Random(seed).sample(range(EVERYDAY, LIMIT), sum(SIZES.values()) - len(everyday))
    numbers = [*everyday, *others]
    start = sum(SIZES[earlier] for earlier in list(SIZES)[: list(SIZES).index(split)])
    return numbers[start : start + SIZES[split]]
