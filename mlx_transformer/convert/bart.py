"""BART models of Hugging Face transformers."""

from dataclasses import replace
from typing import Any

from mlx_transformer.convert import huggingface
from mlx_transformer.convert.family import Source
from mlx_transformer.convert.generation import generation_of_whole_lines


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(
        source, activation_function="gelu", pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2,
    )  # fmt: skip
    return {**huggingface.settings(config), "position_offset": 2}


FAMILY = replace(
    huggingface.fairseq_born("bart", "a BART model", "bart", settings),
    generation=generation_of_whole_lines,
)
