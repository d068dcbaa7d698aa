"""RoBERTa models of Hugging Face transformers, XLM-RoBERTa's too: BERT with other positions."""

from typing import Any

from mlx_transformer.convert import bert, huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Table
from mlx_transformer.convert.originals import transformers_text_model
from mlx_transformer.convert.sentence_transformers import embedding

HEAD: Table = {
    "word_head.dense.*": "lm_head.dense.*",
    "word_head.norm.*": "lm_head.layer_norm.*",
    "output.weight": "lm_head.decoder.weight",
    "output_bias": ["lm_head.bias", "lm_head.decoder.bias"],
}


def settings(source: Source) -> dict[str, Any]:
    """Positions follow the id of padding."""
    config = huggingface.config_of(source, pad_token_id=1, eos_token_id=2)
    known = bert.body_settings(config)
    return {**known, "position_offset": known["pad_id"] + 1}


FAMILY = Family(
    name="roberta",
    title="a RoBERTa model",
    anchor=bert.FAMILY.anchor,
    matches=huggingface.of_type("roberta", "xlm-roberta"),
    layers=bert.LAYERS,
    table={**bert.BODY, **HEAD},
    settings=settings,
    original=transformers_text_model("AutoModelForMaskedLM"),
    copies={"lm_head.decoder.bias": "lm_head.bias"},
    ignored=bert.IGNORED,
    vocabulary=huggingface.vocabulary,
    embedding=embedding,
)
