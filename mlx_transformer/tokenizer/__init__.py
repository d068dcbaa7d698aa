"""Text to ids and back, for our own models and for those that come from elsewhere.

A tokenizer has two sides, source and target. What a side does depends on the files in the model
directory: SentencePiece alone (ours), SentencePiece with a vocabulary of its own ids (Marian,
M2M100, NLLB, mBART, T5, Pegasus), a tokenizer.json, a word list (fairseq), bytes (ByT5) or
characters. Special ids other than the unknown one are no pieces: `encode_*` does not return them,
and `decode` skips them. What stands around the pieces, and how a model is told its languages, is a
`Frame`; without one a source ends in the end of sentence of the model's config.
"""

from mlx_transformer.tokenizer.loading import (
    check_belongs,
    load_tokenizer,
    sentencepiece_tokenizer,
    text_tokenizer,
    with_languages,
)
from mlx_transformer.tokenizer.sides import WORD_START, Side
from mlx_transformer.tokenizer.tags import Frame
from mlx_transformer.tokenizer.tokenizer import Tokenizer

__all__ = [
    "WORD_START",
    "Frame",
    "Side",
    "Tokenizer",
    "check_belongs",
    "load_tokenizer",
    "sentencepiece_tokenizer",
    "text_tokenizer",
    "with_languages",
]
