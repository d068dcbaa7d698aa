"""mBART models of Hugging Face transformers: of 25 languages, of 50, and their kin.

Those of 25 languages start with the language to write, those of 50 with the end of sentence and
then the language.
"""

from typing import Any

from mlx_transformer.convert import fairseq, huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation
from mlx_transformer.convert.originals import transformers_model


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(
        source, activation_function="gelu", pad_token_id=1, bos_token_id=0, eos_token_id=2
    )
    return {**huggingface.settings(config), "norm": "pre", "position_offset": 2}


FAMILY = Family(
    name="mbart",
    title="an mBART model",
    anchor="encoder.layers.0.fc1.weight",
    matches=huggingface.of_type("mbart"),
    layers=fairseq.LAYERS,
    table=huggingface.TABLE,
    settings=settings,
    original=transformers_model,
    copies=huggingface.COPIES,
    ignored=fairseq.IGNORED,
    vocabulary=huggingface.vocabulary,
    generation=generation,
)
