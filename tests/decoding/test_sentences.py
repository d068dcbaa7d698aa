"""Cutting paragraphs into sentences and long sentences into parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.decoding.alignment import align, words_of
from mlx_transformer.decoding.sentences import split_sentences, split_to_fit


@pytest.mark.parametrize(
    "sentences",
    [
        ["Hello there. ", "How are you? ", "Fine!"],
        [
            "Mr. Smith and Dr. Jones met J. R. Brown in the U.S. Army. ",
            "They ate.",
        ],
        ['He said: "Go!" ', '"Where?" she asked.'],
        ["Am 3. Mai kam sie z. B. mit dem Zug. ", "Wir warteten."],
        ["It cost 3.50 dollars... ", "Too much?! ", "No."],
        ["今日は。", "元気ですか？", "はい"],
        ['"谢谢。" ', '"不用谢。"'],
        ["no end"],
        ["¿Qué? ", "¡Nada!"],
    ],
)
def test_sentences(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences


@given(st.text(alphabet="aB .!?…。\"') 3", max_size=60))
def test_nothing_is_lost(text: str) -> None:
    assert "".join(split_sentences(text)) == text


@given(st.text(alphabet="ab ,;", max_size=200), st.integers(1, 30))
def test_parts_fit_and_are_the_whole(text: str, most: int) -> None:
    parts = split_to_fit(text, lambda part: len(part) <= most)
    assert "".join(parts) == text
    assert all(len(part) <= most for part in parts)


def test_parts_end_at_clauses_before_words() -> None:
    text = "a b c d e, f g h i j"
    assert split_to_fit(text, lambda part: len(part) < 14) == ["a b c d e, ", "f g h i j"]
    text = "aaa bbb ccc ddd"
    assert split_to_fit(text, lambda part: len(part) < 9) == ["aaa bbb ", "ccc ddd"]


def test_words_and_their_alignment() -> None:
    source, target = ["▁the", "▁sm", "all", "▁dog"], ["▁der", "▁klei", "ne", "▁Hund"]
    assert words_of(target) == [[0], [1, 2], [3]]
    attention = np.array(
        [[0.9, 0.1, 0, 0], [0, 0.3, 0.3, 0.4], [0, 0.4, 0.3, 0.3], [0.2, 0.1, 0.2, 0.5]]
    )
    assert align(attention, source, target) == [(0, 0), (1, 1), (2, 2)]
    assert align(np.zeros((4, 0)), [], target) == []


def test_a_source_word_that_is_most_of_none_follows_where_it_counts_most() -> None:
    """ "do not like": `mag` comes from "do" and `keinen` from "coffee", but from others as well."""
    source, target = (
        ["▁I", "▁do", "▁not", "▁like", "▁coffee"],
        ["▁Ich", "▁mag", "▁kein", "en", "▁Kaffee"],
    )
    attention = np.array(
        [
            [0.9, 0.1, 0, 0, 0],
            [0, 0.5, 0.1, 0.4, 0],
            [0, 0, 0.3, 0.2, 0.5],
            [0, 0, 0.2, 0.2, 0.6],
            [0, 0, 0.2, 0, 0.8],
        ]
    )
    assert align(attention, source, target) == [(0, 0), (1, 1), (3, 1), (4, 2), (2, 2), (4, 3)]
