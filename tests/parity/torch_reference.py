"""The same model out of PyTorch's own parts: `torch.nn.Transformer`, embeddings, a head."""

import math

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_map
from torch import nn

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters


def paper_positions(length: int, d_model: int) -> torch.Tensor:
    """Section 3.5, written out entry by entry."""
    table = torch.zeros(length, d_model, dtype=torch.float64)
    for i in range(d_model // 2):
        angle = torch.arange(length, dtype=torch.float64) / 10_000 ** (2 * i / d_model)
        table[:, 2 * i] = torch.sin(angle)
        table[:, 2 * i + 1] = torch.cos(angle)
    return table.float()


class TorchTransformer(nn.Module):
    """Logits of `torch.nn.Transformer` between scaled embeddings and a (tied) projection."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.transformer = nn.Transformer(
            config.d_model,
            config.h,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            dropout=0.0,
            activation=config.activation,
            layer_norm_eps=config.norm_eps,
            batch_first=True,
            norm_first=config.norm == "pre",
        )
        # nn.Transformer always ends its stacks in a norm; the paper does not.
        if not config.encoder_final_norm:
            self.transformer.encoder.norm = None
        if not config.decoder_final_norm:
            self.transformer.decoder.norm = None
        self.source = nn.Embedding(config.vocab_size, config.d_model)
        self.target = nn.Embedding(config.target_size, config.d_model)
        self.output = nn.Linear(config.d_model, config.target_size, bias=False)
        if config.shared_embeddings:
            self.target.weight = self.source.weight
        if config.tied_output:
            self.output.weight = self.target.weight
        self.register_buffer("table", paper_positions(config.max_length, config.d_model))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """ids (B,S), (B,T) -> logits (B,T,V)"""
        scale = math.sqrt(self.config.d_model)
        T = target.shape[1]
        padding = source == self.config.pad_id
        hidden = self.transformer(
            self.source(source) * scale + self.table[: source.shape[1]],
            self.target(target) * scale + self.table[:T],
            tgt_mask=torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.output(hidden)


def torch_names(config: ModelConfig) -> dict[str, tuple[str, slice]]:
    """Where each of our parameters lives in TorchTransformer: its name, and which of its rows."""
    every = slice(None)
    d = config.d_model
    names = {"source_words.weight": ("source.weight", every)}
    if not config.shared_embeddings:
        names["target_words.weight"] = ("target.weight", every)
    if not config.tied_output:
        names["output.weight"] = ("output.weight", every)
    for stack, layers, norms in (
        ("encoder", config.encoder_layers, ["self_attention", "feed_forward"]),
        ("decoder", config.decoder_layers, ["self_attention", "cross_attention", "feed_forward"]),
    ):
        for i in range(layers):
            ours, theirs = f"{stack}.layers.{i}", f"transformer.{stack}.layers.{i}"
            for kind in ("weight", "bias"):
                names |= {
                    f"{ours}.self_attention.qkv.{kind}": (
                        f"{theirs}.self_attn.in_proj_{kind}",
                        every,
                    ),
                    f"{ours}.self_attention.out.{kind}": (
                        f"{theirs}.self_attn.out_proj.{kind}",
                        every,
                    ),
                    f"{ours}.feed_forward.w_1.{kind}": (f"{theirs}.linear1.{kind}", every),
                    f"{ours}.feed_forward.w_2.{kind}": (f"{theirs}.linear2.{kind}", every),
                }
                for n, norm in enumerate(norms, 1):
                    names[f"{ours}.{norm}_norm.{kind}"] = (f"{theirs}.norm{n}.{kind}", every)
                if stack == "decoder":
                    cross = f"{theirs}.multihead_attn"
                    names |= {
                        f"{ours}.cross_attention.q.{kind}": (
                            f"{cross}.in_proj_{kind}",
                            slice(0, d),
                        ),
                        f"{ours}.cross_attention.kv.{kind}": (
                            f"{cross}.in_proj_{kind}",
                            slice(d, None),
                        ),
                        f"{ours}.cross_attention.out.{kind}": (f"{cross}.out_proj.{kind}", every),
                    }
        if getattr(config, f"{stack}_final_norm"):
            for kind in ("weight", "bias"):
                names[f"{stack}.norm.{kind}"] = (f"transformer.{stack}.norm.{kind}", every)
    return names


def torch_copy(model: Transformer) -> TorchTransformer:
    """A TorchTransformer with the weights of ours; every weight of both sides is accounted for."""
    copy = TorchTransformer(model.config)
    theirs = dict(copy.named_parameters())
    names = torch_names(model.config)
    ours = named_parameters(model)
    assert set(names) == set(ours)
    assert {name for name, _ in names.values()} == set(theirs)
    with torch.no_grad():
        for name, array in ours.items():
            their_name, rows = names[name]
            theirs[their_name][rows] = torch.from_numpy(np.array(array))
    return copy


def randomised(config: ModelConfig, seed: int) -> Transformer:
    """A model with no parameter at its initial zero or one, so that a mix-up shows."""
    mx.random.seed(seed)
    model = Transformer(config)
    model.update(tree_map(lambda a: a + 0.1 * mx.random.normal(a.shape), model.parameters()))
    mx.eval(model.parameters())
    return model
