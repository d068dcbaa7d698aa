"""Linux only: what makes MLX fast on a CPU and must be done before `mlx.core` is imported.

The package does it first of all. On a Mac there is nothing to do.
"""

import ctypes
import os
import sys

from mlx_transformer.cpu import blas, kernel_folder

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # of mallopt(3)
LARGEST = 2**31 - 1


def prepare() -> None:
    """The BLAS library only unless its environment variable says `off`."""
    if sys.platform != "linux":
        return
    kernel_folder.use()
    if os.environ.get(blas.VARIABLE) == "off":
        return
    # Between two products OpenBLAS's threads spin, for some 20 ms unless told. Where other threads
    # want the cores as well, 2^12 cycles are better.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "12")
    blas.load()
    # MLX launches the operations of a graph breadth first only up to this width, 20 unless told,
    # and depth first beyond: then the lanes of a CPU (lanes.py) would work one after the other.
    os.environ.setdefault("MLX_BFS_MAX_WIDTH", "4096")
    # Memory goes back to malloc after every operation. Unless malloc keeps it, large arrays are
    # mapped anew, page by page, in every step.
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, LARGEST)
