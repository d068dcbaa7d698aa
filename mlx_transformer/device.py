"""The only door to what differs between a GPU and a CPU.

The rest of the package reads as on a GPU. What a CPU does instead of MLX's own operations is in
`cpu/`. Everything is decided in each call, because the default device can change.

Lanes are pieces of work side by side, one for each core of a CPU. A GPU is one lane.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn

from mlx_transformer.cpu import blas, kernels, startup

# For this few queries Metal's fused attention has no backward pass, and "causal" raises an error
# under gradients. With an array as mask MLX uses its unfused operations.
SHORT_QUERIES = 8

# True where a query may look, or numbers to add to the scores, or "causal"; None: everywhere.
Mask = mx.array | str | None
Result = TypeVar("Result")

startup.first_use()


# Which device

_as_gpu = False  # the branches of a GPU are taken, whatever computes


def is_gpu() -> bool:
    return _as_gpu or mx.default_device() == mx.gpu


def is_exact() -> bool:
    """Whether the same run gives the same bits each time: a GPU adds some sums in any order."""
    return mx.default_device() == mx.cpu


@contextmanager
def as_gpu() -> Iterator[None]:
    """Take the branches of a GPU: on Linux the CPU computes what a Mac would launch."""
    with _branches(of_gpu=True):
        yield


@contextmanager
def reference() -> Iterator[None]:
    """On the CPU, whatever the default device is: what a GPU is compared with.

    Uncompiled, because MLX compiles for a CPU with g++, which a Mac need not have.
    """
    with _branches(of_gpu=False), mx.stream(mx.cpu), uncompiled():
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    mx.disable_compile()
    try:
        yield
    finally:
        if "MLX_DISABLE_COMPILE" not in os.environ:
            mx.enable_compile()


@contextmanager
def _branches(*, of_gpu: bool) -> Iterator[None]:
    global _as_gpu
    before, _as_gpu = _as_gpu, of_gpu
    try:
        yield
    finally:
        _as_gpu = before


def launch_as_on_a_mac() -> None:
    """Operations in the order of a Mac, on which peak memory depends. Before anything is computed:
    MLX reads it once."""
    os.environ[startup.LAUNCH_WIDTH] = "20"


def facts() -> dict[str, str]:
    """What to write beside a measurement."""
    found = {"device": mx.default_device().type.name}
    version = blas.version()
    return found if version is None else found | {"OpenBLAS": version}


# Threads

_thread = threading.local()


class _MlxOfThread:
    """Goes when its thread ends, and takes along what MLX has kept for that thread."""

    def __del__(self) -> None:
        mx.clear_streams()


def tidy_thread() -> None:
    """To be called in a thread that is going to compute.

    What MLX compiles is kept by thread, and freed after Python has let go of the thread. A program
    that is about to exit is then aborted. Here it is freed just before.
    """
    if threading.current_thread() is not threading.main_thread() and not hasattr(_thread, "mlx"):
        _thread.mlx = _MlxOfThread()


# Attention


def attention(q: mx.array, k: mx.array, v: mx.array, mask: Mask, scale: float) -> mx.array:
    """softmax(scale * q k^T) v: (B,h,T,d_k), (B,h,S,d_k), (B,h,S,d_v) -> (B,h,T,d_v)"""
    (B, _, T, _), S = q.shape, k.shape[2]
    if not is_gpu() and B * T > kernels.FEW_TOKENS:
        return kernels.attention(q, k, v, _mask_array(mask, T, S), scale)
    if T <= SHORT_QUERIES:
        mask = _mask_array(mask, T, S)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def masked(scores: mx.array, mask: Mask) -> mx.array:
    """(..., T,S): masked scores are set to the smallest number of the dtype."""
    return kernels.masked(scores, _mask_array(mask, *scores.shape[-2:]))


def _mask_array(mask: Mask, T: int, S: int) -> mx.array | None:
    """The last of T queries may look at all S keys."""
    return mx.tri(T, S, k=S - T, dtype=mx.bool_) if isinstance(mask, str) else mask


def mask_by_head(mask: mx.array, h: int) -> mx.array:
    """(B,1,T,S), for all layers of a pass. On a GPU (B,h,T,S): each layer would copy it to that."""
    if not is_gpu():
        return mask
    B, _, T, S = mask.shape
    return mx.contiguous(mx.broadcast_to(mask, (B, h, T, S)))


def heads(x: mx.array, sizes: Sequence[int]) -> list[mx.array]:
    """Projections side by side, of heads of these sizes: (B,T,h*sum) -> (B,h,T,size) each"""
    B, T, width = x.shape
    if len(set(sizes)) > 1:
        h = width // sum(sizes)
        bounds = [h * sum(sizes[:i]) for i in range(1, len(sizes))]
        parts = mx.split(x, bounds, axis=-1)
        return [heads(part, [size])[0] for part, size in zip(parts, sizes, strict=True)]
    count, d = len(sizes), sizes[0]
    if T == 1:  # a reshape is enough: nothing has to move
        return list(mx.split(x.reshape(B, -1, 1, d), count, axis=1))
    x = x.reshape(B, T, -1, d)
    if is_gpu():  # split first: the backward pass then joins the gradients in one copy
        return [part.swapaxes(1, 2) for part in mx.split(x, count, axis=2)]
    # Each head in one piece, as products on a CPU want it.
    return list(mx.split(mx.contiguous(x.swapaxes(1, 2)), count, axis=1))


# Other operations


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """x W^T + b: (..., d_in), (d_out,d_in), (d_out,) -> (..., d_out)"""
    if bias is None:
        return x @ weight.T
    # MLX's `addmm` on a CPU first fills the result with b, number by number, which takes up to
    # half as long as the product.
    return mx.addmm(bias, x, weight.T) if is_gpu() else x @ weight.T + bias


def add_product(total: mx.array, a: mx.array, b: mx.array) -> mx.array:
    """total + a b, in the float32 of `total`: (n,m), (n,k), (k,m) -> (n,m)"""
    if is_gpu() and a.dtype == total.dtype:
        return mx.addmm(total, a, b)
    return total + (a @ b).astype(total.dtype)


def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    """(..., d) -> (..., d)"""
    norm = mx.fast.layer_norm if is_gpu() else kernels.layer_norm
    return norm(x, weight, bias, eps)


def exp_below(x: mx.array, greatest: mx.array) -> mx.array:
    """e^(x - greatest), to a few ten-millionths of e^0; no x is above its `greatest`."""
    return mx.exp(x - greatest) if is_gpu() else kernels.exp_below(x, greatest)


def logsumexp(x: mx.array) -> mx.array:
    """log of the sum of e^x: (..., V) -> (...)"""
    return mx.logsumexp(x, axis=-1) if is_gpu() else kernels.logsumexp(x)


def argmax(x: mx.array) -> mx.array:
    """(..., V) -> (...)"""
    return (mx.argmax(x, axis=-1) if is_gpu() else kernels.argmax(x)).astype(mx.int32)


def swish(x: mx.array) -> mx.array:
    """x sigmoid(x)"""
    return nn.silu(x) if is_gpu() else kernels.swish(x)


def total(x: mx.array) -> mx.array:
    """The sum of all: (..., n) -> ()"""
    # As a product on a CPU: MLX's sum there adds number by number.
    if is_gpu() or x.dtype != mx.float32:
        return x.sum()
    return (x @ mx.ones(x.shape[-1:])).sum()


def square_sum(vector: mx.array) -> mx.array:
    """(n,) -> ()"""
    # MLX's sum on a CPU adds number by number: it takes four times as long as a product and, of
    # the squares of 24 million numbers, loses a twentieth.
    return mx.square(vector).sum() if is_gpu() else vector @ vector


# Choices


def prefers_float32() -> bool:
    """Whether half-precision and quantised products are too slow to use, as MLX's on a CPU."""
    return not is_gpu()


