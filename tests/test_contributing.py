"""CONTRIBUTING.md as a newcomer follows it: a new verb and a new family, in a copy of the package.

Each is one new file, word for word as the page has it, and a line in a table.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model, named_parameters

ROOT = Path(__file__).parents[1]
CONFIG = ModelConfig(
    vocab_size=40, encoder_layers=2, decoder_layers=1, d_model=16, d_ff=24, h=2, pad_id=0,
    start_id=1, eos_id=2,
)  # fmt: skip
# Our name -> the toy's. Where several of ours are stacked, the toy has them one by one.
TOY_NAMES = {
    "source_words": "words",
    "encoder.layers": "enc",
    "decoder.layers": "dec",
    "self_attention_norm": "self.norm",
    "cross_attention_norm": "cross.norm",
    "feed_forward_norm": "ffn.norm",
    "self_attention.out": "self.o",
    "cross_attention.out": "cross.o",
    "self_attention": "self",
    "cross_attention": "cross",
    "feed_forward.w_1": "ffn.in",
    "feed_forward.w_2": "ffn.out",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the package that may be changed"""
    package = ROOT / "mlx_transformer"
    ignored = shutil.ignore_patterns("weights", "__pycache__")
    shutil.copytree(package, tmp_path / "clone" / "mlx_transformer", ignore=ignored)
    return tmp_path / "clone"


def add(clone: Path, file: str) -> None:
    """The file of this name, as the page shows it"""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    after = page[page.index(f"`mlx_transformer/{file}`") :]
    found = re.search(r"```python\n(.*?)```", after, re.DOTALL)
    assert found is not None
    (clone / "mlx_transformer" / file).write_text(textwrap.dedent(found[1]), encoding="utf-8")


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), encoding="utf-8")


def run(clone: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_transformer", *args],
        cwd=clone.parent,
        env={**os.environ, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
    )


def test_a_verb_is_one_file_and_a_line(clone):
    add(clone, "cli/hello.py")
    main = clone / "mlx_transformer" / "__main__.py"
    change(main, "VERBS = {\n", 'VERBS = {\n    "hello": "greet somebody",\n')
    assert run(clone, "hello", "Ada").stdout == "Hello, Ada.\n"
    assert "hello      greet somebody" in run(clone, "--help").stdout
    assert run(clone, "hello").returncode == 2


@pytest.mark.slow
def test_a_family_is_one_file_and_its_name(clone):
    add(clone, "convert/toy.py")
    families = clone / "mlx_transformer" / "convert" / "families.py"
    change(families, "convert import (\n", "convert import (\n    toy,\n")
    change(families, "MODULES = (\n", "MODULES = (\n    toy,\n")
    mx.random.seed(0)
    model = Transformer(CONFIG)
    mx.save_safetensors(str(clone.parent / "toy.safetensors"), toy_tensors(model))
    done = run(clone, "convert", "toy.safetensors", "model", "--verify")
    assert done.returncode == 0, done.stderr  # it equals a plain pass in PyTorch
    converted = named_parameters(load_model(clone.parent / "model"))
    for name, array in named_parameters(model).items():
        assert mx.array_equal(converted[name], array), name


def toy_tensors(model: Transformer) -> dict[str, mx.array]:
    tensors: dict[str, mx.array] = {}
    for name, array in named_parameters(model).items():
        for ours, theirs in TOY_NAMES.items():
            name = name.replace(ours, theirs)
        stacked = re.search(r"\.(qkv|kv)\.", name)
        if stacked is None:
            tensors[name] = array
            continue
        letters = stacked[1]
        for letter, part in zip(letters, mx.split(array, len(letters)), strict=True):
            tensors[name.replace(f".{letters}.", f".{letter}.")] = part
    return tensors
