"""A plain Transformer in PyTorch that computes from a checkpoint's own tensors and names.

It stands in for frameworks that cannot be run here, to verify conversions. It shares nothing with
the model or with the tables of the families: each projection is looked up and applied by itself.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.tensor_names import TensorNames

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": F.silu,
}


class Reference:
    """Logits from a checkpoint, by the paper's formulas."""

    def __init__(self, names: TensorNames, tensors: Mapping[str, Tensor], config: ModelConfig):
        self.names = names
        self.tensors = tensors
        self.config = config

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (B,S), (B,T) -> (B,T,V)"""
        T = target.shape[1]
        words = (source != self.config.pad_id)[:, None, None]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        memory = self.stack(0, self.embed(0, source), [(None, words)])
        hidden = self.stack(1, self.embed(1, target), [(None, causal), (memory, words)])
        weight = self.find(self.names.output, "weight")
        weight = self.find(self.names.words[1]) if weight is None else weight
        assert weight is not None
        logits = hidden @ weight.T * self.config.logit_scale
        bias = self.find(self.names.output, "bias")
        return logits if bias is None else logits + bias

    def find(self, names: str, kind: str = "") -> Tensor | None:
        """The tensor of the first of these names that exists, with `.weight` or `.bias` after."""
        for name in names.split("|"):
            found = self.tensors.get(f"{name}.{kind}" if kind else name)
            if found is not None:
                return found
        return None

    def embed(self, side: int, ids: Tensor) -> Tensor:
        words = self.find(self.names.words[side])
        assert words is not None
        size = (self.config.vocab_size, self.config.target_size)[side]
        x = F.pad(words, (0, 0, 0, size - len(words)))[ids]  # zeros for words added for padding
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        if side == 1 and self.config.start_id is None:
            x = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], dim=1)
        first = self.names.first_position
        positions = self.position_table(side)[first : first + ids.shape[1]]
        if side == 1 and not self.config.padding_has_position:
            positions = positions * (ids != self.config.pad_id)[..., None]
        x = x + positions
        return self.norm(self.names.embedding_norms[side], x)

    def position_table(self, side: int) -> Tensor:
        """(n,d_model): the checkpoint's, or sinusoids as the config names them"""
        d = self.config.d_model
        table = self.find(self.names.positions[side])
        if table is not None:
            return table.reshape(-1, d)
        last = d / 2 - 1 if self.config.position_divisor_minus_one else d / 2
        rates = 10_000 ** (-torch.arange(d // 2, dtype=torch.float64) / last)
        angles = torch.arange(self.config.max_length + self.names.first_position)[:, None] * rates
        waves = (angles.sin(), angles.cos())
        if self.config.position_layout == "halves":
            return torch.cat(waves, dim=1).float()
        return torch.stack(waves, dim=2).flatten(1).float()

    def stack(self, side: int, x: Tensor, attended: list[tuple[Tensor | None, Tensor]]) -> Tensor:
        depth = (self.config.encoder_layers, self.config.decoder_layers)[side]
        for i in range(depth):
            layer = self.names.layers[side].format(i=i, n=i + 1)
            *norms, last = self.names.norms[side]
            for (memory, mask), attention, norm in zip(
                attended, self.names.attentions, norms, strict=False
            ):
                run = partial(self.attend, layer + attention, memory, mask)
                if side == 1 and memory is None and self.config.decoder_cell == "ssru":
                    run = partial(self.recur, layer)
                x = self.residual(layer, norm, x, run)
            x = self.residual(layer, last, x, partial(self.feed_forward, layer))
        return self.norm(self.names.final_norms[side], x)

    def residual(
        self, layer: str, norms: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        norm = "|".join(layer + name for name in norms.split("|"))
        if self.config.norm == "pre":
            return x + sublayer(self.norm(norm, x))
        return self.norm(norm, x + sublayer(x))

    def attend(self, name: str, memory: Tensor | None, mask: Tensor, x: Tensor) -> Tensor:
        q, k, v, out = (name + part for part in self.names.projections)
        y = x if memory is None else memory
        queries, keys, values = (
            self.linear(part, z).unflatten(-1, (self.config.h, -1)).transpose(1, 2)
            for part, z in ((q, x), (k, y), (v, y))
        )
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.linear(out, (weights @ values).transpose(1, 2).flatten(2))

    def recur(self, layer: str, x: Tensor) -> Tensor:
        """An SSRU, position by position"""
        w, w_f = (self.linear(layer + name, x) for name in self.names.recurrence)
        cells = [torch.zeros_like(w[:, 0])]
        for forget, taken in zip(w_f.sigmoid().unbind(1), w.unbind(1), strict=True):
            cells.append(forget * cells[-1] + (1 - forget) * taken)
        return torch.stack(cells[1:], dim=1).relu()

    def feed_forward(self, layer: str, x: Tensor) -> Tensor:
        w_1, w_2 = (layer + name for name in self.names.feed_forward)
        return self.linear(w_2, ACTIVATIONS[self.config.activation](self.linear(w_1, x)))

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, names: str, x: Tensor) -> Tensor:
        """The norm of that name; x itself where the checkpoint has none."""
        scale, shift = (self.find(names, kind) for kind in ("weight", "bias"))
        if scale is None:
            return x
        shift = torch.zeros_like(scale) if shift is None else shift
        if self.names.unbiased_norm:
            deviation = x.std(dim=-1, keepdim=True) + 1e-6
            return scale * (x - x.mean(dim=-1, keepdim=True)) / deviation + shift
        return F.layer_norm(x, x.shape[-1:], scale, shift, self.config.norm_eps)
