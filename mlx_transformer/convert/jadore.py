"""jadore801120/attention-is-all-you-need-pytorch, a much copied implementation of the paper."""

from typing import Any

from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Rule, Table, equal, stack, under
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.errors import InputError

ENCODER_LAYER: Table = {
    "self_attention.qkv.*": stack("slf_attn.w_qs.*", "slf_attn.w_ks.*", "slf_attn.w_vs.*"),
    "self_attention.out.*": "slf_attn.fc.*",
    "self_attention_norm.*": "slf_attn.layer_norm.*",
    "feed_forward.w_1.*": "pos_ffn.w_1.*",
    "feed_forward.w_2.*": "pos_ffn.w_2.*",
    "feed_forward_norm.*": "pos_ffn.layer_norm.*",
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    "cross_attention.q.*": "enc_attn.w_qs.*",
    "cross_attention.kv.*": stack("enc_attn.w_ks.*", "enc_attn.w_vs.*"),
    "cross_attention.out.*": "enc_attn.fc.*",
    "cross_attention_norm.*": "enc_attn.layer_norm.*",
}
LAYERS = {"encoder": "encoder.layer_stack.{i}.", "decoder": "decoder.layer_stack.{i}."}
TABLE: Table = {
    "source_words.weight": "encoder.src_word_emb.weight",
    "target_words.weight": "decoder.trg_word_emb.weight",
    "output.weight": "trg_word_prj.weight",
    "source_embedding.positions": "encoder.position_enc.pos_table",
    "target_embedding.positions": "decoder.position_enc.pos_table",
    # Not the end of the stacks: these norms come before their first layers.
    "source_embedding.norm.*": "encoder.layer_norm.*",
    "target_embedding.norm.*": "decoder.layer_norm.*",
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
}


def settings(source: Source) -> dict[str, Any]:
    options = source.checkpoint.fields("settings")
    target, output = "decoder.trg_word_emb.weight", "trg_word_prj.weight"
    tied = (
        source.has(target)
        and source.has(output)
        and equal(Rule((target,)), Rule((output,)), source.tensors)
    )
    scaling = options.text("scale_emb_or_prj", default="prj")
    if scaling not in ("emb", "prj", "none"):
        raise InputError(f"the setting scale_emb_or_prj {scaling!r} is not emb, prj or none")
    d_model = source.tensors["encoder.src_word_emb.weight"].shape[-1]
    known: dict[str, Any] = {
        "norm_eps": 1e-6,
        # Either end of a tied word matrix is scaled, an untied one is not.
        "scale_embedding": tied and scaling == "emb",
        "logit_scale": d_model**-0.5 if tied and scaling == "prj" else 1.0,
        # Its vocabularies start with <unk>, <blank>, <s>, </s>.
        "pad_id": options.integer("src_pad_idx", default=1),
        "start_id": 2,
        "eos_id": 3,
        "dropout": options.number("dropout", default=0.1),
    }
    if "n_head" in options:
        known["h"] = options.integer("n_head")
    return known


TENSOR_NAMES = TensorNames(
    words=("encoder.src_word_emb.weight", "decoder.trg_word_emb.weight"),
    positions=("encoder.position_enc.pos_table", "decoder.position_enc.pos_table"),
    embedding_norms=("encoder.layer_norm", "decoder.layer_norm"),
    layers=("encoder.layer_stack.{i}.", "decoder.layer_stack.{i}."),
    attentions=("slf_attn.", "enc_attn."),
    projections=("w_qs", "w_ks", "w_vs", "fc"),
    feed_forward=("pos_ffn.w_1", "pos_ffn.w_2"),
    norms=(
        ["slf_attn.layer_norm", "pos_ffn.layer_norm"],
        ["slf_attn.layer_norm", "enc_attn.layer_norm", "pos_ffn.layer_norm"],
    ),
    output="trg_word_prj",
)
FAMILY = Family(
    name="jadore",
    title="a jadore801120 Transformer",
    anchor="encoder.layer_stack.0.slf_attn.w_qs.weight",
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=plain_pass("jadore", TENSOR_NAMES),
)
