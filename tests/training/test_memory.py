"""How much memory an update takes: the estimate, what is done about it, and what it changes."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from mlx_transformer.config import preset
from mlx_transformer.data.grid import Shape
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import TrainingConfig, load_recipe
from mlx_transformer.training.layout import in_parts
from mlx_transformer.training.memory import GB, plan_memory, update_bytes
from tests.training.tasks import metrics, overrides, train, write_task

# One update as on a GPU, launched in the order in which MLX launches operations on a Mac.
MEASURE = """
import json, sys
from mlx_transformer import device
import mlx.core as mx
from mlx_transformer.config import ModelConfig
from mlx_transformer.data.grid import Shape
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.training.memory import update_bytes
from mlx_transformer.training.step import TrainStep, initial_state

model, training, shape = json.loads(sys.argv[1])
config, training, (B, S, T) = ModelConfig(**model), TrainingConfig(**training), shape
with device.as_gpu():
    step = TrainStep(config, training)
    packed = step.pack(initial_state(Transformer(config), training))
    batch = mx.full((B, S), 5), mx.full((B, T), 6), mx.full((B, T), 7)
    for _ in range(2):
        mx.clear_cache()
        mx.reset_peak_memory()
        packed, metrics = step(packed, [batch])
        mx.eval(packed, metrics)
    print(mx.get_peak_memory(), update_bytes(config, training, Shape(B, S, T)))
"""
DEEP = {
    "d_model": 128, "d_ff": 512, "h": 2, "vocab_size": 1000,
    "encoder_layers": 6, "decoder_layers": 6,
}  # fmt: skip
SHAPE = (64, 32, 32)


def peak_and_estimate(model: dict, training: dict, shape: tuple[int, ...]) -> tuple[int, int]:
    return _measured(json.dumps([model, training, shape]))


@cache
def _measured(case: str) -> tuple[int, int]:
    command = [sys.executable, "-c", MEASURE, case]
    environment = os.environ | {"MLX_BFS_MAX_WIDTH": "20"}
    root = Path(__file__).parents[2]
    out = subprocess.check_output(command, text=True, env=environment, cwd=root)
    peak, estimate = map(int, out.split())
    return peak, estimate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "training", "shape"),
    [
        (DEEP, {}, SHAPE),
        (DEEP, {"gradient_checkpointing": True}, SHAPE),
        (DEEP | {"encoder_layers": 2, "decoder_layers": 4, "vocab_size": 8000}, {}, (64, 20, 30)),
        (DEEP | {"encoder_layers": 3, "d_ff": 1024}, {"dtype": "bfloat16"}, (32, 16, 16)),
    ],
)
def test_the_estimate_is_near_the_peak(model, training, shape):
    peak, estimate = peak_and_estimate(model, training, shape)
    assert estimate == pytest.approx(peak, rel=0.2)


@pytest.mark.slow
def test_checkpointing_saves_more_than_half():
    plain, _ = peak_and_estimate(DEEP, {}, SHAPE)
    saving, _ = peak_and_estimate(DEEP, {"gradient_checkpointing": True}, SHAPE)
    assert saving < 0.5 * plain


def test_weights_stay_in_their_order_in_parts_of_like_size():
    sizes = {"words": 50, "a": 10, "b": 10, "c": 10, "d": 20}
    assert in_parts(sizes, 1) == [list(sizes)]
    assert in_parts(sizes, 2) == [["words"], ["a", "b", "c", "d"]]


def test_less_memory_means_more_pieces():
    base, training = preset("base"), TrainingConfig(batch_tokens=25_000)
    shapes = [Shape(25_000 // 32, 32, 32)]
    plans = [plan_memory(base, training, shapes, limit * GB) for limit in (64, 16, 8)]
    assert [plan.micro_batches for plan in plans] == sorted(p.micro_batches for p in plans)
    assert plans[0].micro_batches == 1 < plans[-1].micro_batches
    for plan, limit in zip(plans, (64, 16, 8), strict=True):
        assert plan.bytes <= limit * GB


def test_what_cannot_fit_is_a_sentence():
    with pytest.raises(InputError, match="one sentence at a time"):
        plan_memory(preset("big"), TrainingConfig(), [Shape(4, 32, 32)], 1 * GB)


@pytest.mark.parametrize("value", ['"lots"', "0", "-1.0", "true"])
def test_memory_is_auto_or_a_number(value, tmp_path):
    with pytest.raises(InputError, match=r"training\.memory"):
        load_recipe("numbers", [f"training.memory={value}"])


def test_half_precision_and_checkpointing_take_less():
    base, shape = preset("base"), Shape(200, 32, 32)
    plain = update_bytes(base, TrainingConfig(), shape)
    assert update_bytes(base, TrainingConfig(dtype="bfloat16"), shape) < plain
    assert update_bytes(base, TrainingConfig(gradient_checkpointing=True), shape) < plain / 2


@pytest.mark.slow
def test_a_batch_in_pieces_trains_as_the_whole_one(tmp_path):
    """The same losses, and a resumed run keeps the pieces that its first start chose."""
    recipe = write_task(tmp_path / "task", pairs=2000)
    steps = overrides(training_max_steps=20, training_log_every=1, validation_sentences=0)
    for name, more in (("whole", {}), ("pieces", {"training_memory": 0.006})):
        done = train(recipe, "--out", tmp_path / name, *steps, *overrides(**more))
        assert done.returncode == 0, done.stderr
    whole, pieces = (
        [record["loss"] for record in metrics(tmp_path / name, "training")]
        for name in ("whole", "pieces")
    )
    assert pieces == pytest.approx(whole, rel=1e-4)
    chosen = load_recipe(tmp_path / "pieces" / "run.toml").training.micro_batches
    assert chosen is not None and chosen > 1
    resumed = train("--resume", tmp_path / "pieces", *overrides(training_max_steps=21))
    assert resumed.returncode == 0, resumed.stderr
    assert load_recipe(tmp_path / "pieces" / "run.toml").training.micro_batches == chosen
    refused = train("--resume", tmp_path / "pieces", *overrides(training_memory=8))
    assert refused.returncode == 2 and "training.memory" in refused.stderr
