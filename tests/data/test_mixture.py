"""Corpora by weight, and pairs as people type them."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from mlx_transformer.data.mixture import repeated, share_of, with_other_names, with_variants
from mlx_transformer.data.text import open_text
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import load_recipe

PAIRS = [(f"Sentence {n}.", f"Satz {n}.") for n in range(70)]


@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0, 2.5, 3.0])
def test_every_item_comes_as_often_as_its_weight_says(weight):
    counts = Counter(repeated(range(1000), weight))
    assert sum(counts.values()) == share_of(1000, weight)
    assert set(counts.values()) | {0} <= {0, int(weight), int(weight) + 1}


def test_a_low_weight_is_spread_over_the_whole_corpus():
    kept = list(repeated(range(1000), 0.1))
    assert max(b - a for a, b in pairwise(kept)) <= 11


def test_variants_are_added_and_nothing_is_taken_away():
    mixed = list(with_variants(PAIRS, 0.5))
    assert len(mixed) == 105
    assert not Counter(PAIRS) - Counter(mixed)
    added = Counter(mixed) - Counter(PAIRS)
    assert ("Sentence 1", "Satz 1") in added  # no full stop
    assert ("Sentence 2. Sentence 3.", "Satz 2. Satz 3.") in added
    assert ("sentence 7", "Satz 7") in added
    assert ("SENTENCE 13.", "SATZ 13.") in added


def test_names_and_numbers_of_both_sides_are_exchanged_alike():
    pairs = [
        ("I saw Anna.", "Ich sah Anna."),
        ("I saw Paul, too.", "Ich sah auch Paul."),
        ("Anna ate 12 of 340 apples.", "Anna aß 12 von 340 Äpfeln."),
        ("The house is old.", "Das Haus ist alt."),
        ("It costs 1,250.50 euros in Vienna.", "Es kostet 1.250,50 Euro in Wien."),
    ]
    made = [list(with_other_names(pairs, 1.0)) for _ in range(2)]
    assert made[0] == made[1]  # nothing depends on chance
    assert made[0][3:] == pairs[3:]  # no name, and a number that each side writes in its own way
    english, german = made[0][2]
    name, first, second = re.fullmatch(r"(\w+) ate (\d\d) of (\d{3}) apples\.", english).groups()
    assert german == f"{name} aß {first} von {second} Äpfeln."
    assert (first, second) != ("12", "340")
    assert name in ("Anna", "Paul")


def test_only_a_share_of_the_pairs_gets_other_names():
    pairs = [("I have 1234567 cats.", "Ich habe 1234567 Katzen.")] * 100
    assert sum(pair != pairs[0] for pair in with_other_names(pairs, 0.3)) == 30


def test_a_line_that_is_no_text_stays_as_it_is():
    assert list(with_other_names([(None, "1."), ("1.", None)], 1.0)) == [(None, "1."), ("1.", None)]
    assert list(with_variants([(None, "Satz."), ("A.", None)], 1.0)) == [
        (None, "Satz."), (None, "Satz."), ("A.", None), ("A.", None),
    ]  # fmt: skip


def recipe_with(tmp_path: Path, train: str, more: str = "") -> Path:
    for name in ("a", "b"):
        for language in ("en", "de"):
            lines = "".join(f"{name} {language} {n}.\n" for n in range(10))
            (tmp_path / f"{name}.{language}").write_text(lines)
    path = tmp_path / "mixed.toml"
    languages = 'source_language = "en"\ntarget_language = "de"\n'
    path.write_text(f"[data]\n{languages}train = {train}\n{more}")
    return path


def test_a_recipe_mixes_corpora_by_weight(tmp_path):
    train = '["a", {prefix = "b", weight = 2.5}, {source = "a.en", target = "b.de", weight = 0.5}]'
    recipe = load_recipe(recipe_with(tmp_path, train, "variants = 0.2\nvalid = 'b'\n"))
    text = open_text(recipe.data, "train")
    pairs = list(text.pairs())
    assert text.count == len(pairs) == 48
    assert open_text(recipe.data, "valid").count == 10
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "again.toml") == recipe


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ('{prefix = "a", weight = 0}', "weight"),
        ('{prefix = "a", weight = true}', "number"),
        ('{prefix = "a", wait = 2}', "prefixes"),
        ('["a"]\nvalid = {prefix = "b", weight = 2}', "leave the weight out"),
        ('["a"]\nvariants = 2.0', "data.variants"),
        ('["a"]\nother_names = -1', "data.other_names"),
    ],
)
def test_a_wrong_weight_is_a_sentence(tmp_path, train, said):
    with pytest.raises(InputError, match=said):
        load_recipe(recipe_with(tmp_path, train))
