"""A small random model of every family of transformers that we read, by name."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

# Sizes that agree in nothing: a mix-up of two of them would show.
FAIRSEQ_LIKE = {
    "vocab_size": 58, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
T5_LIKE = {
    "vocab_size": 58, "d_model": 32, "num_layers": 2, "num_decoder_layers": 3,
    "d_kv": 12, "d_ff": 48, "num_heads": 4, "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
}  # fmt: skip


def _fairseq_like(name: str, **changes: Any) -> Callable[..., PreTrainedModel]:
    return _maker(name, {**FAIRSEQ_LIKE, **changes})


def _t5_like(name: str, **changes: Any) -> Callable[..., PreTrainedModel]:
    return _maker(name, {**T5_LIKE, **changes})


def _maker(name: str, settings: dict[str, Any]) -> Callable[..., PreTrainedModel]:
    def make(seed: int = 0) -> PreTrainedModel:
        config = getattr(transformers, f"{name}Config")(**settings)
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
        return scattered(model)

    return make


# How much larger the matrices of cross-attention are, so that searches tell sources apart.
CROSS = 2.5


def in_cross_attention(name: str) -> bool:
    return "encoder_attn." in name or "EncDecAttention" in name


def scattered(model: PreTrainedModel) -> PreTrainedModel:
    """Weights far from zero, so that words differ in probability and every source matters."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "embed_positions" in name and "pegasus" in model.config.model_type:
                continue  # a formula
            deviation = 1.5 / weights.shape[-1] ** 0.5 if weights.ndim == 2 else 0.1
            if name.endswith("Attention.q.weight"):  # T5 leaves it to them to divide by sqrt(d_k)
                deviation /= model.config.d_kv**0.5
            if in_cross_attention(name):
                deviation *= CROSS
            is_scale = weights.ndim == 1 and name.endswith("norm.weight")
            weights.copy_(torch.randn_like(weights) * deviation + is_scale)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.5)
        if model.config.model_type == "m2m_100":  # as published: no vector, so it is never written
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    return model


def halved(model: PreTrainedModel) -> PreTrainedModel:
    """Matrices half as large: with sharper ones PyTorch's own float32 logits of mT5 are 1e-4 of the
    largest from its float64 ones, and nobody could agree with them to 1e-5."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights /= 2
    return model


def untied(model: PreTrainedModel) -> PreTrainedModel:
    """Words of their own for the encoder, for the decoder and for the head."""
    model.config.tie_word_embeddings = False
    for stack in (model.encoder, model.decoder):
        stack.embed_tokens = torch.nn.Embedding(*model.shared.weight.shape)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) / 4)
    model.shared = model.encoder.embed_tokens
    model.all_tied_weights_keys = {}
    return model


MODELS: dict[str, Callable[..., PreTrainedModel]] = {
    "bart": _fairseq_like("Bart"),
    "mbart": _fairseq_like("MBart", scale_embedding=True, decoder_start_token_id=2),
    "m2m100": _fairseq_like("M2M100"),
    "pegasus": _fairseq_like("Pegasus", scale_embedding=True, activation_function="relu"),
    "t5": _t5_like("T5"),
    "t5-1.1": _t5_like("T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": _t5_like("MT5"),
    "umt5": _t5_like("UMT5"),
}
FAMILY_OF = {"t5-1.1": "t5", "mt5": "t5", "umt5": "t5"}
