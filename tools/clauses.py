"""Make longer English-German text of short sentences: two of them become one, joined by "and".

    python tools/clauses.py data/tatoeba-en-de/train --out data/general-en-de/clauses --count 15000

"My name is Ann." and "I live here." give "My name is Ann and I live here.". In everyday text "and"
stands mostly between two names, and a model that has read little else takes "Ann and I" for one. In
German the clause after "und" has the word order of a sentence, so it can be taken as it is. What is
drawn comes from a fixed seed.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

Pair = tuple[str, str]  # English, German

# How a sentence may begin to be put after "and": with words that need no capital letter.
ENGLISH = re.compile(
    "(I|He|She|It|We|They|You|The|This|That|These|There|My|His|Her|Our|Their|Your) "
)
GERMAN = re.compile("(Ich|Du|Er|Sie|Es|Wir|Ihre?|D(er|ie|as)|Dies(e[rs]?)?|Da|[MDS]eine?|Unsere?) ")
FORMAL = re.compile("(Sie|Ihre?) ")
MOST_WORDS = 8


def clauses(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Pairs of sentences drawn and joined, without end."""
    firsts = [pair for pair in pairs if is_statement(pair)]
    seconds = [pair for pair in firsts if can_follow(pair)]
    chance = Random(0)
    while firsts and seconds:
        yield joined(chance.choice(firsts), chance.choice(seconds))


def is_statement(pair: Pair) -> bool:
    return all(
        side.endswith(".") and side.count(".") == 1 and len(side.split()) <= MOST_WORDS
        for side in pair
    )


def can_follow(pair: Pair) -> bool:
    return bool(ENGLISH.match(pair[0]) and GERMAN.match(pair[1]))


def joined(first: Pair, second: Pair) -> Pair:
    english, german = second
    formal = FORMAL.match(german) and english.startswith("You")
    return (
        f"{first[0][:-1]} and {english if english.startswith('I ') else uncapitalised(english)}",
        f"{first[1][:-1]} und {german if formal else uncapitalised(german)}",
    )


def uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prefix", help="what PREFIX.en and PREFIX.de begin with")
    parser.add_argument("--out", required=True, metavar="PREFIX", help="where the text goes")
    parser.add_argument("--count", type=int, default=15_000, help="how many pairs (15000)")
    args = parser.parse_args()
    pairs = zip(lines(f"{args.prefix}.en"), lines(f"{args.prefix}.de"), strict=True)
    made = list(islice(clauses(list(pairs)), args.count))
    for language, texts in zip(("en", "de"), zip(*made, strict=True), strict=True):
        Path(f"{args.out}.{language}").write_text("".join(f"{t}\n" for t in texts), "utf-8")


if __name__ == "__main__":
    main()
