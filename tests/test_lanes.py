"""Lanes change how work is spread, not what comes out."""

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import preset
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.training.step import TrainStep, initial_state

CONFIG = preset("tiny", vocab_size=50, dropout=0.0)


def train(lanes: int, rows: int):
    mx.random.seed(0)
    model = Transformer(CONFIG)
    training = TrainingConfig(warmup=10)
    step = TrainStep(model.config, training, lanes=lanes)
    state = step.pack(initial_state(model, training))
    ids = np.random.default_rng(1).integers(3, 50, (3, rows, 6))
    for _ in range(3):
        state, metrics = step(state, [tuple(map(mx.array, ids))])
        mx.eval(state, metrics)
    return step.unpack(state), metrics


def test_an_update_spread_over_lanes_is_the_update_of_one():
    for rows in (1, 2, 5):
        expected, reported = train(1, rows)
        with device.side_by_side(3):
            actual, also_reported = train(3, rows)
        for one, other in zip(reported, also_reported, strict=True):
            assert np.allclose(one.item(), other.item(), rtol=1e-4)
        assert expected["v"].keys() == actual["v"].keys()
        for name, moment in expected["v"].items():
            assert np.allclose(moment, actual["v"][name], rtol=1e-2, atol=1e-9), name


def test_shares_are_equal_whatever_the_rows_of_the_first_array():
    """Keys, one a lane, come first: by their rows the last lane would get almost all of a batch."""
    keys, batch = mx.zeros((2, 2)), mx.arange(10)[:, None]
    found = device.by_rows(lambda key, rows: (key.shape, rows.tolist()), 2, keys, batch)
    halves = [[[i] for i in range(5)], [[i] for i in range(5, 10)]]
    assert found == [((1, 2), half) for half in halves]
