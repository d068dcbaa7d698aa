"""One self-contained page on which a reader explores the attention of a translation.

The page is `attention_page.html` with its style, its script and the weights written into it: no
network, no framework, nothing to install.
"""

import json
import re
from importlib import resources
from typing import Any

import numpy as np

from mlx_transformer.inputs.printable import without_controls
from mlx_transformer.pictures.attention import (
    SIDES,
    TITLES,
    Attention,
    MapKind,
    View,
    find_word,
    label,
    panels,
)

HINTS: dict[MapKind, str] = {
    "encoder": "Each word of the text looks at the words of the text.",
    "decoder": "Each word being written looks at those written before it.",
    "cross": "Each word being written looks at the words of the text.",
}


def attention_page(attention: Attention, view: View) -> str:
    """The HTML of the page, with every kind, layer and head; `view` is what it shows first."""
    data = {
        "text": without_controls(attention.text),
        "translation": without_controls(attention.translation),
        "kinds": [_kind(attention, kind) for kind in attention.kinds],
        "start": _start(attention, view),
    }
    # In a script element only `<` could end or change it; JSON can write it as an escape.
    parts = {"data": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")}
    for name, suffix in (("style", "css"), ("script", "js")):
        parts[name] = _file(suffix)
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], _file("html"))


def _file(suffix: str) -> str:
    return (resources.files(__package__) / f"attention_page.{suffix}").read_text(encoding="utf-8")


def _kind(attention: Attention, kind: MapKind) -> dict[str, Any]:
    queries, keys = attention.tokens(kind)
    return {
        "name": kind,
        "title": TITLES[kind],
        "hint": HINTS[kind],
        "sides": SIDES[kind],
        "queries": [label(token) for token in queries],
        "keys": [label(token) for token in keys],
        # As float64: rounding leaves a float32 with all its digits.
        "layers": np.round(attention.weights(kind).astype(np.float64), 4).tolist(),
    }


def _start(attention: Attention, view: View) -> dict[str, Any]:
    panel = panels(attention, view)[0][0]
    word = None
    if view.word is not None:
        side, places = find_word(panel, view.word)
        word = {"side": side, "places": places}
    return {
        "kind": panel.kind,
        "layer": panel.layer - 1,
        "heads": [head - 1 for head in panel.heads],
        "word": word,
    }
