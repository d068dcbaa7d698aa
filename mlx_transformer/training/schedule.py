"""Learning rates by step, section 5.3 of the paper and three others.

Steps are arrays of any shape, counted from 1: the compiled step, a plot and a test use one
definition.
"""

import math
from collections.abc import Callable
from functools import partial

import mlx.core as mx

from mlx_transformer.recipes import TrainingConfig

Schedule = Callable[[mx.array], mx.array]


def make_schedule(config: TrainingConfig, d_model: int) -> Schedule:
    """The schedule a recipe asks for."""
    peak, warmup = config.learning_rate, config.warmup
    if config.schedule == "paper":
        return partial(paper, d_model=d_model, warmup=warmup)
    assert peak is not None  # TrainingConfig requires it
    if config.schedule == "inverse_sqrt":
        return partial(inverse_sqrt, peak=peak, warmup=warmup)
    if config.schedule == "cosine":
        low, end = config.min_learning_rate, config.max_steps
        return partial(cosine, peak=peak, warmup=warmup, end=end, low=low)
    return partial(constant, peak=peak, warmup=warmup)


def paper(step: mx.array, d_model: int, warmup: int) -> mx.array:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): equation 3."""
    return d_model**-0.5 * mx.minimum(step**-0.5, step * warmup**-1.5)


def inverse_sqrt(step: mx.array, peak: float, warmup: int) -> mx.array:
    """Up to the peak in a line, then down with the square root of the step."""
    start = max(warmup, 1)
    return peak * mx.minimum((step / start) ** -0.5, step / start)


def cosine(step: mx.array, peak: float, warmup: int, end: int, low: float = 0.0) -> mx.array:
    """Up to the peak in a line, then down to `low` at step `end` along half a cosine."""
    done = mx.minimum(mx.maximum((step - warmup) / max(end - warmup, 1), 0.0), 1.0)
    fall = low + (peak - low) * 0.5 * (1 + mx.cos(math.pi * done))
    return fall * mx.minimum(step / max(warmup, 1), 1.0)


def constant(step: mx.array, peak: float, warmup: int) -> mx.array:
    """Up to the peak in a line, then level."""
    return peak * mx.minimum(step / max(warmup, 1), 1.0)
