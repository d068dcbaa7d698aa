"""The default device compared with the CPU: what nobody could try on every Mac, tried on yours.

A check is a function that yields findings. Where the default device is a CPU, it takes the branches
of a GPU, so that the same table is made everywhere.
"""

import math
from collections.abc import Callable, Iterator

from mlx_transformer.selfcheck import attention, model, search, training
from mlx_transformer.selfcheck.finding import Finding

CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    attention.products,
    attention.scale,
    attention.masks,
    model.dropout,
    model.passes,
    model.quantised,
    search.cache,
    search.ids,
    training.losses,
    training.resuming,
    training.peak_memory,
)


def findings() -> Iterator[Finding]:
    """What all checks find; one that MLX cannot compute is a finding too."""
    for check in CHECKS:
        try:
            yield from check()
        except (RuntimeError, ValueError) as error:
            room = check.__module__.rpartition(".")[2]
            yield Finding(f"{room}, {check.__name__}: {error}", math.inf, 0)
