"""Sentences with names, dates and amounts, and whether a translation keeps them.

`python -m tests.survivors [MODEL]` prints what share of them the model keeps.
"""

import random
import re
import sys

NAMES = ["Anna", "John", "Maria", "Peter", "Sarah", "Thomas", "Laura", "Michael", "Emma", "David"]
PLACES = ["Berlin", "London", "Paris", "New York", "Vienna", "Boston", "Hamburg", "Toronto"]
TEMPLATES = (
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
)
# What a German text calls them.
GERMAN = {"Vienna": "Wien"}


def sentences(count: int, seed: int = 1) -> list[tuple[str, list[str]]]:
    """A sentence and what its translation must hold, so many times."""
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
        template = TEMPLATES[n % len(TEMPLATES)]
        used = [values[key] for key in re.findall(r"{(\w+)}", template)]
        made.append((template.format(**values), [GERMAN.get(word, word) for word in used]))
    return made


def share_kept(translations: list[str], expected: list[list[str]]) -> float:
    """Of all names and numbers, the share that stands in the translation of its sentence."""
    kept = [
        word in text for text, words in zip(translations, expected, strict=True) for word in words
    ]
    return sum(kept) / len(kept)


def main() -> None:
    from mlx_transformer import load

    made = sentences(500)
    translator = load(sys.argv[1] if len(sys.argv) > 1 else "weights/en-de")
    texts = [t.text for t in translator.translate([source for source, _ in made])]
    for (source, words), text in list(zip(made, texts, strict=True))[:12]:
        print(f"{source} -> {text} {'' if all(w in text for w in words) else '  !'}")
    print(f"{share_kept(texts, [words for _, words in made]):.1%} of names and numbers are kept")


if __name__ == "__main__":
    main()
