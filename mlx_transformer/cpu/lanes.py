"""Lanes: work side by side on a CPU, each lane an MLX stream that keeps one core.

MLX computes whatever is not a matrix product on one core. Independent pieces of work in streams of
their own, each with its share of the BLAS threads, keep all cores busy all the time. A GPU is one
lane.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

from mlx_transformer.cpu import blas

MOST_LANES = 16  # each has its own graph to trace, and a share of the weights
LANE_ROWS = 32  # hypotheses of a search that make another lane worth it

_own = threading.local()  # MLX streams belong to the thread that made them


def cores() -> int:
    """CPUs this process may use"""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_lanes() -> int:
    """How many lanes the default device has"""
    return 1 if mx.default_device() == mx.gpu else min(cores(), MOST_LANES)


@contextmanager
def side_by_side(count: int) -> Iterator[list[mx.Stream]]:
    """So many lanes, among which the BLAS threads are shared out for as long as this lasts."""
    device = mx.default_device()
    made = _own.__dict__.setdefault("streams", [])
    while len(made) < count - 1:
        made.append(mx.new_stream(device))
    with blas.threads(max(1, cores() // count)):
        yield [mx.default_stream(device), *made[: count - 1]]


def launch_early(x: mx.array, rows: int) -> None:
    """On a CPU, let `x` be computed while the host still describes what comes after it.

    MLX queues too few operations to bridge that time, which counts where a step has few rows. With
    more there are other lanes: they would wait while the host waits for room in this one's queue.
    """
    if rows < LANE_ROWS and mx.default_device() == mx.cpu:
        mx.async_eval(x)
