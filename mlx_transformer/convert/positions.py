"""Position tables in checkpoints: a known formula, or learned?"""

from typing import Any

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.tensors import LazyTensor, cast
from mlx_transformer.model import sinusoids

# Frameworks compute their tables in float32, some save them in half precision; a learned table is
# nowhere near.
TOLERANCE = 5e-3


def recognise_sinusoids(tensor: LazyTensor) -> dict[str, Any] | None:
    """The settings that give this table (n, d_model), or None when it is not sinusoidal.

    Rows of zeros do not count: fairseq leaves one for padding.
    """
    table = cast(tensor.numpy(), tensor.dtype, "float32")
    table = table.reshape(-1, table.shape[-1])
    rows = table.any(axis=1)
    if table.shape[1] % 2 or not rows.any():
        return None
    for layout in ("interleaved", "halves"):
        for minus_one in (False, True):
            settings: dict[str, Any] = {
                "position_layout": layout,
                "position_divisor_minus_one": minus_one,
            }
            formula = sinusoids(_config(len(table), table.shape[1], settings))
            if np.allclose(table[rows], formula[rows], rtol=0, atol=TOLERANCE):
                return settings
    return None


def _config(length: int, d_model: int, settings: dict[str, Any]) -> ModelConfig:
    return ModelConfig(d_model=d_model, h=1, max_length=length, **settings)
