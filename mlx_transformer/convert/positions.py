"""Position tables in checkpoints: a known formula, or learned?"""

from typing import Any

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.tensors import Tensor, cast
from mlx_transformer.model import sinusoids

# Frameworks compute their tables in float32, some save them in half precision; a learned table is
# nowhere near.
TOLERANCE = 5e-3
# A formula gives any number of positions, and files promise some that nobody has memory for.
MAX_FORMULA_LENGTH = 16_384


def recognise_sinusoids(tensor: Tensor) -> dict[str, Any] | None:
    """The settings that give this table (n, d_model), or None when it is not sinusoidal.

    The first rows are compared before the others are even read: large tables are words, mostly.
    """
    table = tensor.numpy()
    table = table.reshape(-1, table.shape[-1])
    if table.shape[1] % 2:
        return None
    for layout in ("interleaved", "halves"):
        for minus_one in (False, True):
            settings: dict[str, Any] = {
                "position_layout": layout,
                "position_divisor_minus_one": minus_one,
            }
            if all(_follows(table[:rows], tensor.dtype, settings) for rows in (16, len(table))):
                return settings
    return None


def _follows(table: np.ndarray, dtype: str, settings: dict[str, Any]) -> bool:
    """Whether a table is the formula's. Rows of zeros do not count: fairseq pads with one."""
    table = cast(table, dtype, "float32")
    rows = table.any(axis=1)
    config = ModelConfig(d_model=table.shape[1], h=1, max_length=len(table), **settings)
    formula = sinusoids(config, config.max_length)
    return bool(rows.any()) and np.allclose(table[rows], formula[rows], rtol=0, atol=TOLERANCE)
