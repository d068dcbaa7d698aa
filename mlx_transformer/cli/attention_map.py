"""Attention as text: shaded cells, the source's words along the top, the translation's down."""

from collections.abc import Sequence

import numpy as np
from prompt_toolkit.utils import get_cwidth

from mlx_transformer.decoding.alignment import word_weights, words_of
from mlx_transformer.decoding.translator import Translation
from mlx_transformer.tokenizer import WORD_START

SHADES = " ░▒▓█"
CELL = 2  # columns of the terminal; about as wide as a line is high
LONGEST = 12  # characters shown of a word


def attention_map(translation: Translation, columns: int) -> str:
    """The map, in panels one below the other where `columns` of the terminal do not hold it."""
    if translation.attention is None or not translation.attention.size:
        return "there is nothing to see: the translation or the text is empty"
    weights = word_weights(translation.attention, translation.source_tokens, translation.tokens)
    top, left = words(translation.source_tokens), words(translation.tokens)
    margin = max(map(get_cwidth, left))
    fit = max(1, (columns - margin - 1) // CELL)
    panels = [
        panel(weights[:, i : i + fit], top[i : i + fit], left, margin)
        for i in range(0, len(top), fit)
    ]
    return "\n\n".join(panels)


def words(tokens: Sequence[str]) -> list[str]:
    """Words as they are read, cut where they are too long to show"""
    whole = ["".join(tokens[i] for i in word) for word in words_of(tokens)]
    return [word.removeprefix(WORD_START)[:LONGEST] for word in whole]


def panel(weights: np.ndarray, top: Sequence[str], left: Sequence[str], margin: int) -> str:
    height = max(map(len, top))
    # The words along the top are written downwards and end just above their column.
    header = [
        " " * (margin + 1) + "".join(cell(word.rjust(height)[i]) for word in top)
        for i in range(height)
    ]
    rows = [
        " " * (margin - get_cwidth(word)) + word + " " + "".join(map(shade, row))
        for word, row in zip(left, weights, strict=True)
    ]
    return "\n".join(line.rstrip() for line in [*header, *rows])


def cell(character: str) -> str:
    return character + " " * (CELL - get_cwidth(character))


def shade(weight: float) -> str:
    return SHADES[min(int(weight * len(SHADES)), len(SHADES) - 1)] * CELL
