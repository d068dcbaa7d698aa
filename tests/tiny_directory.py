"""A model directory with random weights and a real tokenizer: numbers in English and German."""

from collections.abc import Callable
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
def pieces() -> bytes:
    lines = [line for pair in numbers.pairs("valid")[:500] for line in pair]
    return subwords.learn(lines, TokenizerConfig(vocab_size=120))


def write_model(
    folder: Path,
    seed: int = 0,
    make: Callable[..., Transformer] = random_model,
    **changes: Any,
) -> Path:
    """Fill `folder`; `changes` are settings of the model, and what `make` takes besides."""
    tokenizer = sentencepiece_tokenizer(pieces())
    size = tokenizer.source_vocab_size
    save_model(make(seed, **{"vocab_size": size, "d_model": 32, "h": 4} | changes), folder)
    tokenizer.save(folder)
    return folder