def compiles_search() -> bool:
    """Whether to compile the step of a search: on a CPU the compiler would run for half a minute
    before the first step, and none would be faster for it."""
    return is_gpu()


def builds_kernels() -> bool:
    """Whether MLX has a C++ compiler build what it compiles, which takes a while at first."""
    return not is_gpu() and sys.platform == "linux"


def loss_chunk() -> int:
    """How many logits the loss holds at once. On a CPU its last cache should keep them; on a GPU
    fewer, larger chunks add up the gradient of the word matrix less often."""
    return 2**25 if is_gpu() else 2**22


def search_tokens(hypotheses: int = 4) -> int:
    """Source tokens of a search batch, padding included: what keeps the device busy, with so many
    hypotheses a sentence."""
    # Each step of a batch on a CPU packs all matrices anew: many rows should share them.
    return 4096 if is_gpu() else max(1024, 4096 // hypotheses)


def working_set() -> int:
    """Bytes that training may count on: what Metal recommends, or three quarters of the memory."""
    if is_gpu() and mx.metal.is_available():
        return int(mx.device_info()["max_recommended_working_set_size"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4


def keep_memory(unused: float | None = None) -> None:
    """On Metal, what is in use stays in memory: it is wired, up to the working set, as mlx-lm has
    it. Of buffers that are free, MLX keeps at most `unused` bytes for the next operations."""
    if is_gpu() and mx.metal.is_available():
        _wire()
        if unused is not None:
            mx.set_cache_limit(int(unused))


@cache
def _wire() -> None:
    mx.set_wired_limit(working_set())


def search_matrix(weight: mx.array) -> mx.array:
    """The matrix W of products x W^T as a search wants it to lie. On a CPU column by column:
    products of a few rows are up to 1.6 times as fast, and few_rows.cpp takes no others."""
    return weight if is_gpu() else kernels.by_columns(weight)


# Lanes
#
# MLX computes on a CPU whatever is not a matrix product on one core. Independent pieces of work in
# streams of their own, each with its share of the BLAS threads, keep all cores busy all the time.

# CPUs this process may use. OpenBLAS counts them once as well.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LANES = min(CORES, 16)  # each has its own graph to trace, and a share of the weights
LANE_ROWS = 32  # hypotheses of a search that make another lane worth it
FEW_ROWS = 16  # hypotheses whose products few_rows.cpp shares among the cores


def lane_count() -> int:
    return 1 if is_gpu() else LANES


def search_lanes(rows: int) -> int:
    """How many lanes are worth it for so many hypotheses."""
    return 1 if is_gpu() else max(1, min(LANES, rows // LANE_ROWS))


@contextmanager
def side_by_side(count: int, rows: int | None = None) -> Iterator[None]:
    """Share the cores among so many lanes for as long as this lasts: in a search, for so many
    hypotheses.

    A search of few rows gets one thread. OpenBLAS has little to do there, and on a busy machine
    spends most of it waiting for its second thread.
    """
    few = rows is not None and rows <= FEW_ROWS
    with blas.threads(1 if few else max(1, CORES // count)):
        try:
            yield
        except BaseException:  # also when a search is given up: its lanes are still computing
            for number in range(count):
                with lane(number):
                    mx.synchronize()
            raise


def lane(number: int) -> AbstractContextManager[object]:
    """Where operations are computed for as long as this lasts; lane 0 is where they are anyway."""
    if number == 0:
        return nullcontext()
    streams = _thread.__dict__.setdefault("streams", [])  # they belong to the thread that made them
    while len(streams) < number:
        streams.append(mx.new_stream(mx.default_device()))
    return mx.stream(streams[number - 1])


def by_rows(function: Callable[..., Result], count: int, *batch: mx.array) -> list[Result]:
    """The function of each of `count` equal shares of each array's rows; each call in its lane.

    Arrays may differ in rows: a batch goes with one random key a lane.
    """

    def shares(array: mx.array) -> list[mx.array]:
        return list(mx.split(array, [array.shape[0] * i // count for i in range(1, count)]))

    return by_parts(function, *map(shares, batch))


def by_parts(function: Callable[..., Result], *columns: Sequence[object]) -> list[Result]:
    """[f(a[0], b[0], ...), f(a[1], b[1], ...), ...] of columns a, b, ...; each call in its lane."""
    found = []
    for number, row in enumerate(zip(*columns, strict=True)):
        with lane(number):
            found.append(function(*row))
    return found


def launch_early(x: mx.array, rows: int) -> None:
    """On a CPU, let `x` be computed while the host still describes what comes after it.

    MLX queues too few operations to bridge that time, which counts where a step has few rows. With
    more there are other lanes: they would wait while the host waits for room in this one's queue.
    """
    if rows < LANE_ROWS and not is_gpu():
        mx.async_eval(x)
