"""Small models and text that are made up, and alike on every machine."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.training.step import MicroBatch

# Weights larger than those a training starts from: attention then has opinions, and a mistake in
# it shows in the logits.
SPREAD = 1.5


def made_up(**settings: Any) -> Transformer:
    """One layer a stack, two heads and 50 words, unless told otherwise."""
    few: dict[str, Any] = {"vocab_size": 50, "encoder_layers": 1, "decoder_layers": 1, "h": 2}
    model = Transformer(ModelConfig(**few | settings))
    generator = np.random.default_rng(1)

    def random(name: str, old: mx.array) -> mx.array:
        if old.ndim == 1:  # norms stay 1 and biases 0
            return old
        return mx.array(generator.normal(0, SPREAD * old.shape[1] ** -0.5, old.shape), mx.float32)

    model.update(tree_map_with_path(random, model.parameters()))
    mx.eval(model.parameters())
    return model


def sentences(model: Transformer, count: int, longest: int) -> list[list[int]]:
    """Ids of words and the end of sentence; the first is the longest."""
    generator = np.random.default_rng(2)
    lengths = [longest, *generator.integers(1, longest, count - 1, endpoint=True)]
    return [
        [*generator.integers(3, model.config.vocab_size, n - 1).tolist(), model.config.eos_id]
        for n in lengths
    ]


def batch(model: Transformer, count: int, longest: int) -> MicroBatch:
    """Pairs of sentences, each translated by itself."""
    ids = np.full((count, longest), model.config.pad_id)
    for row, sentence in zip(ids, sentences(model, count, longest), strict=True):
        row[: len(sentence)] = sentence
    start = np.full((count, 1), model.config.first_id)
    shifted = np.concatenate([start, ids[:, :-1]], axis=1)
    return mx.array(ids), mx.array(shifted), mx.array(ids)
