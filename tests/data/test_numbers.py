"""Number words against a table written by hand, and against the rules of both languages."""

import re
from pathlib import Path

import pytest

from mlx_transformer.data.numbers import EVERYDAY, LIMIT, SIZES, english, german, pairs

TABLE = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    2: ("two", "zwei"),
    7: ("seven", "sieben"),
    10: ("ten", "zehn"),
    11: ("eleven", "elf"),
    12: ("twelve", "zwölf"),
    13: ("thirteen", "dreizehn"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    19: ("nineteen", "neunzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    22: ("twenty-two", "zweiundzwanzig"),
    30: ("thirty", "dreißig"),
    31: ("thirty-one", "einunddreißig"),
    40: ("forty", "vierzig"),
    66: ("sixty-six", "sechsundsechzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    80: ("eighty", "achtzig"),
    99: ("ninety-nine", "neunundneunzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred one", "einhunderteins"),
    111: ("one hundred eleven", "einhundertelf"),
    121: ("one hundred twenty-one", "einhunderteinundzwanzig"),
    200: ("two hundred", "zweihundert"),
    616: ("six hundred sixteen", "sechshundertsechzehn"),
    717: ("seven hundred seventeen", "siebenhundertsiebzehn"),
    999: ("nine hundred ninety-nine", "neunhundertneunundneunzig"),
    1_000: ("one thousand", "eintausend"),
    1_001: ("one thousand one", "eintausendeins"),
    1_100: ("one thousand one hundred", "eintausendeinhundert"),
    2_017: ("two thousand seventeen", "zweitausendsiebzehn"),
    12_000: ("twelve thousand", "zwölftausend"),
    21_000: ("twenty-one thousand", "einundzwanzigtausend"),
    22_005: ("twenty-two thousand five", "zweiundzwanzigtausendfünf"),
    30_030: ("thirty thousand thirty", "dreißigtausenddreißig"),
    100_000: ("one hundred thousand", "einhunderttausend"),
    101_000: ("one hundred one thousand", "einhunderteintausend"),
    101_101: ("one hundred one thousand one hundred one", "einhunderteintausendeinhunderteins"),
    123_456: (
        "one hundred twenty-three thousand four hundred fifty-six",
        "einhundertdreiundzwanzigtausendvierhundertsechsundfünfzig",
    ),
    201_001: ("two hundred one thousand one", "zweihunderteintausendeins"),
    999_999: (
        "nine hundred ninety-nine thousand nine hundred ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
}


@pytest.mark.parametrize(("number", "words"), TABLE.items())
def test_the_table(number, words):
    assert (english(number), german(number)) == words


def read_english(words: str) -> int:
    """The number back, from the meaning of the words alone."""
    values = {english(n): n for n in [*range(20), *range(20, 100, 10)]} | {"a": 1}
    thousands = hundreds = 0
    for word in re.split("[ -]", words.lower()):
        if word == "and":
            continue
        if word == "thousand":
            thousands, hundreds = hundreds * 1000, 0
        elif word == "hundred":
            hundreds *= 100
        else:
            hundreds += values[word]
    return thousands + hundreds


def read_german(word: str) -> int:
    if "tausend" in word:
        head, rest = word.split("tausend")
        return 1000 * read_german(head) + read_german(rest)
    if "hundert" in word:
        head, rest = word.split("hundert")
        return 100 * read_german(head) + read_german(rest)
    simple = {german(n): n for n in [*range(20), *range(20, 100, 10)]} | {"": 0, "ein": 1}
    if word in simple:
        return simple[word]
    one, ten = word.split("und")
    return simple[one] + simple[ten]


def test_words_can_be_read_back():
    for number in [*range(3000), *range(3000, LIMIT, 997)]:
        assert read_english(english(number)) == number
        assert read_german(german(number)) == number


@pytest.fixture(scope="module")
def sources() -> list[str]:
    return [source for source, _ in pairs("train")]


@pytest.mark.parametrize(
    "spelling",
    [
        r"\w+ hundred \w+ thousand \w+",
        r"\w+ hundred and \w+ thousand and \w+",
        r"\w+ hundred and \w+ty-\w+",
        r"\w+ hundred and \w+ty \w+",
        r"\w+ hundred \w+ty \w+",
        r"a (hundred|thousand) and \w+",
        r"[A-Z][a-z]+ hundred and \w+",
        r"[A-Z][a-z]+ Hundred And [A-Z]\w+",
        r"[A-Z]+ HUNDRED AND [A-Z]+-[A-Z]+",
    ],
)
def test_training_text_is_spelled_in_every_way_people_do(sources, spelling):
    assert any(re.fullmatch(spelling, source) for source in sources)


def test_and_and_a_stand_only_where_people_put_them(sources):
    lower = [source.lower() for source in sources]
    assert not [words for words in lower if re.search(r" and \w+ hundred", words)]
    assert not [words for words in lower if re.search(r"\ba (?!hundred|thousand)", words)]


def test_all_the_words_of_the_readme_are_trained_on_in_their_order(sources):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r'--model runs/numbers/model "(.*?)"', readme)
    text, words = "\n".join(f" {source} " for source in sources), sentence.split()
    for three in zip(words, words[1:], words[2:], strict=False):
        assert f" {' '.join(three)} " in text


def test_what_is_trained_on_can_be_read_back():
    for source, target in pairs("train")[:3000] + pairs("test"):
        assert read_english(source) == read_german(target)


def test_splits_are_disjoint_fixed_and_of_their_size():
    splits = {name: pairs(name) for name in SIZES}
    assert {name: len(split) for name, split in splits.items()} == SIZES
    train, valid, test = (set(split) for split in splits.values())
    train, valid, test = ({target for _, target in split} for split in (train, valid, test))
    assert not (train & valid or train & test or valid & test)
    assert len(valid) == len(test) == SIZES["test"]
    assert {german(n) for n in range(EVERYDAY)} < train
    zeros = [source for source, target in splits["train"] if target == "null"]
    assert min(zeros.count(word) for word in ("zero", "Zero", "ZERO")) >= 50  # enough to learn it
    assert pairs("test") == splits["test"]
    assert pairs("test", seed=1) != splits["test"]
