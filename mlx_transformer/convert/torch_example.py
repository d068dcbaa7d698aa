"""Load the model beside this file into torch.nn.Transformer, and translate ids with it.

    python load_in_torch.py 17 52 9        (source ids; prints target ids)

This file needs PyTorch and nothing else: take from it what you need.
"""

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": F.silu,
}


class TorchTransformer(nn.Module):
    """torch.nn.Transformer between word vectors, positions and a projection onto the words."""

    def __init__(self, config: SimpleNamespace):
        super().__init__()
        self.config = c = config
        self.transformer = nn.Transformer(
            c.d_model,
            c.h,
            c.encoder_layers,
            c.decoder_layers,
            c.d_ff,
            c.dropout,
            ACTIVATIONS[c.activation],
            layer_norm_eps=c.norm_eps,
            batch_first=True,
            norm_first=c.norm == "pre",
        )
        self.transformer.encoder.use_nested_tensor = False  # a prototype that warns at every start
        # PyTorch ends each stack in one more norm, the paper does not.
        if not c.encoder_final_norm:
            self.transformer.encoder.norm = None
        if not c.decoder_final_norm:
            self.transformer.decoder.norm = None
        self.source_embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.target_embedding = nn.Embedding(c.target_vocab_size, c.d_model)
        self.output = nn.Linear(c.d_model, c.target_vocab_size, bias=c.output_bias)
        if c.shared_embeddings:
            self.target_embedding.weight = self.source_embedding.weight
        if c.tied_output:
            self.output.weight = self.target_embedding.weight
        if c.positions == "learned":
            self.source_positions = nn.Parameter(torch.empty(c.max_length, c.d_model))
            self.target_positions = nn.Parameter(torch.empty(c.max_length, c.d_model))
        else:
            self.register_buffer("source_positions", torch.empty(c.max_length, c.d_model))
            self.register_buffer("target_positions", torch.empty(c.max_length, c.d_model))
        if c.embedding_norm:
            self.source_norm = nn.LayerNorm(c.d_model, c.norm_eps)
            self.target_norm = nn.LayerNorm(c.d_model, c.norm_eps)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (B,S) and (B,T) -> logits (B,T,V) of each next word"""
        T = target.shape[1]
        padding = source == self.config.pad_id
        hidden = self.transformer(
            self.embed_source(source),
            self.embed_target(target),
            tgt_mask=torch.ones(T, T, dtype=torch.bool, device=target.device).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.output(hidden * self.config.logit_scale)

    def embed_source(self, ids: Tensor) -> Tensor:
        x = self.scaled(self.source_embedding(ids)) + self.source_positions[: ids.shape[1]]
        return self.source_norm(x) if self.config.embedding_norm else x

    def embed_target(self, ids: Tensor) -> Tensor:
        words = self.target_embedding(ids)
        if self.config.start_id is None:  # the first vector is zero, whatever the first id
            words = F.pad(words[:, 1:], (0, 0, 1, 0))
        positions = self.target_positions[: ids.shape[1]]
        if not self.config.padding_has_position:
            positions = positions * (ids != self.config.pad_id)[..., None]
        x = self.scaled(words) + positions
        return self.target_norm(x) if self.config.embedding_norm else x

    def scaled(self, words: Tensor) -> Tensor:
        return words * math.sqrt(self.config.d_model) if self.config.scale_embedding else words

    @torch.no_grad()
    def translate(self, source: list[int], max_length: int = 100) -> list[int]:
        """The best next word until the end; simple, not fast: nothing is kept between steps."""
        c = self.config
        start = c.pad_id if c.start_id is None else c.start_id
        ids = torch.tensor([[start]])
        for _ in range(min(max_length, c.max_length)):
            logits = self(torch.tensor([[*source, c.eos_id]]), ids)[0, -1]
            logits[[i for i in (c.pad_id, start) if i != c.eos_id]] = -math.inf
            best = int(logits.argmax())
            if best == c.eos_id:
                break
            ids = torch.cat([ids, torch.tensor([[best]])], dim=1)
        return ids[0, 1:].tolist()


def load(directory: Path) -> TorchTransformer:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    model = TorchTransformer(SimpleNamespace(**config))
    model.load_state_dict(torch.load(directory / "model.pt", weights_only=True))
    return model.eval()


if __name__ == "__main__":
    print(*load(Path(__file__).parent).translate([int(word) for word in sys.argv[1:]]))
