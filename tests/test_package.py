"""What an installed package carries: a folder not in pyproject.toml is not in the wheel."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_and_data_file_is_listed():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in (ROOT / "mlx_transformer").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(setuptools["packages"]) == names | {"mlx_transformer.weights"}
    data = setuptools["package-data"]["mlx_transformer"]
    listed = {path for pattern in data for path in (ROOT / "mlx_transformer").glob(pattern)}
    others = {
        path
        for path in (ROOT / "mlx_transformer").rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    }
    assert others <= listed
