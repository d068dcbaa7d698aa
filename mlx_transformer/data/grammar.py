"""Text without files: sentences of a small grammar, each of which says a thing twice.

"on monday the old farmer gives a red apple to the young baker , so the young baker got a red apple
from the old farmer ." Who reads the first half knows the second, and a word that is missing stands
elsewhere. How surprising a text is to one who knows the grammar can be counted: `surprise`.
"""

import math
import random

SIZES = {"train": 40_000, "valid": 500, "test": 500}

# fmt: off
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
CHARACTERS = [
    "old", "young", "tall", "small", "clever", "happy", "quiet", "brave", "tired", "rich", "poor",
    "kind",
]
PEOPLE = [
    "farmer", "baker", "teacher", "doctor", "sailor", "painter", "singer", "king", "queen",
    "hunter", "miller", "nurse", "judge", "tailor", "driver", "poet",
]
COLOURS = ["red", "blue", "green", "black", "white", "brown", "grey", "yellow"]
THINGS = [
    "apple", "book", "hat", "lamp", "horse", "boat", "coat", "clock", "chair", "letter", "basket",
    "mirror", "knife", "drum", "shoe", "ring",
]
# What is done, and what comes of it
DEEDS = [
    ("gives", "got"), ("sells", "bought"), ("sends", "received"), ("lends", "borrowed"),
    ("shows", "saw"),
]
# fmt: on


def sentence(chance: random.Random) -> str:
    giver, taker = (f"the {chance.choice(CHARACTERS)} {chance.choice(PEOPLE)}" for _ in range(2))
    thing = f"a {chance.choice(COLOURS)} {chance.choice(THINGS)}"
    does, did = chance.choice(DEEDS)
    day = chance.choice(DAYS)
    return f"on {day} {giver} {does} {thing} to {taker} , so {taker} {did} {thing} from {giver} ."


def surprise() -> float:
    """-log of the probability of a sentence: all are equally probable."""
    people = math.log(len(CHARACTERS)) + math.log(len(PEOPLE))
    thing = math.log(len(COLOURS)) + math.log(len(THINGS))
    return 2 * people + thing + math.log(len(DEEDS)) + math.log(len(DAYS))


def sentences(split: str, seed: int = 0) -> list[str]:
    """The sentences of a split, always the same."""
    chance = random.Random(f"{split} {seed}")
    return [sentence(chance) for _ in range(SIZES[split])]
