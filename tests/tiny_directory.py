"""A model directory with random weights and a real tokenizer: numbers in English and German."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mlx_transformer.data import numbers, subwords
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TokenizerConfig
from mlx_transformer.storage import save_model
from mlx_transformer.tokenizer import sentencepiece_tokenizer
from tests.decoding.random_models import random_model


@cache
def pieces(*gaps: str) -> bytes:
    lines = [line for pair in numbers.pairs("valid")[:500] for line in pair]
    return subwords.learn(lines, TokenizerConfig(vocab_size=120), gaps)


def write_model(
    folder: Path,
    seed: int = 0,
    make: Callable[..., Transformer] = random_model,
    gaps: Sequence[str] = (),
    **changes: Any,
) -> Path:
    """Fill `folder`; `changes` are settings of the model, and what `make` takes besides."""
    tokenizer = sentencepiece_tokenizer(pieces(*gaps))
    size = tokenizer.source_vocab_size
    save_model(make(seed, **{"vocab_size": size, "d_model": 32, "h": 4} | changes), folder)
    tokenizer.save(folder)
    return folder


def write_half(folder: Path, alone: str, **changes: Any) -> Path:
    """A decoder alone, or an encoder alone with its head; start and end stand around a text."""
    missing = {"decoder": "encoder_layers", "encoder": "decoder_layers"}[alone]
    gaps = ("<mask>",) if alone == "encoder" else ()
    write_model(folder, gaps=gaps, **{missing: 0, **changes})
    (folder / "tokenizer_config.json").write_text(json.dumps({"frame": {"before": [1]}}))
    return folder
