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
        spread = 2 / np.sqrt(old.shape[-1]) if old.ndim == 2 else 0.3
        centre = 1 if path.endswith("norm.weight") else 0
        return mx.array(generator.normal(centre, spread, old.shape).astype(np.float32))

    parameters = tree_map_with_path(random, model.parameters())
    if model.config.output_bias:
        bias = np.zeros(model.config.target_size, np.float32)
        bias[model.config.eos_id] = eos_bias
        parameters["output_bias"] = mx.array(bias)
    model.update(parameters)
    mx.eval(model.parameters())
    return model


def random_source(generator: np.random.Generator, model: Transformer, words: int) -> list[int]:
    """Ordinary ids and the end of sentence"""
    config = model.config
    special = {config.pad_id, config.start_id, config.eos_id}
    ordinary = [i for i in range(config.vocab_size) if i not in special]
    return [*(int(i) for i in generator.choice(ordinary, words)), config.eos_id]
