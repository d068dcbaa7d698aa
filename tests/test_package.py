"""What people install and import: every file is in the wheel, every public name has its type."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mlx_transformer

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mlx_transformer"


def test_every_folder_with_code_is_a_package() -> None:
    """Others are not found: `namespaces` is false."""
    assert {path.parent for path in PACKAGE.rglob("*.py")} == {
        path.parent for path in PACKAGE.rglob("__init__.py")
    }


def test_every_data_file_is_listed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = {
        path
        for pattern in setuptools["package-data"]["mlx_transformer"]
        for path in PACKAGE.glob(pattern)
    }
    code = {".py", ".pyc", ".cpp", ".so"}
    others = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in code}
    assert others <= listed
    assert PACKAGE / "weights" / "en-de" / "model.safetensors" in listed


def test_public_names_are_there() -> None:
    assert set(mlx_transformer.__all__) >= {
        *("load", "SearchOptions", "Translation", "Translator", "InputError"),
        *("Transformer", "ModelConfig", "__version__"),
    }
    assert all(hasattr(mlx_transformer, name) for name in mlx_transformer.__all__)


SCRATCH = """\
from mlx_transformer import InputError, ModelConfig, SearchOptions, Transformer, load

translator = load()
reveal_type(translator)
reveal_type(translator.translate("a", beam=2).text)
reveal_type(translator.translate(["a"], SearchOptions(beam=2))[0].score)
reveal_type(Transformer(ModelConfig(vocab_size=8)).config.d_model)
reveal_type(InputError("no"))
"""


@pytest.mark.slow
def test_a_type_checker_finds_the_types_in_an_editable_install(tmp_path: Path) -> None:
    """A plain path is all that a type checker follows, so an editable install has to be one."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([sys.executable, *install, "--editable", ROOT], check=True)
    (tmp_path / "scratch.py").write_text(SCRATCH)
    check = ["-m", "mypy", "--python-executable", python, "--follow-imports=silent", "scratch.py"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    checked = subprocess.run(  # a path in the environment would show the types as well
        [sys.executable, *check], cwd=tmp_path, env=kept, capture_output=True, text=True
    )
    revealed = [
        line.split("type is ")[1].strip('"')
        for line in checked.stdout.splitlines()
        if "Revealed type is" in line
    ]
    assert revealed == [
        "mlx_transformer.decoding.translator.Translator",
        "str",
        "float",
        "int",
        "mlx_transformer.errors.InputError",
    ]
