"""mBART models of Hugging Face transformers: of 25 languages, of 50, and their kin.

Those of 25 languages start with the language to write, those of 50 with the end of sentence and
then the language.
"""

from typing import Any

from mlx_transformer.convert import huggingface
from mlx_transformer.convert.family import Source


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(
        source, activation_function="gelu", pad_token_id=1, bos_token_id=0, eos_token_id=2
    )
    return {**huggingface.settings(config), "norm": "pre", "position_offset": 2}


FAMILY = huggingface.fairseq_born("mbart", "an mBART model", "mbart", settings)
