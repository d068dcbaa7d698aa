"""T5 and all that have its names: T5 1.1, FLAN, mT5, UMT5, ByT5, MADLAD-400."""

from typing import Any

from mlx_transformer.convert import huggingface
from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation_of_whole_lines
from mlx_transformer.convert.mapping import Line, Table, stack, under
from mlx_transformer.convert.originals import transformers_model

# T5 1.0 has one matrix `wi`, the later ones a gate.
W_1: Line = [stack("DenseReluDense.wi_0.*", "DenseReluDense.wi_1.*"), "DenseReluDense.wi.*"]
SELF_ATTENTION: Table = {
    "self_attention.qkv.*": stack(
        "layer.0.SelfAttention.q.*", "layer.0.SelfAttention.k.*", "layer.0.SelfAttention.v.*"
    ),
    "self_attention.out.*": "layer.0.SelfAttention.o.*",
    "self_attention_norm.*": "layer.0.layer_norm.*",
}
CROSS_ATTENTION: Table = {
    "cross_attention.q.*": "layer.1.EncDecAttention.q.*",
    "cross_attention.kv.*": stack("layer.1.EncDecAttention.k.*", "layer.1.EncDecAttention.v.*"),
    "cross_attention.out.*": "layer.1.EncDecAttention.o.*",
    "cross_attention_norm.*": "layer.1.layer_norm.*",
}
FEED_FORWARD: Table = {
    "feed_forward.w_1.*": W_1,
    "feed_forward.w_2.*": "DenseReluDense.wo.*",
    "feed_forward_norm.*": "layer_norm.*",
}
ENCODER_LAYER: Table = {**SELF_ATTENTION, **under("", "layer.1.", FEED_FORWARD)}
DECODER_LAYER: Table = {
    **SELF_ATTENTION,
    **CROSS_ATTENTION,
    **under("", "layer.2.", FEED_FORWARD),
}
LAYERS = {"encoder": "encoder.block.{i}.", "decoder": "decoder.block.{i}."}
RELATIVE_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
TABLE: Table = {
    "source_words.weight": ["encoder.embed_tokens.weight", "shared.weight"],
    "target_words.weight": ["decoder.embed_tokens.weight", "shared.weight"],
    "output.weight": "lm_head.weight",
    # In the first layer of a stack, for all of them; in UMT5 in each layer.
    "encoder.relative.{i}.weight": LAYERS["encoder"] + RELATIVE_BIAS,
    "decoder.relative.{i}.weight": LAYERS["decoder"] + RELATIVE_BIAS,
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    "encoder.norm.*": "encoder.final_layer_norm.*",
    "decoder.norm.*": "decoder.final_layer_norm.*",
}
MAX_LENGTH = 4096  # a relative bias has no end; this is what a machine has the memory for
MODEL_TYPES = ("t5", "mt5", "umt5")


def matches(source: Source) -> bool:
    config = source.checkpoint.fields("config.json")
    return not config or config.get("model_type") in MODEL_TYPES


def settings(source: Source) -> dict[str, Any]:
    gated = source.has("encoder.block.0.layer.1.DenseReluDense.wi_0.weight")
    known = {
        "norm": "pre",
        "norm_kind": "rms",
        "norm_eps": 1e-6,
        "positions": "relative",
        "scale_attention": False,
        "scale_embedding": False,
        "activation": "gelu_tanh" if gated else "relu",
    }
    return known | (_said(source) if source.checkpoint.fields("config.json") else {})


def _said(source: Source) -> dict[str, Any]:
    """What a config.json adds to what all have in common."""
    config = huggingface.config_of(
        source, pad_token_id=0, eos_token_id=1, feed_forward_proj="relu", tie_word_embeddings=True
    )
    said = {
        **huggingface.special_ids(config),
        "h": config.integer("num_heads"),
        "norm_eps": config.number("layer_norm_epsilon", default=1e-6),
        "dropout": config.number("dropout_rate", default=0.1),
        "relative_distance": config.integer("relative_attention_max_distance", default=128),
        "max_length": MAX_LENGTH,
        "activation": _activation(config.text("feed_forward_proj")),
    }
    if _scales_logits(config):
        said["logit_scale"] = config.integer("d_model") ** -0.5
    return said


def _activation(feed_forward: str) -> str:
    """`relu`, or `gated-gelu`, which has always meant the tanh form."""
    name = "gelu_new" if feed_forward == "gated-gelu" else feed_forward.removeprefix("gated-")
    return huggingface.activation(name)


def _scales_logits(config: Fields) -> bool:
    """T5 1.0 does, whose head is tied, mT5 does not; files that untie it say so in either field."""
    tied = config.flag("tie_word_embeddings")
    if config.get("model_type") == "t5":
        return config.flag("scale_decoder_outputs", default=tied)
    return tied and config.get("model_type") == "umt5"


FAMILY = Family(
    name="t5",
    title="a T5 model",
    anchor="encoder.block.0.layer.0.SelfAttention.q.weight",
    matches=matches,
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=transformers_model,
    copies=huggingface.COPIES,
    # Saved by the first files, used by nobody.
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    vocabulary=huggingface.vocabulary,
    generation=generation_of_whole_lines,
)
