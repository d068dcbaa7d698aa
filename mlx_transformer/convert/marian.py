"""MarianMT models of Hugging Face transformers, such as all of OPUS-MT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_transformer.convert import fairseq, huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation
from mlx_transformer.convert.originals import transformers_model

FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")


def matches(source: Source) -> bool:
    bare = not source.checkpoint.fields("config.json")
    return huggingface.of_type("marian")(source) or (bare and source.has("final_logits_bias"))


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(source)
    pad_id = config.integer("pad_token_id")
    return {
        **huggingface.settings(config),
        "start_id": config.integer("decoder_start_token_id", default=pad_id),
        "position_layout": "halves",
        "max_length": config.integer("max_position_embeddings", default=512),
    }


def vocabulary(source: Source) -> Mapping[str, Path]:
    return {name: source.checkpoint.directory / name for name in FILES}


FAMILY = Family(
    name="marian",
    title="a MarianMT model",
    anchor="encoder.layers.0.fc1.weight",
    matches=matches,
    layers=fairseq.LAYERS,
    table=huggingface.TABLE,
    settings=settings,
    original=transformers_model,
    copies=huggingface.COPIES,
    vocabulary=vocabulary,
    generation=generation,
)
