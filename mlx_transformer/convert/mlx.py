"""Model directories of our own, to be written again in another precision."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.checkpoint import read_json
from mlx_transformer.convert.family import Family, Original, Source
from mlx_transformer.convert.mapping import Table
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import load_tokenizer

NAMES = (
    "source_words.weight",
    "target_words.weight",
    "output.weight",
    "output_bias",
    "word_head.dense.*",
    "word_head.norm.*",
    "source_embedding.positions",
    "target_embedding.positions",
    "source_embedding.norm.*",
    "target_embedding.norm.*",
    "encoder.layers.{i}.self_attention.qkv.*",
    "encoder.layers.{i}.self_attention.out.*",
    "encoder.layers.{i}.self_attention_norm.*",
    "encoder.layers.{i}.feed_forward.w_1.*",
    "encoder.layers.{i}.feed_forward.w_2.*",
    "encoder.layers.{i}.feed_forward_norm.*",
    "encoder.norm.*",
    "encoder.relative.{i}.weight",
    "decoder.layers.{i}.self_attention.qkv.*",
    "decoder.layers.{i}.self_attention.out.*",
    "decoder.layers.{i}.self_attention_norm.*",
    "decoder.layers.{i}.cross_attention.q.*",
    "decoder.layers.{i}.cross_attention.kv.*",
    "decoder.layers.{i}.cross_attention.out.*",
    "decoder.layers.{i}.cross_attention_norm.*",
    "decoder.layers.{i}.feed_forward.w_1.*",
    "decoder.layers.{i}.feed_forward.w_2.*",
    "decoder.layers.{i}.feed_forward_norm.*",
    "decoder.norm.*",
    "decoder.relative.{i}.weight",
)
TABLE: Table = {name: name for name in NAMES}


def settings(source: Source) -> dict[str, Any]:
    directory = source.checkpoint.directory
    config = ModelConfig.load(directory / "config.json")
    if config.quantization is not None:
        raise InputError(f"{directory} is quantised already: convert the model it was made from")
    return config.to_dict()


def vocabulary(source: Source) -> Mapping[str, bytes]:
    try:
        return load_tokenizer(source.checkpoint.directory).files
    except InputError:  # a model without one is a model all the same
        return {}


def original(source: Source, config: ModelConfig) -> Original:
    model = load_model(source.checkpoint.directory, mx.float32)

    def logits(source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        return np.array(model(mx.array(source_ids), mx.array(target_ids)))

    return Original("the model that it was made from, in MLX", logits, independent=True)


def beside(name: str) -> Callable[[Source], Mapping[str, Any]]:
    """Options that lie beside a model"""

    def read(source: Source) -> Mapping[str, Any]:
        path = source.checkpoint.directory / name
        return read_json(path) if path.is_file() else {}

    return read


FAMILY = Family(
    name="mlx",
    title="a model of mlx-transformer",
    anchor="source_words.weight",
    layers={"encoder": "encoder.layers.{i}.", "decoder": "decoder.layers.{i}."},
    table=TABLE,
    settings=settings,
    original=original,
    vocabulary=vocabulary,
    generation=beside("generation.json"),
    embedding=beside("embedding.json"),
)
