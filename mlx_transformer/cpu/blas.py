"""Hand MLX's matrix products on Linux to OpenBLAS, which pip installs (`scipy-openblas32`).

MLX's wheel has the reference BLAS, about twenty times slower, but takes `cblas_sgemm` from the
first library that shows it to the whole process. That is few_rows.cpp, built at installation: it
must be there before `mlx.core` is imported. pip's OpenBLAS calls its functions `scipy_cblas_sgemm`
and so on, so MLX cannot find them without few_rows.cpp in between.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VARIABLE = "MLX_TRANSFORMER_BLAS"  # names another library, or says `off`
EXTENSION = Path(__file__).with_name("few_rows.abi3.so")
LOST = "matrix products will be about 20 times slower"


class OpenBlas:
    """A loaded library. In the one of pip all names have a prefix."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.prefix = "scipy_" if hasattr(self._library, "scipy_cblas_sgemm") else ""
        self.get_threads = self.function("openblas_get_num_threads")
        self.set_threads = self.function("openblas_set_num_threads")

    def function(self, name: str) -> Callable[..., Any] | None:
        return getattr(self._library, self.prefix + name, None)


_loaded: OpenBlas | None = None
# Stack of thread counts: the original first, then one per active `threads()`.
_thread_counts: list[int] = []
_lock = threading.Lock()  # of the stack


def load() -> str | None:
    """Load OpenBLAS where MLX finds it. Returns None, or what is lost and how to get it."""
    global _loaded
    path = os.environ.get(VARIABLE) or _path_of_pip()
    if path is None:
        return f"{LOST}: scipy-openblas32 is missing: pip install scipy-openblas32"
    try:
        openblas = OpenBlas(path)
    except OSError:
        return f"{LOST}: {path} cannot be loaded: name another in {VARIABLE}, or unset it"
    if EXTENSION.exists():
        few_rows = ctypes.CDLL(str(EXTENSION), mode=ctypes.RTLD_GLOBAL)
        few_rows.mlx_transformer_use_blas(*(openblas.function(f"cblas_{x}gemm") for x in "sdc"))
    elif not openblas.prefix:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    else:
        return (
            f"{LOST}: there was no C++ compiler when mlx-transformer was installed: install g++ "
            f"and then mlx-transformer again, or name a system OpenBLAS in {VARIABLE}"
        )
    _loaded = openblas
    return None


def _path_of_pip() -> str | None:
    """Found without importing the package, which takes longer than all the rest."""
    package = find_spec("scipy_openblas32")
    if package is None or package.origin is None:
        return None
    return str(Path(package.origin).with_name("lib") / "libscipy_openblas.so")


def _function(name: str) -> Callable[..., Any] | None:
    """Of the library that computes MLX's products; None if it has none of this name."""
    return None if _loaded is None else _loaded.function(name)


def version() -> str | None:
    """With the processor whose kernels it takes: OPENBLAS_CORETYPE may name one that is slower."""
    config, processor = _function("openblas_get_config"), _function("openblas_get_corename")
    if config is None or processor is None:
        return None
    for function in (config, processor):
        function.restype = ctypes.c_char_p  # type: ignore[attr-defined]
    return f"{config().decode().split()[1]} for {processor().decode()}"


def can_transpose() -> bool:
    return _function("cblas_somatcopy") is not None


def transpose(rows: int, columns: int, source: int, target: int) -> None:
    """Write the transpose of a float32 matrix; both are addresses, and both lie row by row."""
    function = _function("cblas_somatcopy")
    assert function is not None
    row_major, transposed = 101, 112  # of cblas.h
    one, a, b = ctypes.c_float(1), ctypes.c_void_p(source), ctypes.c_void_p(target)
    function(row_major, transposed, rows, columns, one, a, columns, b, rows)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let one matrix product use so many threads, for as long as this lasts."""
    openblas = _loaded
    if openblas is None or openblas.get_threads is None or openblas.set_threads is None:
        yield
        return
    with _lock:
        if not _thread_counts:
            _thread_counts.append(openblas.get_threads())
        _thread_counts.append(count)
        openblas.set_threads(count)
    try:
        yield
    finally:
        with _lock:
            _thread_counts.remove(count)  # they may end in any order
            openblas.set_threads(_thread_counts[-1])
