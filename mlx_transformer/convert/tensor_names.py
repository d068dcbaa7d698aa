"""Where a family keeps its tensors, for a forward pass that looks each of them up by itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Tidy = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def _as_they_are(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(tensors)


@dataclass(frozen=True)
class TensorNames:
    """Encoder and decoder side by side; {i} and {n} are the number of the layer, from 0 and 1.

    Of alternatives separated by `|` the first that the checkpoint has is taken; "" is nowhere.
    """

    words: tuple[str, str]
    positions: tuple[str, str]  # of stored tables; without one they are sinusoids
    layers: tuple[str, str]
    attentions: tuple[str, str]  # self and cross, in a layer
    projections: tuple[str, str, str, str]  # q, k, v and out, in an attention
    feed_forward: tuple[str, str]
    norms: tuple[list[str], list[str]]  # in the order of the sublayers
    output: str
    embedding_norms: tuple[str, str] = ("", "")
    final_norms: tuple[str, str] = ("", "")
    first_position: int = 0
    recurrence: tuple[str, str] = ("", "")  # W and W_f of an SSRU, in a layer
    unbiased_norm: bool = False  # (x - mean) / (unbiased deviation + epsilon)
    # Gives weights (out,in) and biases (n,) names that end in `.weight` and `.bias`.
    tidy: Tidy = _as_they_are
