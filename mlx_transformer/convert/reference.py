"""A plain Transformer in PyTorch that computes from a checkpoint's own tensors and names.

It stands in for frameworks that cannot be run here, to verify conversions. It shares nothing with
the model or with the tables of the families: each projection is looked up and applied by itself.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mlx_transformer.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swish": F.silu,
}


@dataclass(frozen=True)
class Layout:
    """Where a family keeps things, encoder and decoder side by side; {i} and {n} are the layer.

    Of alternatives separated by `|` the first that the checkpoint has is taken.
    """

    words: tuple[str, str]
    positions: tuple[str, str]
    embedding_norms: tuple[str, str]
    layers: tuple[str, str]
    attentions: tuple[str, str]  # self and cross, in a layer
    projections: tuple[str, str, str, str]  # q, k, v and out, in an attention
    feed_forward: tuple[str, str]
    norms: tuple[list[str], list[str]]  # in the order of the sublayers
    final_norms: tuple[str, str]
    output: str
    first_position: int = 0
    unbiased_norm: bool = False  # (x - mean) / (unbiased deviation + epsilon)


class Reference:
    """Logits from a checkpoint, by the paper's formulas."""

    def __init__(self, layout: Layout, tensors: Mapping[str, Tensor], config: ModelConfig):
        self.layout = layout
        self.tensors = tidy(tensors)
        self.config = config

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (B,S), (B,T) -> (B,T,V)"""
        T = target.shape[1]
        words = (source != self.config.pad_id)[:, None, None]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        memory = self.stack(0, self.embed(0, source), [(None, words)])
        hidden = self.stack(1, self.embed(1, target), [(None, causal), (memory, words)])
        weight = self.find(self.layout.output, "weight")
        weight = self.find(self.layout.words[1]) if weight is None else weight
        assert weight is not None
        logits = hidden @ weight.T * self.config.logit_scale
        bias = self.find(self.layout.output, "bias")
        return logits if bias is None else logits + bias

    def find(self, names: str, kind: str = "") -> Tensor | None:
        """The tensor of the first of these names that exists, with `.weight` or `.bias` after."""
        for name in names.split("|"):
            found = self.tensors.get(f"{name}.{kind}" if kind else name)
            if found is not None:
                return found
        return None

    def embed(self, side: int, ids: Tensor) -> Tensor:
        words = self.find(self.layout.words[side])
        assert words is not None
        x = F.pad(words, (0, 0, 0, 1))[ids]  # a zero behind the last word, where padding may be
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        if side == 1 and self.config.start_id is None:
            x = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], dim=1)
        first = self.layout.first_position
        x = x + self.position_table(side)[first : first + ids.shape[1]]
        return self.norm(self.layout.embedding_norms[side], x)

    def position_table(self, side: int) -> Tensor:
        """(n,d_model): the checkpoint's, or sines then cosines as in tensor2tensor"""
        d = self.config.d_model
        table = self.find(self.layout.positions[side])
        if table is not None:
            return table.reshape(-1, d)
        rates = 10_000 ** (-torch.arange(d // 2, dtype=torch.float64) / (d / 2 - 1))
        angles = torch.arange(self.config.max_length + 2)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()

    def stack(self, side: int, x: Tensor, attended: list[tuple[Tensor | None, Tensor]]) -> Tensor:
        depth = (self.config.encoder_layers, self.config.decoder_layers)[side]
        for i in range(depth):
            layer = self.layout.layers[side].format(i=i, n=i + 1)
            *norms, last = self.layout.norms[side]
            for (memory, mask), attention, norm in zip(
                attended, self.layout.attentions, norms, strict=False
            ):
                run = partial(self.attend, layer + attention, memory, mask)
                x = self.residual(layer, norm, x, run)
            x = self.residual(layer, last, x, partial(self.feed_forward, layer))
        return self.norm(self.layout.final_norms[side], x)

    def residual(
        self, layer: str, norms: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        names = "|".join(layer + name for name in norms.split("|"))
        if self.config.norm == "pre":
            return x + sublayer(self.norm(names, x))
        return self.norm(names, x + sublayer(x))

    def attend(self, name: str, memory: Tensor | None, mask: Tensor, x: Tensor) -> Tensor:
        q, k, v, out = (name + part for part in self.layout.projections)
        y = x if memory is None else memory
        queries, keys, values = (
            self.linear(part, z).unflatten(-1, (self.config.h, -1)).transpose(1, 2)
            for part, z in ((q, x), (k, y), (v, y))
        )
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.linear(out, (weights @ values).transpose(1, 2).flatten(2))

    def feed_forward(self, layer: str, x: Tensor) -> Tensor:
        w_1, w_2 = (layer + name for name in self.layout.feed_forward)
        return self.linear(w_2, ACTIVATIONS[self.config.activation](self.linear(w_1, x)))

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, names: str, x: Tensor) -> Tensor:
        """The norm of that name; x itself where the checkpoint has none."""
        scale, shift = (self.find(names, kind) for kind in ("weight", "bias"))
        if scale is None or shift is None:
            return x
        if self.layout.unbiased_norm:
            deviation = x.std(dim=-1, keepdim=True) + 1e-6
            return scale * (x - x.mean(dim=-1, keepdim=True)) / deviation + shift
        return F.layer_norm(x, x.shape[-1:], scale, shift, self.config.norm_eps)


def tidy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (out,in) and biases (n,) under names that end in `.weight` and `.bias`."""
    tidied: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.+)\.in_proj_(\w+)", name):  # fairseq before 2019
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                tidied[f"{match[1]}.{part}_proj.{match[2]}"] = rows
        elif match := re.fullmatch(r"(.+_)([Wb])([qkvo12])", name):  # Marian: (in,out), (1,n)
            kind = "weight" if match[2] == "W" else "bias"
            tidied[f"{match[1]}{match[3]}.{kind}"] = tensor.T if kind == "weight" else tensor[0]
        elif match := re.fullmatch(r"(.+_ln)_(scale|bias)(_pre)?", name):
            tidied[f"{match[1]}.{'weight' if match[2] == 'scale' else 'bias'}"] = tensor[0]
        else:
            tidied[RENAMED.get(name, re.sub(r"a_2$", "weight", re.sub(r"b_2$", "bias", name)))] = (
                tensor.T if name == "decoder_ff_logit_out_W" else tensor
            )
    return tidied


RENAMED = {
    "decoder.embed_out": "decoder.output_projection.weight",
    "decoder_ff_logit_out_W": "decoder_ff_logit_out.weight",
    "decoder_ff_logit_out_Wt": "decoder_ff_logit_out.weight",
    "decoder_ff_logit_out_b": "decoder_ff_logit_out.bias",
}
LAYOUTS = {
    "fairseq": Layout(
        words=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        positions=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
        embedding_norms=("encoder.layernorm_embedding", "decoder.layernorm_embedding"),
        layers=("encoder.layers.{i}.", "decoder.layers.{i}."),
        attentions=("self_attn.", "encoder_attn."),
        projections=("q_proj", "k_proj", "v_proj", "out_proj"),
        feed_forward=("fc1", "fc2"),
        norms=(
            ["self_attn_layer_norm|layer_norms.0", "final_layer_norm|layer_norms.1"],
            [
                "self_attn_layer_norm|layer_norms.0",
                "encoder_attn_layer_norm|layer_norms.1",
                "final_layer_norm|layer_norms.2",
            ],
        ),
        final_norms=("encoder.layer_norm", "decoder.layer_norm"),
        output="decoder.output_projection",
        first_position=2,
    ),
    "annotated": Layout(
        words=("src_embed.0.lut.weight", "tgt_embed.0.lut.weight"),
        positions=("src_embed.1.pe", "tgt_embed.1.pe"),
        embedding_norms=("", ""),
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
    ),
    "jadore": Layout(
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
        final_norms=("", ""),
        output="trg_word_prj",
    ),
    "opennmt": Layout(
        words=(
            "encoder.embeddings.make_embedding.emb_luts.0.weight",
            "decoder.embeddings.make_embedding.emb_luts.0.weight",
        ),
        positions=(
            "encoder.embeddings.make_embedding.pe.pe",
            "decoder.embeddings.make_embedding.pe.pe",
        ),
        embedding_norms=("", ""),
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
    ),
    "marian-npz": Layout(
        words=("encoder_Wemb|Wemb", "decoder_Wemb|Wemb"),
        positions=("Wpos", "Wpos"),
        embedding_norms=("encoder_emb_ln", "decoder_emb_ln"),
        layers=("encoder_l{n}_", "decoder_l{n}_"),
        attentions=("self_", "context_"),
        projections=("q", "k", "v", "o"),
        feed_forward=("ffn_1", "ffn_2"),
        norms=(
            ["self_Wo_ln", "ffn_ffn_ln"],
            ["self_Wo_ln", "context_Wo_ln", "ffn_ffn_ln"],
        ),
        final_norms=("encoder_top_ln", "decoder_top_ln"),
        output="decoder_ff_logit_out",
    ),
}
