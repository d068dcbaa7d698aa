"""Put the system OpenBLAS in front of the reference BLAS inside MLX's wheel for Linux.

Matrix products become about twenty times faster. It works only before `mlx.core` is imported.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

VARIABLE = "MLX_TRANSFORMER_BLAS"
_DEFAULT = "libopenblas.so.0"
_FEW_ROWS = Path(__file__).with_name("few_rows.cpp")
# The threads there were at first, then those of all `threads` that last: they may end in any order.
_asked: list[int] = []


def load() -> None:
    """Load the BLAS library; the environment variable names another one."""
    name = os.environ.get(VARIABLE) or _DEFAULT
    try:
        library = ctypes.CDLL(name)
    except OSError:
        print(
            f"mlx-transformer: {name} not found, matrix products will be about 20 times slower: "
            f"apt-get install libopenblas0-pthread (and unset {VARIABLE}, or set it to off to "
            "silence this)",
            file=sys.stderr,
        )
        return
    # The first to be global is the one whose product MLX finds.
    if hasattr(library, "cblas_sgemm") and (few_rows := _few_rows()):
        few_rows.mlx_transformer_use_blas(library.cblas_sgemm)
    ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def _few_rows() -> ctypes.CDLL | None:
    """few_rows.cpp, for all to see. As with MLX's own kernels, a machine without g++ does without,
    and so does one where nothing can be kept."""
    try:
        return ctypes.CDLL(str(_built_few_rows()), mode=ctypes.RTLD_GLOBAL)
    except (OSError, RuntimeError, subprocess.CalledProcessError):
        return None


def _built_few_rows() -> Path:
    """The library, built by the first process that needs it and kept in the user's cache: in the
    temporary folder others might put another one in its place."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mlx-transformer"
    version = sha256(_FEW_ROWS.read_bytes()).hexdigest()[:16]
    library = cache / f"few-rows-{version}-{os.uname().machine}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as aside:
            built = Path(aside, library.name)
            options = ["-std=c++20", "-O3", "-shared", "-fPIC", "-pthread"]
            command = ["g++", *options, "-o", str(built), str(_FEW_ROWS)]
            subprocess.run(command, check=True, capture_output=True)
            built.replace(library)
    return library


def version() -> str | None:
    """Of the OpenBLAS that was loaded for the whole process to see, if it was."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "openblas_get_config"):
        return None
    process.openblas_get_config.restype = ctypes.c_char_p
    return process.openblas_get_config().decode().split()[1]


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
