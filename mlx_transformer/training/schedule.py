"""Learning rates by step, section 5.3 of the paper and three others.

Steps are counted from 1. Every function takes a number or an array and gives back the same, so that
the compiled step, a plot and a test use one definition.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx

from mlx_transformer.recipes import TrainingConfig

StepNumber = TypeVar("StepNumber", float, mx.array)
Schedule = Callable[[StepNumber], StepNumber]


def make_schedule(config: TrainingConfig, d_model: int) -> Schedule:
    """The schedule a recipe asks for."""
    peak, warmup = config.learning_rate, config.warmup
    if config.schedule == "paper":
        return lambda step: paper(step, d_model, warmup)
    assert peak is not None  # TrainingConfig requires it
    if config.schedule == "inverse_sqrt":
        return lambda step: inverse_sqrt(step, peak, warmup)
    if config.schedule == "cosine":
        low, end = config.min_learning_rate, config.max_steps
        return lambda step: cosine(step, peak, warmup, end, low)
    return lambda step: constant(step, peak, warmup)


def paper(step: StepNumber, d_model: int, warmup: int) -> StepNumber:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): equation 3."""
    return d_model**-0.5 * _min(step**-0.5, step * warmup**-1.5)


def inverse_sqrt(step: StepNumber, peak: float, warmup: int) -> StepNumber:
    """Up to the peak in a line, then down with the square root of the step."""
    start = max(warmup, 1)
    return peak * _min((step / start) ** -0.5, step / start)


def cosine(step: StepNumber, peak: float, warmup: int, end: int, low: float = 0.0) -> StepNumber:
    """Up to the peak in a line, then down to `low` at step `end` along half a cosine."""
    done = _min(_max((step - warmup) / max(end - warmup, 1), 0.0), 1.0)
    return (low + (peak - low) * 0.5 * (1 + _cos(math.pi * done))) * _ramp(step, warmup)


def constant(step: StepNumber, peak: float, warmup: int) -> StepNumber:
    """Up to the peak in a line, then level."""
    return peak * _ramp(step, warmup)


def _ramp(step: StepNumber, warmup: int) -> StepNumber:
    return _min(step / max(warmup, 1), 1.0)


def _min(a: StepNumber, b: StepNumber | float) -> StepNumber:
    return mx.minimum(a, b) if isinstance(a, mx.array) else min(a, b)


def _max(a: StepNumber, b: StepNumber | float) -> StepNumber:
    return mx.maximum(a, b) if isinstance(a, mx.array) else max(a, b)


def _cos(x: StepNumber) -> StepNumber:
    return mx.cos(x) if isinstance(x, mx.array) else math.cos(x)
