"""The paper's model as a PyTorch user writes it: nn.Transformer between embeddings and a head."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

DEVICE = torch.device("mps" if torch.backends.mps.is_available() else "cpu")

# Our names in a layer -> PyTorch's. The norms differ in the decoder, which has one sublayer more.
LAYER = {
    "self_attention.qkv.": "self_attn.in_proj_",
    "self_attention.out.": "self_attn.out_proj.",
    "cross_attention.qkv.": "multihead_attn.in_proj_",
    "cross_attention.out.": "multihead_attn.out_proj.",
    "feed_forward.w_1.": "linear1.",
    "feed_forward.w_2.": "linear2.",
    "self_attention_norm.": "norm1.",
    "cross_attention_norm.": "norm2.",
}
LAST_NORM = {"encoder": "norm2.", "decoder": "norm3."}


class TorchTransformer(nn.Module):
    positions: Tensor

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` is the content of a model's config.json; the paper's model only."""
        super().__init__()
        d_model, dropout = config["d_model"], config["dropout"]
        self.pad_id = config["pad_id"]
        self.words = nn.Embedding(config["vocab_size"], d_model)
        self.transformer = nn.Transformer(
            d_model,
            config["h"],
            config["encoder_layers"],
            config["decoder_layers"],
            config["d_ff"],
            dropout,
            batch_first=True,
        )
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("positions", sinusoids(256, d_model), persistent=False)
        self._as_in_the_paper()

    def _as_in_the_paper(self) -> None:
        """No norm after a stack, no dropout of attention weights or within the feed-forward net:
        PyTorch shall not do more than the other side does."""
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """ids (B,S), (B,T) -> logits (B,T,V)"""
        padding = source == self.pad_id
        hidden = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1], DEVICE),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return hidden @ self.words.weight.T

    def _embed(self, ids: Tensor) -> Tensor:
        vectors = self.words(ids) * math.sqrt(self.words.embedding_dim)
        return self.dropout(vectors + self.positions[: ids.shape[1]])


def sinusoids(length: int, d_model: int) -> Tensor:
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


def torch_weights(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model.safetensors under the names of `TorchTransformer`."""
    weights = {"words.weight": ours["source_words.weight"]}
    for name, array in ours.items():
        if match := re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.(.+)(weight|bias)", name):
            layer, stack, module, kind = match.groups()
            if module == "cross_attention.kv.":  # nn.Transformer keeps q, k and v in one matrix
                continue
            if module == "cross_attention.q.":
                module = "cross_attention.qkv."
                array = torch.cat([array, ours[f"{layer}.cross_attention.kv.{kind}"]])
            theirs = LAYER.get(module) or LAST_NORM[stack]
            weights[f"transformer.{layer}.{theirs}{kind}"] = array
    return weights
