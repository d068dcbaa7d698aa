"""Checkpoints: what is saved comes back, and damage is seen."""

import os

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_transformer.config import preset
from mlx_transformer.errors import RunError
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.storage import load_model, named_parameters
from mlx_transformer.training.checkpoint import Checkpoints, Progress, average
from mlx_transformer.training.step import initial_state

CONFIG = preset("tiny", vocab_size=20, d_model=8, d_ff=8, h=2)


def new_state(seed=0):
    mx.random.seed(seed)
    state = initial_state(Transformer(CONFIG), TrainingConfig())
    state["m"]["source_words.weight"] += 0.5
    return state


def equal(a, b):
    a, b = dict(tree_flatten(a)), dict(tree_flatten(b))
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def no_warning(text):
    pytest.fail(f"unexpected: {text}")


def test_state_and_progress_come_back_whole(checkpoints):
    state, progress = new_state(), Progress(step=7, epoch=1, batch=3, best_score=1.5)
    checkpoints.save(state, progress, CONFIG)
    found, where, config = checkpoints.newest(no_warning)
    assert equal(found, state) and where == progress and config == CONFIG
    assert equal(named_parameters(load_model(checkpoints.paths()[0])), state["parameters"])


def test_equal_states_are_equal_files(checkpoints):
    checkpoints.save(new_state(), Progress(step=1), CONFIG)
    state, progress, config = checkpoints.newest(no_warning)
    again = Checkpoints(checkpoints.directory.with_name("again"))
    again.save(state, progress, config)
    for path in checkpoints.paths()[0].iterdir():
        assert path.read_bytes() == (again.paths()[0] / path.name).read_bytes(), path.name


def test_only_the_last_and_the_regular_ones_are_kept(checkpoints):
    kept = []
    for step in (10, 20, 25, 30, 40, 45):
        checkpoints.save(new_state(), Progress(step=step), CONFIG)
        checkpoints.prune(every=10, keep=3)
        kept.append([int(path.name[5:]) for path in checkpoints.paths()])
    assert kept[2] == [10, 20, 25]  # interrupted at 25 ...
    assert kept[3] == [10, 20, 30]  # ... and forgotten at the next regular one
    assert kept[5] == [30, 40, 45]


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json"])
def test_a_damaged_newest_is_named_and_the_one_before_used(checkpoints, damage, name):
    for step in (1, 2):
        checkpoints.save(new_state(step), Progress(step=step), CONFIG)
    damage(checkpoints.paths()[1] / name)
    if damage is flip_a_bit and name == "progress.json":
        (checkpoints.paths()[1] / name).write_text("{}")  # JSON, but not what it should be
    warnings = []
    state, progress, _ = checkpoints.newest(warnings.append)
    assert progress.step == 1 and equal(state, new_state(1))
    assert len(warnings) == 1 and "step-00000002 is damaged" in warnings[0]


def test_there_may_be_none(checkpoints):
    assert checkpoints.newest(no_warning) is None


def test_average_is_the_mean_of_each_weight(checkpoints):
    states = [new_state(step) for step in (1, 2, 3)]
    for step, state in enumerate(states):
        checkpoints.save(state, Progress(step=step), CONFIG)
    weights = [state["parameters"] for state in states]
    found = average(checkpoints.paths())
    assert found.keys() == weights[0].keys()
    for name, weight in found.items():
        assert np.allclose(weight, np.mean([w[name] for w in weights], axis=0), atol=1e-6)


def test_average_refuses_a_damaged_checkpoint(checkpoints):
    for step in (1, 2):
        checkpoints.save(new_state(step), Progress(step=step), CONFIG)
    flip_a_bit(checkpoints.paths()[0] / "model.safetensors")
    with pytest.raises(RunError, match=r"step-00000001 is damaged: model.safetensors"):
        average(checkpoints.paths())
