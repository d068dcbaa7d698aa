"""BERT models of Hugging Face transformers: an encoder alone, with its word head or without."""

from typing import Any

from mlx_transformer.convert import huggingface
from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Line, Table, plus_first_row, stack, under
from mlx_transformer.convert.originals import transformers_text_model
from mlx_transformer.convert.sentence_transformers import embedding
from mlx_transformer.errors import InputError


def norm(ours: str, theirs: str) -> dict[str, Line]:
    """The first files call its parts as TensorFlow does."""
    return {
        f"{ours}.weight": [f"{theirs}.weight", f"{theirs}.gamma"],
        f"{ours}.bias": [f"{theirs}.bias", f"{theirs}.beta"],
    }


LAYERS = {"encoder": "encoder.layer.{i}."}
LAYER: Table = {
    "self_attention.qkv.*": stack(
        "attention.self.query.*", "attention.self.key.*", "attention.self.value.*"
    ),
    "self_attention.out.*": "attention.output.dense.*",
    **norm("self_attention_norm", "attention.output.LayerNorm"),
    "feed_forward.w_1.*": "intermediate.dense.*",
    "feed_forward.w_2.*": "output.dense.*",
    **norm("feed_forward_norm", "output.LayerNorm"),
}
# A text is of the first of two types: the other one is that of a second text behind it.
BODY: Table = {
    "source_words.weight": "embeddings.word_embeddings.weight",
    "source_embedding.positions": plus_first_row(
        "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
    ),
    **norm("source_embedding.norm", "embeddings.LayerNorm"),
    **under("encoder.layers.{i}.", LAYERS["encoder"], LAYER),
}
HEAD: Table = {
    "word_head.dense.*": "cls.predictions.transform.dense.*",
    **norm("word_head.norm", "cls.predictions.transform.LayerNorm"),
    "output.weight": "cls.predictions.decoder.weight",
    "output_bias": ["cls.predictions.bias", "cls.predictions.decoder.bias"],
}
# What was trained to tell whether two texts follow each other.
IGNORED = (r"pooler\.dense\..*", r"cls\.seq_relationship\..*", r"embeddings\.position_ids")


def body_settings(config: Fields) -> dict[str, Any]:
    """What BERT and RoBERTa say in the same words."""
    if config.text("position_embedding_type", default="absolute") != "absolute":
        raise InputError("a BERT whose positions are relative is not supported")
    if config.flag("is_decoder", default=False):
        raise InputError("a BERT that is used as a decoder is not supported")
    pad_id = config.integer("pad_token_id")
    return {
        "h": config.integer("num_attention_heads"),
        "activation": huggingface.activation(config.text("hidden_act", default="gelu")),
        "dropout": config.number("hidden_dropout_prob", default=0.1),
        "norm_eps": config.number("layer_norm_eps", default=1e-12),
        "scale_embedding": False,
        "word_head": "none",  # unless the file has one
        "pad_id": pad_id,
        "start_id": None,  # what stands around a text is its tokenizer's
        "eos_id": config.integer("eos_token_id", default=pad_id),
    }


def settings(source: Source) -> dict[str, Any]:
    return body_settings(huggingface.config_of(source, pad_token_id=0))


FAMILY = Family(
    name="bert",
    title="a BERT model",
    anchor="encoder.layer.0.attention.self.query.weight",
    matches=huggingface.of_type("bert"),
    layers=LAYERS,
    table={**BODY, **HEAD},
    settings=settings,
    original=transformers_text_model("AutoModelForMaskedLM"),
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=IGNORED,
    vocabulary=huggingface.vocabulary,
    embedding=embedding,
)
