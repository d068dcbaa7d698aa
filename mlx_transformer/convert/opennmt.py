"""OpenNMT-py, versions 1 to 3."""

import json
from collections.abc import Mapping
from typing import Any

from mlx_transformer.convert.annotated import tidied
from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import ZEROS, Table, stack, under
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.transformers_files import SETTINGS


def norm(ours: str, theirs: str) -> Table:
    """Old norms have names of their own; OpenNMT-py itself reads them as these."""
    return {
        f"{ours}.weight": [f"{theirs}.weight", f"{theirs}.a_2"],
        f"{ours}.bias": [f"{theirs}.bias", f"{theirs}.b_2"],
    }


FEED_FORWARD: Table = {
    "feed_forward.w_1.*": ["feed_forward.w_1.*", ZEROS],
    "feed_forward.w_2.*": ["feed_forward.w_2.*", ZEROS],
    **norm("feed_forward_norm", "feed_forward.layer_norm"),
}
SELF_ATTENTION: Table = {
    "self_attention.qkv.*": stack(
        "self_attn.linear_query.*", "self_attn.linear_keys.*", "self_attn.linear_values.*"
    ),
    "self_attention.out.*": "self_attn.final_linear.*",
}
ENCODER_LAYER: Table = {
    **SELF_ATTENTION,
    **norm("self_attention_norm", "layer_norm"),
    **FEED_FORWARD,
}
DECODER_LAYER: Table = {
    **SELF_ATTENTION,
    **norm("self_attention_norm", "layer_norm_1"),
    "cross_attention.q.*": "context_attn.linear_query.*",
    "cross_attention.kv.*": stack("context_attn.linear_keys.*", "context_attn.linear_values.*"),
    "cross_attention.out.*": "context_attn.final_linear.*",
    **norm("cross_attention_norm", "layer_norm_2"),
    **FEED_FORWARD,
}
LAYERS = {"encoder": "encoder.transformer.{i}.", "decoder": "decoder.transformer_layers.{i}."}
TABLE: Table = {
    "source_words.weight": "encoder.embeddings.make_embedding.emb_luts.0.weight",
    "target_words.weight": "decoder.embeddings.make_embedding.emb_luts.0.weight",
    "output.weight": ["generator.weight", "generator.0.weight"],
    "output_bias": ["generator.bias", "generator.0.bias"],
    "source_embedding.positions": "encoder.embeddings.make_embedding.pe.pe",
    "target_embedding.positions": "decoder.embeddings.make_embedding.pe.pe",
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    **norm("encoder.norm", "encoder.layer_norm"),
    **norm("decoder.norm", "decoder.layer_norm"),
}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "fast_gelu": "gelu_tanh", "silu": "swish"}
START, END, PADDING = "<s>", "</s>", "<blank>"


def settings(source: Source) -> dict[str, Any]:
    opt = source.checkpoint.fields("opt")
    known: dict[str, Any] = {"norm": "pre", "norm_eps": opt.number("norm_eps", default=1e-6)}
    if opt:
        _check_supported(opt)
        activation = opt.text("pos_ffn_activation_fn", default="relu")
        if activation not in ACTIVATIONS:
            raise InputError(f"the activation {activation!r} is not supported")
        known["activation"] = ACTIVATIONS[activation]
        known["h"] = opt.integer("heads", default=8)
    source_words, target_words = (words_of(source, side) for side in ("src", "tgt"))
    if source_words and target_words:
        known["pad_id"] = _id(source_words, PADDING)
        start = Fields(source.checkpoint.metadata["vocab"]).text(
            "decoder_start_token", default=START
        )
        known["start_id"] = _id(target_words, start)
        known["eos_id"] = _id(target_words, END)
    return known


def _check_supported(opt: Fields) -> None:
    if not opt.flag("position_encoding", default=True):
        raise InputError("models without sinusoidal positions are not supported")
    if opt.flag("parallel_residual", default=False):
        raise InputError("parallel residual connections are not supported")
    if opt.text("layer_norm", default="standard") != "standard":
        raise InputError("only the standard layer norm is supported")


def words_of(source: Source, side: str) -> list[object]:
    """The vocabulary in the order of its ids: a list, or deep inside torchtext's fields."""
    vocab = source.checkpoint.fields("vocab")
    words = vocab.get(side)
    if not isinstance(words, list):
        match vocab.inner(side).get("fields"):
            case [(_, field), *_]:
                words = Fields(field).inner("vocab").get("itos")
    return words if isinstance(words, list) else []


def _id(words: list[object], word: str) -> int:
    if word not in words:
        raise InputError(f"the checkpoint's vocabulary has no {word}")
    return words.index(word)


def vocabulary(source: Source) -> Mapping[str, bytes]:
    """`vocab.json` of both sides: numbers of words, or of pieces where a user names SentencePiece
    models. Only targets end in </s>."""
    files = {}
    for side, name in (("src", "vocab.json"), ("tgt", "target_vocab.json")):
        if words := words_of(source, side):
            ids = {str(word): i for i, word in enumerate(words)}
            files[name] = json.dumps(ids, ensure_ascii=False).encode()
    settings = {"tokenizer_class": "PreTrainedTokenizer", "frame": {"after": []}}
    return {**files, SETTINGS: json.dumps(settings).encode()} if files else {}


def generation(source: Source) -> dict[str, Any]:
    """Words between spaces, such as a molecule's atoms, are not sentences to be cut apart."""
    words_alone = words_of(source, "src") and source.options.source_vocab is None
    return {"whole_lines": True} if words_alone else {}


TENSOR_NAMES = TensorNames(
    words=(
        "encoder.embeddings.make_embedding.emb_luts.0.weight",
        "decoder.embeddings.make_embedding.emb_luts.0.weight",
    ),
    positions=(
        "encoder.embeddings.make_embedding.pe.pe",
        "decoder.embeddings.make_embedding.pe.pe",
    ),
    layers=("encoder.transformer.{i}.", "decoder.transformer_layers.{i}."),
    attentions=("self_attn.", "context_attn."),
    projections=("linear_query", "linear_keys", "linear_values", "final_linear"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    norms=(
        ["layer_norm", "feed_forward.layer_norm"],
        ["layer_norm_1", "layer_norm_2", "feed_forward.layer_norm"],
    ),
    final_norms=("encoder.layer_norm", "decoder.layer_norm"),
    output="generator|generator.0",
    tidy=tidied,
)
FAMILY = Family(
    name="opennmt",
    title="an OpenNMT-py Transformer",
    anchor="encoder.transformer.0.self_attn.linear_query.weight",
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=plain_pass("opennmt", TENSOR_NAMES),
    ignored=(r"decoder\.transformer_layers\.\d+\.mask",),  # the causal mask
    vocabulary=vocabulary,
    generation=generation,
)
