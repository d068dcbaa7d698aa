"""Pegasus models of Hugging Face transformers."""

from typing import Any

from mlx_transformer.convert import fairseq, huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation_of_whole_lines
from mlx_transformer.convert.originals import transformers_model


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(
        source, activation_function="gelu", pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, max_position_embeddings=1024,
    )  # fmt: skip
    return {
        **huggingface.settings(config),
        "norm": "pre",
        "position_layout": "halves",
        "max_length": config.integer("max_position_embeddings"),
    }


FAMILY = Family(
    name="pegasus",
    title="a Pegasus model",
    anchor="encoder.layers.0.fc1.weight",
    matches=huggingface.of_type("pegasus"),
    layers=fairseq.LAYERS,
    table=huggingface.TABLE,
    settings=settings,
    original=transformers_model,
    copies=huggingface.COPIES,
    vocabulary=huggingface.vocabulary,
    generation=generation_of_whole_lines,
)
