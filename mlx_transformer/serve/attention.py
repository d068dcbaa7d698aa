"""What a model attends to while it writes a translation: as numbers, or as a page to explore."""

from typing import Any

import numpy as np

from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError
from mlx_transformer.pictures.attention import KINDS, Attention, attention_of

MOST_WEIGHTS = 1_000_000  # a few megabytes of JSON

# The page has its style and script within it; that they can ask for nothing is its own policy.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)


def attend(translator: Translator, text: str, translation: str) -> Attention:
    """For the engine's thread"""
    model, tokenizer = translator.model, translator.tokenizer
    config = model.config
    [source] = tokenizer.sources([text], config.eos_id)
    [written] = tokenizer.targets([translation], config.eos_id)
    S, T = len(source), len(written)
    weights = config.h * (config.encoder_layers * S * S + config.decoder_layers * T * (T + S))
    if weights > MOST_WEIGHTS:
        raise InputError("the sentence is too long to show its attention: take a shorter one")
    return attention_of(model, tokenizer, text, source, written)


def as_object(attention: Attention) -> dict[str, Any]:
    """Tokens, and weights [layer][head][query][key]; a row sums to 1 but for rounding."""
    return {
        "text": attention.text,
        "translation": attention.translation,
        **{kind: _kind(attention, kind) for kind in KINDS},
    }


def _kind(attention: Attention, kind: Any) -> dict[str, Any]:
    queries, keys = attention.tokens(kind)
    weights = np.round(attention.weights(kind).astype(np.float64), 4)
    return {"queries": list(queries), "keys": list(keys), "weights": weights.tolist()}
