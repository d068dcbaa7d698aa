"""Small random models of one half, as transformers makes them."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 58
BERT_LIKE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip


def _maker(name: str, kind: str, **settings: Any) -> Callable[[], PreTrainedModel]:
    def make() -> PreTrainedModel:
        config = getattr(transformers, f"{name}Config")(**settings)
        torch.manual_seed(0)
        return scattered(getattr(transformers, f"{name}{kind}")(config).eval())

    return make


def scattered(model: PreTrainedModel) -> PreTrainedModel:
    """Every number differs from what it would be without training; no bias is zero."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            deviation = 1 / weights.shape[-1] ** 0.5 if weights.ndim == 2 else 0.1
            is_scale = weights.ndim == 1 and "norm" in name.lower() and name.endswith("weight")
            is_scale |= ".ln_" in name and name.endswith("weight")
            weights.copy_(torch.randn_like(weights) * deviation + is_scale)
    return model


GPT2 = _maker(
    "GPT2", "LMHeadModel", vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_inner=48,
    n_positions=64, bos_token_id=57, eos_token_id=57,
)  # fmt: skip
ENCODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": _maker("Bert", "ForMaskedLM", **BERT_LIKE),
    "bert with two tasks": _maker("Bert", "ForPreTraining", **BERT_LIKE),
    "roberta": _maker("Roberta", "ForMaskedLM", **BERT_LIKE, type_vocab_size=1),
    "xlm-roberta": _maker("XLMRoberta", "ForMaskedLM", **BERT_LIKE),
    "distilbert": _maker(
        "DistilBert", "ForMaskedLM", vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4,
        hidden_dim=48, max_position_embeddings=64,
    ),
}  # fmt: skip
BARE: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": _maker("Bert", "Model", **BERT_LIKE),
    "roberta": _maker("Roberta", "Model", **BERT_LIKE),
    "distilbert": _maker("DistilBert", "Model", vocab_size=VOCABULARY, dim=32, n_layers=3,
                         n_heads=4, hidden_dim=48, max_position_embeddings=64),
}  # fmt: skip
