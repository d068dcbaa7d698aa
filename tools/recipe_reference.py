"""Writes docs/recipes.md: every key of a recipe with its default, read off the code."""

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

from mlx_transformer.config import PRESETS, ModelConfig
from mlx_transformer.recipes import (
    FROM_TOKENIZER,
    DataConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
    first_line,
    shipped_recipes,
)

REFERENCE = Path(__file__).parents[1] / "docs" / "recipes.md"
HEAD = """\
# Recipes

A recipe is a TOML file with at most five sections; what it leaves out has the defaults below.
`mlx-transformer train RECIPE --show` prints one with its defaults, `--set section.key=value`
replaces a key. This page is made from the code by `python tools/recipe_reference.py`.

Shipped recipes:

"""
DATA = """
A corpus is a prefix (`"train"` for `train.en` and `train.de`), `{prefix = ..., weight = ...}` or
`{source = ..., target = ..., weight = ...}`. A split is one corpus or a list of them. `data.dir`
says where they are.
"""
MODEL = """
`preset` (default `base`) is one of: {presets}. `start` is the directory of a model to fine-tune,
as `--start` is: then only `dropout` and `label_smoothing` can differ from it. Any other setting
replaces that of the preset; these are those of `base`:
"""


def reference() -> str:
    parts = [HEAD, *(f"- `{name}`: {first_line(name)}\n" for name in shipped_recipes())]
    for name, section in (
        ("data", DataConfig),
        ("tokenizer", TokenizerConfig),
        ("model", ModelConfig),
        ("training", TrainingConfig),
        ("validation", ValidationConfig),
    ):
        parts.append(f"\n## [{name}]\n")
        if section is DataConfig:
            parts.append(DATA)
        if section is ModelConfig:
            parts.append(MODEL.format(presets=", ".join(f"`{each}`" for each in PRESETS)))
        parts += ["\n| key | default | |\n|---|---|---|\n", *rows(section)]
    return "".join(parts)


def rows(section: type) -> Iterator[str]:
    """A row a key: what it may be, and the comment that stands behind it in the code."""
    source, hints = inspect.getsource(section), get_type_hints(section)
    for field in fields(section):
        if section is ModelConfig and field.name in (*FROM_TOKENIZER, "quantization"):
            continue
        comment = re.search(rf"^    {field.name}: .* = .*?  # (.+)$", source, re.MULTILINE)
        meanings = [choices(hints[field.name]), comment[1] if comment else ""]
        yield f"| `{field.name}` | {shown(field.default)} | {'; '.join(filter(None, meanings))} |\n"


def shown(default: object) -> str:
    return "" if default in (None, ()) else f"`{json.dumps(default)}`"


def choices(hint: object) -> str:
    """What a Literal allows, also as `X | None`"""
    values = [value for each in (hint, *get_args(hint)) for value in get_args(each)]
    return " or ".join(f"`{value}`" for value in values if isinstance(value, str))


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
