"""Random models small enough to search by hand, and peaked enough to have opinions."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer

TINY: dict[str, Any] = {
    "vocab_size": 12,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "h": 2,
    "max_length": 64,
    "output_bias": True,
}


def random_model(seed: int, eos_bias: float = 0.0, **changes: Any) -> Transformer:
    """Weights far from zero, so that words differ in probability and sources matter."""
    model = Transformer(ModelConfig(**TINY | changes))
    generator = np.random.default_rng(seed)

    def random(path: str, old: mx.array) -> mx.array:
        deviation = 1.5 / np.sqrt(old.shape[-1]) if old.ndim == 2 else 0.3
        centre = 1 if path.endswith("norm.weight") else 0
        return mx.array(generator.normal(centre, deviation, old.shape).astype(np.float32))

    parameters = tree_map_with_path(random, model.parameters())
    if model.config.output_bias:
        bias = np.zeros(model.config.target_size, np.float32)
        bias[model.config.eos_id] = eos_bias
        parameters["output_bias"] = mx.array(bias)
    model.update(parameters)
    mx.eval(model.parameters())
    return model


# Settings of a model that can count; see `ending_model`.
COUNTING = {"norm": "pre", "positions": "learned", "tied_output": False, "output_bias": True}


def ending_model(seed: int, length: int, **changes: Any) -> Transformer:
    """A random model whose translations end by themselves after about so many tokens.

    One unit of the decoder counts: only positions write to it, and only the end reads it.
    """
    model = random_model(seed, **COUNTING | changes)
    eos, unit = model.config.eos_id, 0
    model.target_embedding.positions[:, unit] = mx.arange(model.config.max_length)
    words = model.source_words if model.config.shared_embeddings else model.target_words
    words.weight[:, unit] = 0
    for layer in model.decoder.layers:
        attention = layer.self_attention, layer.cross_attention
        for last in (*(each.out for each in attention), layer.feed_forward.w_2):
            last.weight[unit], last.bias[unit] = 0, 0
    model.output.weight[:, unit] = 0
    model.output.weight[eos] = mx.arange(model.config.d_model) == unit
    model.output_bias[eos] = 5 - length
    mx.eval(model.parameters())
    return model


def random_source(generator: np.random.Generator, model: Transformer, words: int) -> list[int]:
    """Ordinary ids and the end of sentence"""
    config = model.config
    special = {config.pad_id, config.start_id, config.eos_id}
    ordinary = [i for i in range(config.vocab_size) if i not in special]
    return [*(int(i) for i in generator.choice(ordinary, words)), config.eos_id]
