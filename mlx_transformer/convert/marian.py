"""MarianMT models of Hugging Face transformers, such as all of OPUS-MT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_transformer.convert import fairseq
from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Table
from mlx_transformer.convert.originals import transformers_model
from mlx_transformer.errors import InputError

# The layers are fairseq's; the words may be one matrix, shared by name.
TABLE: Table = {
    **fairseq.TABLE,
    "source_words.weight": ["encoder.embed_tokens.weight", "shared.weight"],
    "target_words.weight": ["decoder.embed_tokens.weight", "shared.weight"],
    "output.weight": "lm_head.weight",
    "output_bias": "final_logits_bias",
}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")


def config_of(source: Source) -> Fields:
    config = source.checkpoint.fields("config.json")
    if not config:
        raise InputError("transformers' config.json must lie beside the weights")
    return config


def matches(source: Source) -> bool:
    config = source.checkpoint.fields("config.json")
    return config.get("model_type") == "marian" or (not config and source.has("final_logits_bias"))


def settings(source: Source) -> dict[str, Any]:
    config = config_of(source)
    return {
        **hf_settings(config),
        "position_layout": "halves",
        "max_length": config.integer("max_position_embeddings", default=512),
    }


def hf_settings(config: Fields) -> dict[str, Any]:
    """What transformers' configs of translation models have in common."""
    activation = config.text("activation_function", default="relu")
    if activation not in ACTIVATIONS:
        raise InputError(f"the activation {activation!r} is not supported")
    pad_id = config.integer("pad_token_id")
    return {
        "h": config.integer("encoder_attention_heads", "decoder_attention_heads"),
        "activation": ACTIVATIONS[activation],
        "scale_embedding": config.flag("scale_embedding", default=False),
        "dropout": config.number("dropout", default=0.1),
        "pad_id": pad_id,
        "start_id": config.integer("decoder_start_token_id", default=pad_id),
        "eos_id": config.integer("eos_token_id"),
    }


def vocabulary(source: Source) -> Mapping[str, Path]:
    return {name: source.checkpoint.directory / name for name in FILES}


FAMILY = Family(
    name="marian",
    title="a MarianMT model",
    anchor="encoder.layers.0.fc1.weight",
    matches=matches,
    layers=fairseq.LAYERS,
    table=TABLE,
    settings=settings,
    original=transformers_model("MarianMTModel"),
    copies={"shared.weight": "encoder.embed_tokens.weight"},
    vocabulary=vocabulary,
)
