"""Small sequence tasks as recipes with files, quick to learn, and how tests run them."""

import json
import random
import subprocess
import sys
from pathlib import Path

LETTERS = "abcdefghijklmnop"

RECIPE = """
[data]
source_language = "in"
target_language = "out"
train = "train"
valid = "valid"
test = "valid"
max_length = 32

[tokenizer]
vocab_size = 37

[model]
preset = "tiny"
d_model = {d_model}
d_ff = {d_model}
encoder_layers = {layers}
decoder_layers = {layers}
h = 2
dropout = {dropout}

[training]
batch_tokens = {batch_tokens}
schedule = "inverse_sqrt"
learning_rate = 0.003
warmup = 100
log_every = 5

[validation]
beam = 1
"""


def write_task(folder: Path, *, reverse: bool = False, pairs: int = 10_000, **settings) -> Path:
    """Random letters in, the same (or reversed) out; returns the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for split, count in (("train", pairs), ("valid", 50)):
        rows = [draw.choices(LETTERS, k=draw.randint(3, 8)) for _ in range(count)]
        (folder / f"{split}.in").write_text("".join(" ".join(row) + "\n" for row in rows))
        turned = [row[::-1] if reverse else row for row in rows]
        (folder / f"{split}.out").write_text("".join(" ".join(row) + "\n" for row in turned))
    values = {"d_model": 64, "layers": 2, "dropout": 0.0, "batch_tokens": 1024} | settings
    (folder / "task.toml").write_text(RECIPE.format(**values))
    return folder / "task.toml"


def tiny_task(folder: Path, **settings) -> Path:
    """One whose steps take milliseconds, with dropout so that randomness has to be restored."""
    small = {"pairs": 300, "d_model": 16, "layers": 1, "dropout": 0.1, "batch_tokens": 128}
    return write_task(folder, **(small | settings))


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "mlx_transformer", *map(str, args)]


def train(*args: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command("train", *args), capture_output=True, text=True, **options)


def overrides(**values: object) -> list[str]:
    """`training_max_steps=5` as `--set training.max_steps=5`"""
    pairs = ((key.replace("_", ".", 1), value) for key, value in values.items())
    return [word for key, value in pairs for word in ("--set", f"{key}={value}")]


def metrics(run: Path, kind: str) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def weights(run: Path) -> dict[str, bytes]:
    """Every file of every checkpoint and of the models, by its name."""
    found = [
        path
        for folder in ("checkpoints", "best", "model")
        for path in sorted((run / folder).rglob("*"))
        if path.is_file() and path.name != "README.md"  # which names the directory
    ]
    return {str(path.relative_to(run)): path.read_bytes() for path in found}
