"""Every `sh` and `python` block of README.md runs as it is printed there, in order.

The files that it names are made up here, small. Two things are not as a reader has them: `train
numbers` makes two steps instead of some minutes of them, and `make`, which installs, only says what
it would do.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mlx_transformer.convert.export_marian import export_marian
from mlx_transformer.recipes import load_recipe
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import load_tokenizer
from tests.parity import test_convert_fairseq as fairseq
from tests.tiny_directory import write_model
from tests.training.tasks import tiny_task

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHORT = "--set training.max_steps=2 --set validation.sentences=0"
COMMAND = f"""#!/bin/sh
if [ "$1 $2" = "train numbers" ]; then set -- "$@" {SHORT}; fi
exec {shlex.quote(sys.executable)} -m mlx_transformer "$@"
"""
MAKE = f"""#!/bin/sh
exec /usr/bin/make --directory {shlex.quote(str(ROOT))} --just-print "$@"
"""


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the README names and does not make."""
    home = tmp_path_factory.mktemp("home")
    for folder in ("bin", "weights", "opus-mt-en-de", "tiny"):
        (home / folder).mkdir()
    (home / "weights" / "en-de").symlink_to(ROOT / "weights" / "en-de")
    for name, script in (("mlx-transformer", COMMAND), ("make", MAKE)):
        (home / "bin" / name).write_text(script)
        (home / "bin" / name).chmod(0o755)
    for name in ("news.en", "test.en"):
        (home / name).write_text("Good morning.\nHow are you?\n", encoding="utf-8")
    (home / "test.de").write_text("Guten Morgen.\nWie geht es dir?\n", encoding="utf-8")
    write_checkpoints(home)
    recipe = tiny_task(home / "corpus").read_text()
    short = "log_every = 1\nmax_steps = 2"
    (home / "my.toml").write_text(
        recipe.replace("log_every = 5", short).replace("[data]", '[data]\ndir = "corpus"')
    )
    return home


def write_checkpoints(home: Path) -> None:
    model = write_model(home / "tiny")
    export_marian(load_model(model), load_tokenizer(model), home / "opus-mt-en-de")
    args = fairseq.arguments(encoder_normalize_before=False, decoder_normalize_before=False)
    torch.save(fairseq.checkpoint(fairseq.shapes(), args, new=True), home / "checkpoint_best.pt")
    net = nn.Transformer(16, 8, 1, 1, 24, batch_first=True)
    parts = nn.ModuleDict({"net": net, "embedding": nn.Embedding(20, 16)})
    torch.save(parts.state_dict(), home / "my_model.pt")


def run(command: list[str], home: Path) -> None:
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.split("\n")[0][:50])
def test_commands(block: str, home: Path) -> None:
    """They build on each other: a run is resumed, a model translates."""
    run(["bash", "-e", "-c", block], home)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.split("\n")[0][:50])
def test_programs(block: str, home: Path) -> None:
    run([sys.executable, "-c", block], home)


def test_the_recipe_is_one(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "my.toml").write_text(block, encoding="utf-8")
    recipe = load_recipe(tmp_path / "my.toml")
    assert [pair.source.name for pair in recipe.data.train] == ["train.en"]
