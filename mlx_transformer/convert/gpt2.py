"""GPT-2 models of Hugging Face transformers: a decoder alone."""

from typing import Any

from mlx_transformer.convert import huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation
from mlx_transformer.convert.mapping import Table, transposed, under
from mlx_transformer.convert.originals import transformers_text_model
from mlx_transformer.errors import InputError

# Its matrices are written (in, out), and q, k and v are one.
LAYER: Table = {
    "self_attention.qkv.*": transposed("attn.c_attn.*"),
    "self_attention.out.*": transposed("attn.c_proj.*"),
    "self_attention_norm.*": "ln_1.*",
    "feed_forward.w_1.*": transposed("mlp.c_fc.*"),
    "feed_forward.w_2.*": transposed("mlp.c_proj.*"),
    "feed_forward_norm.*": "ln_2.*",
}
TABLE: Table = {
    "source_words.weight": "wte.weight",
    "output.weight": "lm_head.weight",
    "target_embedding.positions": "wpe.weight",
    **under("decoder.layers.{i}.", "h.{i}.", LAYER),
    "decoder.norm.*": "ln_f.*",
}


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(
        source, activation_function="gelu_new", bos_token_id=50256, eos_token_id=50256,
        layer_norm_epsilon=1e-5, resid_pdrop=0.1,
    )  # fmt: skip
    if config.flag("scale_attn_by_inverse_layer_idx", default=False):
        raise InputError("attention that is scaled by the number of the layer is not supported")
    end = config.integer("eos_token_id")
    return {
        "h": config.integer("n_head"),
        "activation": huggingface.activation(config.text("activation_function")),
        "dropout": config.number("resid_pdrop"),
        "norm": "pre",
        "norm_eps": config.number("layer_norm_epsilon"),
        "scale_embedding": False,
        "scale_attention": config.flag("scale_attn_weights", default=True),
        "pad_id": config.integer("pad_token_id", default=end),
        "start_id": config.integer("bos_token_id", default=end),
        "eos_id": end,
    }


def search_options(source: Source) -> dict[str, Any]:
    """Lengths there count the prompt, unless they are of new tokens."""
    found = generation(source)
    for ours, theirs in (("max_tokens", "max_new_tokens"), ("min_tokens", "min_new_tokens")):
        if source.checkpoint.fields("generation_config.json").get(theirs) is None:
            found.pop(ours, None)
    return found


FAMILY = Family(
    name="gpt2",
    title="a GPT-2 model",
    anchor="h.0.attn.c_attn.weight",
    matches=huggingface.of_type("gpt2"),
    layers={"decoder": "h.{i}."},
    table=TABLE,
    settings=settings,
    original=transformers_text_model("AutoModelForCausalLM"),
    ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),  # the causal mask
    vocabulary=huggingface.vocabulary,
    generation=search_options,
)
