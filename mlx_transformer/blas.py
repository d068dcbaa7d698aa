"""Put the system OpenBLAS in front of the reference BLAS inside MLX's wheel for Linux.

Matrix products become about twenty times faster. It works only before `mlx.core` is imported.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "MLX_TRANSFORMER_BLAS"
_DEFAULT = "libopenblas.so.0"
# The threads there were at first, then those of all `threads` that last: they may end in any order.
_asked: list[int] = []


def load() -> None:
    """Load the BLAS library; the environment variable names another one."""
    name = os.environ.get(VARIABLE) or _DEFAULT
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        print(
            f"mlx-transformer: {name} not found, matrix products will be about 20 times slower: "
            f"apt-get install libopenblas0-pthread (and unset {VARIABLE}, or set it to off to "
            "silence this)",
            file=sys.stderr,
        )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let one matrix product use so many threads, for as long as this lasts."""
    library = ctypes.CDLL(None)  # of the whole process: whichever BLAS was loaded
    if not hasattr(library, "openblas_set_num_threads"):
        yield
        return
    if not _asked:
        _asked.append(library.openblas_get_num_threads())
    _asked.append(count)
    library.openblas_set_num_threads(count)
    try:
        yield
    finally:
        _asked.remove(count)
        library.openblas_set_num_threads(_asked[-1])
