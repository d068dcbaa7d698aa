"""What one translation attended to: the weights, the words they lie between, and what to show.

Here is everything a picture (`plots`) and a page (`attention_page`) have in common.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import mlx.core as mx
import numpy as np

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import printable
from mlx_transformer.model import Transformer
from mlx_transformer.tokenizer import WORD_START, Tokenizer

MapKind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[MapKind, ...] = get_args(MapKind)
TITLES: dict[MapKind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
# What the queries are, and the keys.
SIDES: dict[MapKind, tuple[str, str]] = {
    "encoder": ("text", "text"),
    "decoder": ("being written", "written before"),
    "cross": ("being written", "text"),
}


@dataclass(frozen=True)
class Attention:
    """One translation: its text, its tokens and its attention weights.

    Row q of a matrix is what token q attends to, and sums to 1. A row of the decoder is named after
    the token being written in that step (`written`: the translation and its end); what it can see
    are the tokens before (`read`: the start and the translation).
    """

    text: str
    translation: str
    source: Sequence[str]  # S tokens, the end included
    read: Sequence[str]  # T tokens
    written: Sequence[str]  # T tokens
    encoder: np.ndarray  # (layers, h, S, S)
    decoder: np.ndarray  # (layers, h, T, T); no layers where the decoder is recurrent
    cross: np.ndarray  # (layers, h, T, S)

    @property
    def kinds(self) -> list[MapKind]:
        """Those that the model has"""
        return [kind for kind in KINDS if len(self.weights(kind))]

    def weights(self, kind: MapKind) -> np.ndarray:
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    def tokens(self, kind: MapKind) -> tuple[Sequence[str], Sequence[str]]:
        """(queries, keys): the tokens that attend, and those attended to."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.written, self.read),
            "cross": (self.written, self.source),
        }[kind]


def attention_of(
    model: Transformer,
    tokenizer: Tokenizer,
    text: str,
    source: Sequence[int],
    written: Sequence[int],
) -> Attention:
    """The attention of a model that reads a text, whose ids are `source`, and writes these ids.

    Both include the end of sentence.
    """
    config = model.config
    longest = max(len(source), len(written))
    if longest > config.max_length:
        raise InputError(
            f"{longest} tokens are more than the model's {config.max_length}: split it"
        )
    # A model that starts from a zero vector takes any id for it.
    start = config.first_id
    start_name = "<s>" if config.start_id is None else tokenizer.target.tokens([start])[0]
    maps = model.attention_maps(mx.array([[*source]]), mx.array([[start, *written[:-1]]]))
    S, T = len(source), len(written)
    encoder, decoder, cross = (
        np.array(mx.concatenate([mx.zeros((0, config.h, *sizes)), *layers]).astype(mx.float32))
        for layers, sizes in ((maps.encoder, (S, S)), (maps.decoder, (T, T)), (maps.cross, (T, S)))
    )
    return Attention(
        text=text,
        translation=tokenizer.decode(written),
        source=tokenizer.source.tokens(source),
        read=[start_name, *tokenizer.target.tokens(written[:-1])],
        written=tokenizer.target.tokens(written),
        encoder=encoder,
        decoder=decoder,
        cross=cross,
    )


@dataclass(frozen=True)
class View:
    """What to show of it. Layers and heads count from 1, -1 is the last; None is all of them."""

    kinds: Sequence[MapKind] = ("cross",)
    layers: Sequence[int] | None = (-1,)
    heads: Sequence[int] | None = None
    word: str | None = None  # only the lines of this word
    lines: bool = False  # in a picture: lines between words instead of heat maps


@dataclass(frozen=True)
class Panel:
    """Some heads of one layer."""

    kind: MapKind
    layer: int
    layers: int  # of the model
    heads: Sequence[int]
    queries: Sequence[str]
    keys: Sequence[str]
    weights: np.ndarray  # (heads, queries, keys)

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]}, layer {self.layer} of {self.layers}"


def panels(attention: Attention, view: View) -> list[list[Panel]]:
    """What is to be shown: a list for each kind, with one panel for each layer. All kinds are all
    that the model has."""
    rows = []
    for kind in attention.kinds if view.kinds == KINDS else view.kinds:
        if kind not in attention.kinds:
            raise InputError(f"the model has no {TITLES[kind].lower()}: its {kind} is recurrent")
        weights = attention.weights(kind)
        layers = numbered("layer", view.layers, weights.shape[0])
        heads = numbered("head", view.heads, weights.shape[1])
        chosen = [head - 1 for head in heads]
        rows.append(
            [
                Panel(kind, layer, len(weights), heads, *attention.tokens(kind), matrices[chosen])
                for layer in layers
                for matrices in [weights[layer - 1]]
            ]
        )
    return rows


def numbered(what: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    """The wanted numbers out of 1 to `count`, each once; None is all of them."""
    numbers = range(1, count + 1) if wanted is None else dict.fromkeys(wanted)
    for number in numbers:
        if not 1 <= abs(number) <= count:
            raise InputError(f"there is no {what} {number}: the model has {what}s 1 to {count}")
    return [number if number > 0 else count + 1 + number for number in numbers]


def label(token: str) -> str:
    """A token as people read it: no mark where a word begins, a dot where one goes on."""
    token = printable(token)
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START) or WORD_START
    return f"·{token}" if token[:1].isalnum() else token


def find_word(panel: Panel, word: str) -> tuple[Literal["queries", "keys"], list[int]]:
    """Where the tokens of a word are, among those that attend or else those attended to."""
    if places := _places(panel.queries, word):
        return "queries", places
    if places := _places(panel.keys, word):
        return "keys", places
    known = " ".join(dict.fromkeys(map(label, [*panel.queries, *panel.keys])))
    raise InputError(f"{word!r} is not in the {panel.title.lower()}; its words are: {known}")


def _places(tokens: Sequence[str], word: str) -> list[int]:
    """The tokens that spell the word wherever it stands whole, else wherever it stands."""
    runs = [run for start in range(len(tokens)) if (run := _spelled_from(start, tokens, word))]
    whole = [run for run in runs if _is_whole(run, tokens)]
    return sorted({i for run in whole or runs for i in run})


def _spelled_from(start: int, tokens: Sequence[str], word: str) -> range | None:
    text = tokens[start].removeprefix(WORD_START)
    for stop in range(start + 1, len(tokens) + 1):
        if text == word:
            return range(start, stop)
        if stop == len(tokens) or not word.startswith(text):
            break
        text += tokens[stop]
    return None


def _is_whole(run: range, tokens: Sequence[str]) -> bool:
    begins = tokens[run.start].startswith(WORD_START)
    ends = run.stop == len(tokens) or not tokens[run.stop][:1].isalnum()
    return begins and ends
