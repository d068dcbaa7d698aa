"""OpenBLAS is there before MLX; without it everything works, and says once what is lost."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlx_transformer

PACKAGE = Path(mlx_transformer.__file__).parent
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux loads a BLAS library"),
    pytest.mark.skipif(
        not list(PACKAGE.glob("cpu/few_rows.*.so")) and os.environ.get("CI") != "true",
        reason="few_rows.cpp is not built: python setup.py build_ext --inplace",
    ),
]
PRODUCT = """
import mlx.core as mx
print((mx.ones((300, 300)) @ mx.ones((300, 300)))[0, 0].item())
import mlx_transformer.device, mlx_transformer.model
"""
FIRST = "import mlx_transformer"


def run(
    code: str, folder: Path = PACKAGE.parent, **environment: str
) -> subprocess.CompletedProcess:
    """In the package that lies in `folder`."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": "", "MLX_TRANSFORMER_BLAS": ""} | environment,
        capture_output=True,
        text=True,
        check=True,
    )


LOADED = FIRST + "; print('libscipy_openblas' in open('/proc/self/maps').read())"


def test_openblas_of_pip_is_loaded_without_importing_mlx():
    done = run(LOADED + "; import sys; print('mlx.core' in sys.modules)")
    assert done.stdout.split() == ["True", "False"]
    assert done.stderr == ""


