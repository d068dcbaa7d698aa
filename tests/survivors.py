"""Sentences with names, dates and amounts, and whether a translation keeps them.

`python -m tests.survivors [MODEL] [LANGUAGE]` prints what share of them a model keeps; the language
is the one it translates from, en or de.
"""

import random
import re
import sys
from typing import NamedTuple

NAMES = ["Anna", "John", "Maria", "Peter", "Sarah", "Thomas", "Laura", "Michael", "Emma", "David"]
PLACES = ["Berlin", "London", "Paris", "New York", "Vienna", "Boston", "Hamburg", "Toronto"]
TEMPLATES = {
    "en": (
        "{name} lives in {place}.",
        "{name} paid {amount} euros for the book.",
        "{name} was born in {year}.",
        "We will meet in {place}, in room {room}.",
        "{name} has worked in {place} since {year}.",
        "The ticket to {place} costs {amount} dollars.",
        "My name is {name} and I am {age} years old.",
        "In {year}, {amount} people lived in the village.",
        "{name} and {other} met in {place}.",
        "The train to {place} has {age} seats.",
    ),
    "de": (
        "{name} wohnt in {place}.",
        "{name} hat für das Buch {amount} Euro bezahlt.",
        "{name} wurde {year} geboren.",
        "Wir treffen uns in {place}, in Zimmer {room}.",
        "{name} arbeitet seit {year} in {place}.",
        "Die Fahrkarte nach {place} kostet {amount} Dollar.",
        "Ich heiße {name} und bin {age} Jahre alt.",
        "Im Jahr {year} lebten {amount} Menschen in dem Dorf.",
        "{name} und {other} haben sich in {place} kennengelernt.",
        "Der Zug nach {place} hat {age} Sitzplätze.",
    ),
}
GERMAN = {"Vienna": "Wien"}  # what is called otherwise there


class Probe(NamedTuple):
    source: str
    kept: list[str]  # what its translation must hold


def probes(count: int, language: str = "en", seed: int = 1) -> list[Probe]:
    chance = random.Random(seed)
    made = []
    for n in range(count):
        name, other = chance.sample(NAMES, 2)
        values = {
            "name": name,
            "other": other,
            "place": chance.choice(PLACES),
            "year": str(chance.randrange(1900, 2025)),
            "amount": str(chance.randrange(11, 990)),
            "room": str(chance.randrange(101, 600)),
            "age": str(chance.randrange(13, 99)),
        }
        german = {key: GERMAN.get(word, word) for key, word in values.items()}
        given, wanted = (values, german) if language == "en" else (german, values)
        template = TEMPLATES[language][n % len(TEMPLATES[language])]
        kept = [wanted[key] for key in re.findall(r"{(\w+)}", template)]
        made.append(Probe(template.format(**given), kept))
    return made


def share_kept(translations: list[str], made: list[Probe]) -> float:
    """Of all names and numbers, the share that stands in the translation of its sentence."""
    kept = [
        word in text for text, probe in zip(translations, made, strict=True) for word in probe.kept
    ]
    return sum(kept) / len(kept)


def main() -> None:
    from mlx_transformer import load

    model, language = [*sys.argv[1:], *("weights/en-de", "en")[len(sys.argv) - 1 :]]
    made = probes(500, language)
    texts = [t.text for t in load(model).translate([probe.source for probe in made])]
    for probe, text in list(zip(made, texts, strict=True))[:12]:
        print(f"{probe.source} -> {text} {'' if all(w in text for w in probe.kept) else '  !'}")
    print(f"{share_kept(texts, made):.1%} of names and numbers are kept")


if __name__ == "__main__":
    main()
