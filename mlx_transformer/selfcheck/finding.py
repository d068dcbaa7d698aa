"""What a check found, and how two devices are compared."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx
import numpy as np

from mlx_transformer import device

Result = TypeVar("Result")

DTYPES = ("float32", "float16", "bfloat16")
# How far a whole pass may be off, relative to its largest number. A mistake is far beyond.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
OPERATION = 0.2  # a single operation, as a share of that
# Some chips round float32 numbers before they multiply (TF32): a pass is off by so many times that.
PASS = 20


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str
    figure: float
    tolerance: float | None  # the most that the figure may be; None: it is only told

    @property
    def holds(self) -> bool:
        return self.tolerance is None or self.figure <= self.tolerance


def on_both(compute: Callable[[], Result]) -> tuple[Result, Result]:
    """What the device computes, and what the CPU does."""
    with device.as_gpu():
        found = compute()
    with device.reference():
        return found, compute()


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest, relative to the largest number expected; infinite if there is none to take."""
    relative = float(np.abs(found - expected).max() / np.abs(expected).max())
    return relative if math.isfinite(relative) else math.inf


def rounding() -> float:
    """How far float32 products are off on this device."""
    a, b = np.random.default_rng(0).standard_normal((2, 256, 256), np.float32)
    with device.as_gpu():
        found = np.array(mx.array(a) @ mx.array(b))
    return difference(found, a.astype(np.float64) @ b)


def tolerance(dtype: str) -> float:
    """Of a whole pass. Where float32 products are rounded, it is as coarse as they are."""
    return max(TOLERANCES[dtype], PASS * rounding()) if dtype == "float32" else TOLERANCES[dtype]