def test_an_import_writes_nothing_and_starts_no_program(tmp_path: Path):
    """Seen from inside: Python tells an audit hook of every file it opens and program it runs."""
    code = """
import sys
def hook(event, args):
    if event in ("os.mkdir", "os.rename", "subprocess.Popen", "os.exec", "os.posix_spawn"):
        print(event, args)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        print(event, args)
sys.addaudithook(hook)
import mlx_transformer
"""
    done = run(code, HOME=str(tmp_path), TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert (done.stdout, done.stderr) == ("", "")
    assert not list(tmp_path.iterdir())


def test_products_of_every_kind_of_number_are_right():
    """MLX takes those of three kinds from a BLAS."""
    rng = np.random.default_rng(0)
    for unit, dtype in ((1, mx.float32), (1, mx.float64), (1 + 1j, mx.complex64)):
        a, b = (rng.standard_normal((40, 40)) * unit for _ in range(2))
        with mx.stream(mx.cpu):
            found = mx.array(a, dtype) @ mx.array(b, dtype)
        assert found.dtype == dtype
        np.testing.assert_allclose(np.array(found), a @ b, rtol=1e-4, atol=1e-4)


def test_a_library_that_is_not_there_is_said_in_one_line_once():
    done = run(FIRST + PRODUCT, MLX_TRANSFORMER_BLAS="libnowhere.so.9")
    assert done.stdout == "300.0\n"
    assert done.stderr.count("Warning") == 1
    assert "libnowhere.so.9" in done.stderr and "MLX_TRANSFORMER_BLAS" in done.stderr


def test_an_installation_without_a_compiler_says_so_once(tmp_path: Path):
    ignored = shutil.ignore_patterns("*.so", "weights", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "mlx_transformer", ignore=ignored)
    assert run(FIRST, tmp_path).stderr == ""  # not before it is used
    done = run(FIRST + PRODUCT, tmp_path)
    assert done.stdout == "300.0\n"
    assert done.stderr.count("Warning") == 1 and "install g++" in done.stderr


def test_mlx_imported_too_early_is_said_once():
    done = run("import mlx.core\n" + FIRST + PRODUCT)
    assert done.stdout == "300.0\n"
    assert done.stderr.count("Warning") == 1
    assert "import mlx_transformer first" in done.stderr


def test_the_command_says_it_in_one_line():
    code = """
import mlx.core, sys
from mlx_transformer.__main__ import main
sys.exit(main(["info", "tiny"]))
"""
    (line,) = run(code).stderr.splitlines()
    assert line.startswith("mlx-transformer: matrix products")


def test_it_can_be_switched_off():
    done = run(LOADED + PRODUCT, MLX_TRANSFORMER_BLAS="off")
    assert done.stdout.split() == ["False", "300.0"]
    assert done.stderr == ""


def test_threads_are_those_before_in_whatever_order_the_shares_end():
    code = """
from mlx_transformer.cpu import blas
count = blas._function("openblas_get_num_threads")
blas._function("openblas_set_num_threads")(3)
first, second = blas.threads(1), blas.threads(2)
first.__enter__(); print(count())
second.__enter__(); print(count())
first.__exit__(None, None, None); print(count())
second.__exit__(None, None, None); print(count())
"""
    assert run(code).stdout.split() == ["1", "2", "2", "3"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a processor of this kind")
def test_the_version_says_for_which_processor_products_are_computed():
    code = FIRST + "; from mlx_transformer.cpu import blas; print(blas.version())"
    assert run(code, OPENBLAS_CORETYPE="Nehalem").stdout.endswith(" for Nehalem\n")


@pytest.mark.parametrize("rows", [1, 4, 16, 17])
@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
def test_products_of_few_rows_are_right_however_the_matrices_lie(rows, transposed):
    rng = np.random.default_rng(rows)
    for k, n in ((129, 130), (136, 130), (512, 96), (2048, 1), (64, 20)):
        matrices = [rng.standard_normal(shape, np.float32) for shape in ((rows, k), (k, n))]
        a, b = (
            mx.contiguous(mx.array(matrix).T).T if apart else mx.array(matrix)
            for matrix, apart in zip(matrices, transposed, strict=True)
        )
        bias = mx.ones((rows, n))
        exact = matrices[0].astype(np.float64) @ matrices[1]
        np.testing.assert_allclose(np.array(a @ b), exact, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            np.array(mx.addmm(bias, a, b, alpha=2, beta=3)), 2 * exact + 3, rtol=1e-4, atol=2e-4
        )


def test_products_of_few_rows_do_not_depend_on_who_computes_them():
    """Several threads share them, as they happen to have time, and several streams ask for them."""
    mx.random.seed(0)
    x, w = mx.random.normal((3, 512)), mx.random.normal((512, 1040))
    streams = [mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)]
    mx.eval(x, w)
    found = [mx.matmul(x + i // 40, w, stream=streams[i % 2]) for i in range(80)]
    mx.eval(found)
    exact = [(np.array(x, np.float64) + i) @ np.array(w, np.float64) for i in range(2)]
    for i, product in enumerate(found):
        assert mx.array_equal(product, found[40 * (i // 40)])
        np.testing.assert_allclose(np.array(product), exact[i // 40], atol=1e-3)


def test_products_of_few_rows_survive_a_fork_and_a_single_core():
    code = """
import os, mlx_transformer, ctypes
import numpy as np
sgemm = ctypes.CDLL(None).cblas_sgemm
def product():
    a, b, c = np.ones((1, 512), "f4"), np.ones((512, 512), "f4"), np.empty((1, 512), "f4")
    at = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    sgemm(101, 111, 111, 1, 512, 512, one, at[0], 512, at[1], 512, zero, at[2], 512)
    return c.min() == c.max() == 512
assert product()
child = os.fork()
if not child:
    os._exit(0 if product() else 1)
print(os.waitpid(child, 0)[1])
"""
    assert run(code).stdout.split() == ["0"]
    one_core = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    assert run(f"{one_core}\n{code}").stdout.split() == ["0"]


# How many columns of a product of so many rows with a matrix of this size are the BLAS library's?
LEFT_TO_BLAS = """
import ctypes, mlx_transformer, mlx.core as mx
from mlx_transformer.cpu import blas
openblas, seen = blas._function("cblas_sgemm"), []
signature = [ctypes.c_int] * 6 + [ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
signature += [ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int]
@ctypes.CFUNCTYPE(None, *signature)
def gemm(*args):
    seen.append(args[4])
    openblas(*args)
openblas.argtypes = signature
ctypes.CDLL(None).mlx_transformer_use_blas(gemm, None, None)
for rows, k, n in ((1, 256, 256), (16, 256, 256), (17, 256, 256), (1, 64, 64), (2, 256, 261)):
    seen.clear()
    mx.eval(mx.ones((rows, k)) @ mx.ones((k, n)))
    print(sum(seen))
"""


def test_only_few_rows_of_large_matrices_are_not_for_the_blas_library():
    assert run(LEFT_TO_BLAS).stdout.split() == ["0", "0", "256", "64", "5"]
