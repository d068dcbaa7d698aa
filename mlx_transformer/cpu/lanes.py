"""Lanes of a CPU, each an MLX stream that keeps one core.

MLX computes whatever is not a matrix product on one core. Independent pieces of work in streams of
their own, each with its share of the BLAS threads, keep all cores busy all the time.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

from mlx_transformer.cpu import blas

MOST_LANES = 16  # each has its own graph to trace, and a share of the weights
LANE_ROWS = 32  # hypotheses of a search that make another lane worth it
FEW_ROWS = 16  # hypotheses whose products few_rows.cpp shares among the cores

_own = threading.local()  # MLX streams belong to the thread that made them


def cores() -> int:
    """CPUs this process may use"""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most() -> int:
    """How many lanes there are"""
    return min(cores(), MOST_LANES)


def stream(lane: int) -> mx.Stream:
    """The stream of a lane in this thread; lane 0 is the default stream."""
    device = mx.default_device()
    made = _own.__dict__.setdefault("streams", [])
    while len(made) < lane:
        made.append(mx.new_stream(device))
    return made[lane - 1] if lane else mx.default_stream(device)


@contextmanager
def side_by_side(count: int, rows: int | None = None) -> Iterator[None]:
    """Share the BLAS threads among so many lanes for as long as this lasts.

    A search of few rows gets one thread. OpenBLAS has little to do there, and on a busy machine
    spends most of it waiting for its second thread.
    """
    few = rows is not None and rows <= FEW_ROWS
    with blas.threads(1 if few else max(1, cores() // count)):
        try:
            yield
        except BaseException:  # also when a search is given up: its lanes are still computing
            for lane in range(count):
                mx.synchronize(stream(lane))
            raise
