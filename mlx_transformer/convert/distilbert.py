"""DistilBERT models of Hugging Face transformers: BERT without types of text."""

from typing import Any

from mlx_transformer.convert import huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Table, stack, under
from mlx_transformer.convert.originals import transformers_text_model
from mlx_transformer.convert.sentence_transformers import embedding

LAYERS = {"encoder": "transformer.layer.{i}."}
LAYER: Table = {
    "self_attention.qkv.*": stack("attention.q_lin.*", "attention.k_lin.*", "attention.v_lin.*"),
    "self_attention.out.*": "attention.out_lin.*",
    "self_attention_norm.*": "sa_layer_norm.*",
    "feed_forward.w_1.*": "ffn.lin1.*",
    "feed_forward.w_2.*": "ffn.lin2.*",
    "feed_forward_norm.*": "output_layer_norm.*",
}
TABLE: Table = {
    "source_words.weight": "embeddings.word_embeddings.weight",
    "source_embedding.positions": "embeddings.position_embeddings.weight",
    "source_embedding.norm.*": "embeddings.LayerNorm.*",
    **under("encoder.layers.{i}.", LAYERS["encoder"], LAYER),
    "word_head.dense.*": "vocab_transform.*",
    "word_head.norm.*": "vocab_layer_norm.*",
    "output.weight": "vocab_projector.weight",
    "output_bias": "vocab_projector.bias",
}


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(source, pad_token_id=0)
    pad_id = config.integer("pad_token_id")
    return {
        "h": config.integer("n_heads"),
        "activation": huggingface.activation(config.text("activation", default="gelu")),
        "dropout": config.number("dropout", default=0.1),
        "norm_eps": 1e-12,
        "scale_embedding": False,
        "word_head": "none",  # unless the file has one
        "pad_id": pad_id,
        "start_id": None,  # what stands around a text is its tokenizer's
        "eos_id": config.integer("eos_token_id", default=pad_id),
    }


FAMILY = Family(
    name="distilbert",
    title="a DistilBERT model",
    anchor="transformer.layer.0.attention.q_lin.weight",
    matches=huggingface.of_type("distilbert"),
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=transformers_text_model("AutoModelForMaskedLM"),
    vocabulary=huggingface.vocabulary,
    embedding=embedding,
)
