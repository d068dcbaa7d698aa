"""What the models of Hugging Face transformers share: config.json, names of tensors, files."""

from collections.abc import Callable, Mapping
from typing import Any

from mlx_transformer.convert import fairseq
from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation
from mlx_transformer.convert.mapping import Table
from mlx_transformer.convert.originals import transformers_model
from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer import transformers_files

# The layers are fairseq's; the words may be one matrix, shared by name.
TABLE: Table = {
    **fairseq.TABLE,
    "source_words.weight": ["encoder.embed_tokens.weight", "shared.weight"],
    "target_words.weight": ["decoder.embed_tokens.weight", "shared.weight"],
    "output.weight": "lm_head.weight",
    "output_bias": "final_logits_bias",
}
COPIES = {"shared.weight": "encoder.embed_tokens.weight"}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}


def config_of(source: Source, **defaults: object) -> Fields:
    """Their description of the model; `defaults` are those of its class, which files may omit."""
    config = source.checkpoint.fields("config.json")
    if not config:
        raise InputError("transformers' config.json must lie beside the weights")
    said = {k: v for k, v in config.items() if v is not None}
    match said.get("eos_token_id"):
        case [first, *_]:  # some list several: the first is the one that texts end in
            said["eos_token_id"] = first
    start = source.checkpoint.fields("generation_config.json").get("decoder_start_token_id")
    return Fields(
        {**defaults, **said, **({} if start is None else {"decoder_start_token_id": start})}
    )


def of_type(*model_types: str) -> Callable[[Source], bool]:
    return lambda source: source.checkpoint.fields("config.json").get("model_type") in model_types


def settings(config: Fields) -> dict[str, Any]:
    """What all of these configs say in the same words."""
    return {
        "h": config.integer("encoder_attention_heads", "decoder_attention_heads"),
        "activation": activation(config.text("activation_function", default="relu")),
        "scale_embedding": config.flag("scale_embedding", default=False),
        "dropout": config.number("dropout", default=0.1),
        **special_ids(config),
    }


def special_ids(config: Fields) -> dict[str, int]:
    pad_id = config.integer("pad_token_id")
    first = config.integer("bos_token_id", default=pad_id)
    return {
        "pad_id": pad_id,
        "start_id": config.integer("decoder_start_token_id", default=first),
        "eos_id": config.integer("eos_token_id"),
    }


def activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise InputError(f"the activation {name!r} is not supported")
    return ACTIVATIONS[name]


def vocabulary(source: Source) -> Mapping[str, bytes]:
    return transformers_files.collect(source.checkpoint.directory)


def fairseq_born(
    name: str, title: str, model_type: str, settings: Callable[[Source], dict[str, Any]]
) -> Family:
    """A family that came to transformers from fairseq: it differs in its settings alone."""
    return Family(
        name=name,
        title=title,
        anchor="encoder.layers.0.fc1.weight",
        matches=of_type(model_type),
        layers=fairseq.LAYERS,
        table=TABLE,
        settings=settings,
        original=transformers_model,
        copies=COPIES,
        ignored=fairseq.IGNORED,
        vocabulary=vocabulary,
        generation=generation,
    )
