"""A plain Transformer in PyTorch that computes from a checkpoint's own tensors and names.

It stands in for frameworks that cannot be run here, to verify conversions. It shares nothing with
the model or with the tables of the families: each projection is looked up and applied by itself.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    """Where a family keeps things, encoder and decoder side by side; {i} is the layer.

    A name stands for a weight and a bias. Alternatives, of which the first present is taken, are
    separated by `|`. Positions are tables of the checkpoint, or else a formula.
    """

    words: tuple[str, str]
    output: str
    layers: tuple[str, str]
    attentions: tuple[str, str]  # self and cross, in a layer
    projections: tuple[str, str, str, str]  # q, k, v and out, in an attention
    feed_forward: tuple[str, str]
    norms: tuple[list[str], list[str]]  # in the order of the sublayers
    final_norms: tuple[str, str]
    embedding_norms: tuple[str, str] = ("", "")
    positions: tuple[str, str] = ("", "")
