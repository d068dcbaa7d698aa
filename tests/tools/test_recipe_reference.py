"""docs/recipes.md is what the code says today, and says all of it."""

import runpy
from dataclasses import fields
from pathlib import Path

from mlx_transformer.recipes import TrainingConfig, shipped_recipes

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "tools" / "recipe_reference.py"))["reference"]()
    assert page == made, "run: python tools/recipe_reference.py"
    names = [field.name for field in fields(TrainingConfig)] + shipped_recipes()
    assert all(f"`{name}`" in page for name in names)
