"""Linux only: what makes MLX fast on a CPU and must be done before `mlx.core` is imported.

The package does it first of all, in milliseconds and without a word. On a Mac there is nothing to
do.
"""

import ctypes
import os
import sys
import warnings

from mlx_transformer.cpu import blas, kernel_folder

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # of mallopt(3)
LARGEST = 2**31 - 1
LAUNCH_WIDTH = "MLX_BFS_MAX_WIDTH"
TOO_LATE = "mlx.core was imported before mlx_transformer: import mlx_transformer first"

_lost: str | None = None  # what is not as fast as it could be, and the remedy


def prepare() -> None:
    """To be called before `mlx.core` is imported; does nothing if the BLAS variable says `off`."""
    global _lost
    if sys.platform != "linux" or os.environ.get(blas.VARIABLE) == "off":
        return
    if "mlx.core" in sys.modules:
        _lost = f"{blas.LOST}: {TOO_LATE}"
        return
    # OpenBLAS's threads spin between two products, by default for about 20 ms. Other threads need
    # the cores too, so let them spin for 2^12 cycles only.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "12")
    _lost = blas.load()
    # MLX launches the operations of a graph breadth first only up to this width, 20 unless told,
    # and depth first beyond: then the lanes of a CPU (device.py) would work one after the other.
    os.environ.setdefault(LAUNCH_WIDTH, "4096")
    # Memory goes back to malloc after every operation. Unless malloc keeps it, large arrays are
    # mapped anew, page by page, in every step.
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, LARGEST)


def first_use() -> None:
    """What need not be done before MLX is used, and is not done for those who never use it."""
    if sys.platform == "linux":
        kernel_folder.use()
    if _lost is not None:
        warnings.warn(_lost, stacklevel=2)
