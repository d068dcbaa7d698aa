"""The BLAS library is there before MLX, and its absence is said once, with the remedy."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux loads a BLAS library")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )


LOADED = "import mlx_transformer; print('openblas' in open('/proc/self/maps').read())"


def test_openblas_is_loaded_without_importing_mlx():
    done = run(LOADED + "; import sys; print('mlx.core' in sys.modules)", MLX_TRANSFORMER_BLAS="")
    assert done.stdout.split() == ["True", "False"]
    assert done.stderr == ""


def test_a_missing_library_is_said_in_one_line_once():
    code = "import mlx_transformer, mlx_transformer.model; from mlx_transformer import blas"
    done = run(code, MLX_TRANSFORMER_BLAS="libnowhere.so.9")
    assert done.stderr.count("\n") == 1
    assert "libnowhere.so.9" in done.stderr
    assert "apt-get install libopenblas0-pthread" in done.stderr


def test_it_can_be_switched_off():
    done = run(LOADED, MLX_TRANSFORMER_BLAS="off")
    assert done.stdout.strip() == "False"
    assert done.stderr == ""


def test_threads_are_those_before_in_whatever_order_the_shares_end():
    code = """
from mlx_transformer import blas
import ctypes
count = ctypes.CDLL(None).openblas_get_num_threads
ctypes.CDLL(None).openblas_set_num_threads(3)
first, second = blas.threads(1), blas.threads(2)
first.__enter__(); print(count())
second.__enter__(); print(count())
first.__exit__(None, None, None); print(count())
second.__exit__(None, None, None); print(count())
"""
    assert run(code).stdout.split() == ["1", "2", "2", "3"]
