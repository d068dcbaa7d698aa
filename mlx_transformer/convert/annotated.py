"""The Annotated Transformer (Harvard NLP) and the many course projects that grew out of it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Rule, Table, stack, under
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.tensor_names import TensorNames


def norm(ours: str, theirs: str) -> Table:
    """Its LayerNorm divides by the unbiased standard deviation, ours by the biased one."""
    scaled = Rule((f"{theirs}.a_2",), scale=lambda d: math.sqrt((d - 1) / d))
    return {f"{ours}.weight": scaled, f"{ours}.bias": f"{theirs}.b_2"}


ENCODER_LAYER: Table = {
    "self_attention.qkv.*": stack(*(f"self_attn.linears.{i}.*" for i in range(3))),
    "self_attention.out.*": "self_attn.linears.3.*",
    **norm("self_attention_norm", "sublayer.0.norm"),
    "feed_forward.w_1.*": "feed_forward.w_1.*",
    "feed_forward.w_2.*": "feed_forward.w_2.*",
    **norm("feed_forward_norm", "sublayer.1.norm"),
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    "cross_attention.q.*": "src_attn.linears.0.*",
    "cross_attention.kv.*": stack("src_attn.linears.1.*", "src_attn.linears.2.*"),
    "cross_attention.out.*": "src_attn.linears.3.*",
    **norm("cross_attention_norm", "sublayer.1.norm"),
    **norm("feed_forward_norm", "sublayer.2.norm"),
}
LAYERS = {"encoder": "encoder.layers.{i}.", "decoder": "decoder.layers.{i}."}
TABLE: Table = {
    "source_words.weight": "src_embed.0.lut.weight",
    "target_words.weight": "tgt_embed.0.lut.weight",
    "output.weight": "generator.proj.weight",
    "output_bias": "generator.proj.bias",
    "source_embedding.positions": "src_embed.1.pe",
    "target_embedding.positions": "tgt_embed.1.pe",
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    **norm("encoder.norm", "encoder.norm"),
    **norm("decoder.norm", "decoder.norm"),
}


def settings(source: Source) -> dict[str, Any]:
    return {
        "norm": "pre",
        # 1e-6 is added to the deviation, not to the variance: near 1 that is twice as much.
        "norm_eps": 2e-6,
        # Its vocabularies start with <s>, </s>, <blank>, <unk>.
        "pad_id": 2,
        "start_id": 0,
        "eos_id": 1,
    }


def tidied(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Its norms have `a_2` and `b_2` where others have `weight` and `bias`."""
    return {
        key.replace(".a_2", ".weight").replace(".b_2", ".bias"): values
        for key, values in tensors.items()
    }


TENSOR_NAMES = TensorNames(
    words=("src_embed.0.lut.weight", "tgt_embed.0.lut.weight"),
    positions=("src_embed.1.pe", "tgt_embed.1.pe"),
    layers=("encoder.layers.{i}.", "decoder.layers.{i}."),
    attentions=("self_attn.", "src_attn."),
    projections=("linears.0", "linears.1", "linears.2", "linears.3"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    norms=(
        ["sublayer.0.norm", "sublayer.1.norm"],
        ["sublayer.0.norm", "sublayer.1.norm", "sublayer.2.norm"],
    ),
    final_norms=("encoder.norm", "decoder.norm"),
    output="generator.proj",
    unbiased_norm=True,
    tidy=tidied,
)
FAMILY = Family(
    name="annotated",
    title="an Annotated Transformer",
    anchor="encoder.layers.0.self_attn.linears.0.weight",
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=plain_pass("annotated", TENSOR_NAMES),
)
