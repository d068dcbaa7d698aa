"""FSMT models of Hugging Face transformers: fairseq's WMT19 models with a config.json."""

from typing import Any

from mlx_transformer.convert import fairseq, huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation
from mlx_transformer.convert.originals import transformers_model

FAMILY_FILES = ("vocab-src.json", "vocab-tgt.json", "merges.txt", "tokenizer_config.json")


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(source)
    return {
        **huggingface.settings(config),
        **fairseq.POSITIONS,
        "position_offset": config.integer("pad_token_id") + 1,
        "start_id": config.integer("decoder_start_token_id", default=2),
        "max_length": config.integer("max_position_embeddings", default=1024),
    }


FAMILY = Family(
    name="fsmt",
    title="an FSMT model",
    anchor="encoder.layers.0.fc1.weight",
    matches=huggingface.of_type("fsmt"),
    layers=fairseq.LAYERS,
    table=fairseq.TABLE,
    settings=settings,
    original=transformers_model,
    vocabulary=lambda source: {n: source.checkpoint.directory / n for n in FAMILY_FILES},
    generation=generation,
)
