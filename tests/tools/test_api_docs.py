"""docs/api.md says what the docstrings say."""

import mlx_transformer
from tools.api_docs import PAGE, page


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tools/api_docs.py"


def test_every_public_name_is_explained():
    for name in mlx_transformer.__all__:
        if not name.startswith("_"):
            assert f"## {name}\n" in page()
            assert getattr(mlx_transformer, name).__doc__, f"{name} has no docstring"
