"""Kernels that MLX compiles are built and loaded where nobody else can write."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="MLX builds kernels on Linux"
)
ROOT = Path(__file__).parents[2]
COMPILE = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
print(mx.compile(lambda x: mx.abs(x * 2) + 1)(mx.ones(3)).tolist())
"""
OURS = "import mlx_transformer.device\n" + COMPILE


# Another user, who may read the interpreter wherever it lies, but writes only what is nobody's.
READ_ALL = "+dac_read_search"
AS_NOBODY = (
    "setpriv", "--reuid", "nobody", "--clear-groups", "--inh-caps", READ_ALL,
    "--ambient-caps", READ_ALL,
)  # fmt: skip


def python(
    code: str, home: Path, temporary: Path, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MLX_", "TMP"))}
    environment = {
        **kept, "HOME": str(home), "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT), "MLX_TRANSFORMER_BLAS": "off",
    }  # fmt: skip
    return subprocess.run(
        [*prefix, sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


@pytest.fixture
def home(tmp_path):
    return folder(tmp_path / "home")


@pytest.fixture
def shared(tmp_path):
    return folder(tmp_path / "tmp")


def folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.slow
def test_a_planted_kernel_does_not_run(tmp_path, home, shared):
    result = python(COMPILE, home, shared)  # MLX by itself: shows what to plant, and where
    assert result.returncode == 0, result.stderr
    (kernel,) = libraries(shared)
    sentinel = tmp_path / "sentinel"
    source = tmp_path / "planted.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) "
        f'{{ FILE *f = fopen("{sentinel}", "w"); if (f) fclose(f); }}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", kernel, source], check=True)
    python(COMPILE, home, shared)
    assert sentinel.exists()  # MLX by itself does run it
    sentinel.unlink()

    result = python(OURS, home, shared)
    assert result.stdout == "[3.0, 3.0, 3.0]\n", result.stderr
    assert not sentinel.exists()
    assert [path.name for path in libraries(home)] == [kernel.name]
    private = home / ".cache" / "mlx-transformer" / "kernels"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@pytest.mark.slow
@pytest.mark.parametrize("temporary", ["read-only", "missing"])
def test_the_temporary_folder_is_not_needed(home, shared, temporary):
    place = shared if temporary == "read-only" else shared / "missing"
    shared.chmod(0o500)
    result = python(OURS, home, place)
    assert result.stdout == "[3.0, 3.0, 3.0]\n", result.stderr
    assert not libraries(shared)


def open_to_all(home):
    private = home / ".cache" / "mlx-transformer" / "kernels"
    private.mkdir(parents=True)
    private.chmod(0o777)


def a_link(home):
    elsewhere = folder(home / "elsewhere")
    (home / ".cache" / "mlx-transformer").mkdir(parents=True)
    (home / ".cache" / "mlx-transformer" / "kernels").symlink_to(elsewhere)


def of_another_user(home):
    private = home / ".cache" / "mlx-transformer" / "kernels"
    private.mkdir(parents=True, mode=0o700)
    os.chown(private, 12345, 12345)


def below_another_user(home):
    private = home / ".cache" / "mlx-transformer" / "kernels"
    private.mkdir(parents=True, mode=0o700)
    os.chown(home / ".cache", 12345, 12345)


def not_a_folder(home):
    (home / ".cache").write_text("")


@pytest.mark.parametrize(
    "spoil", [open_to_all, a_link, of_another_user, below_another_user, not_a_folder]
)
def test_a_folder_that_is_not_ours_alone_is_not_used(home, shared, spoil):
    if "another" in spoil.__name__ and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    spoil(home)
    result = python(OURS, home, shared)  # without the compiler the answer is the same
    assert result.stdout == "[3.0, 3.0, 3.0]\n", result.stderr
    assert not libraries(home) and not libraries(shared)


def test_python_keeps_its_own_temporary_folder(home, shared):
    code = "import os, tempfile, mlx_transformer.device\n"
    code += "print(os.environ['TMPDIR'], tempfile.mkdtemp())"
    result = python(code, home, shared)
    kept, made = result.stdout.split()
    assert kept == str(shared) and made.startswith(str(shared))


@pytest.mark.slow
def test_two_users_on_one_machine_do_not_meet(tmp_path, shared):
    """What the first user left in the temporary folder does not stop the second."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to be a second user")
    shared.chmod(0o1777)
    homes = [folder(tmp_path / name) for name in ("first", "second")]
    os.chown(homes[1], pwd.getpwnam("nobody").pw_uid, -1)
    assert python(COMPILE, homes[0], shared).returncode == 0  # the folder is root's now
    other = COMPILE.replace("* 2", "* 3")
    assert python(other, homes[1], shared, prefix=AS_NOBODY).returncode != 0  # MLX by itself
    for home, prefix in zip(homes, ((), AS_NOBODY), strict=True):
        result = python(OURS, home, shared, prefix=prefix)
        assert result.stdout == "[3.0, 3.0, 3.0]\n", result.stderr
        assert {path.owner() for path in libraries(home)} == {"nobody" if prefix else "root"}
