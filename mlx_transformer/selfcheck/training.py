"""Training: its losses, what a resumed run computes, and what gradient checkpointing saves."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.selfcheck.finding import Finding, difference, on_both, tolerance
from mlx_transformer.selfcheck.models import batch, made_up
from mlx_transformer.training.checkpoint import Checkpoints, Progress
from mlx_transformer.training.report import number
from mlx_transformer.training.step import PackedState, TrainStep, initial_state

STEPS = 30
SENTENCES, LONGEST = 8, 12
TRAINING = TrainingConfig(warmup=100)
# Deep enough for activations to outweigh weights.
DEEP = ModelConfig(
    vocab_size=100, encoder_layers=6, decoder_layers=6, d_model=64, d_ff=256, h=1, dropout=0.0
)
DEEP_SHAPE = 32, 32


class ShortTraining:
    """A model in training, always on the same batch."""

    def __init__(self, model: Transformer, config: TrainingConfig, shape: tuple[int, int]) -> None:
        self.step = TrainStep(model.config, config)
        self.state: PackedState = self.step.pack(initial_state(model, config))
        self._batch = batch(model, *shape)

    def train(self, steps: int) -> list[float]:
        """The losses of a token."""
        losses = []
        for _ in range(steps):
            self.state, metrics = self.step(self.state, [self._batch])
            mx.async_eval(self.state, metrics)
            losses.append(metrics.loss / metrics.tokens)
        return [number(loss) for loss in losses]


def _small() -> ShortTraining:
    return ShortTraining(made_up(d_model=64, d_ff=128), TRAINING, (SENTENCES, LONGEST))


def losses() -> Iterator[Finding]:
    found, expected = on_both(lambda: np.array(_small().train(STEPS)))
    yield Finding(f"losses of {STEPS} updates", difference(found, expected), tolerance("float32"))


def resuming() -> Iterator[Finding]:
    """Bit for bit on a CPU; a GPU adds the gradients of words in any order."""
    with device.as_gpu(), TemporaryDirectory() as folder:
        through, stopped = _small(), _small()
        through.train(4)
        stopped.train(2)
        checkpoints = Checkpoints(Path(folder))
        state = stopped.step.unpack(stopped.state)
        checkpoints.save(state, Progress(step=2), ModelConfig())
        saved = checkpoints.newest(warn=lambda _: None)
        assert saved is not None
        stopped.state = stopped.step.pack(saved[0])
        stopped.train(2)
        weights = [np.array(run.state["parameters"][0]) for run in (through, stopped)]
    differing = float((weights[0] != weights[1]).sum())
    yield Finding("resumed run, weights that differ", differing, 0 if device.is_exact() else None)


def peak_memory() -> Iterator[Finding]:
    """Of an update with gradient checkpointing, as a share of one without."""
    plain, saving = (_peak(replace(TRAINING, gradient_checkpointing=on)) for on in (False, True))
    yield Finding("peak memory of an update, MB", plain / 1e6, None)
    yield Finding("peak memory, gradient checkpointing, MB", saving / 1e6, None)
    yield Finding("share of it that checkpointing needs", saving / plain, 0.5)


def _peak(config: TrainingConfig) -> int:
    with device.as_gpu():
        run = ShortTraining(Transformer(DEEP), config, DEEP_SHAPE)
        run.train(1)  # compiles
        mx.clear_cache()
        mx.reset_peak_memory()
        run.train(1)
        return mx.get_peak_memory()
