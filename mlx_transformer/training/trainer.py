"""The loop: batches through the compiled step, log lines, validation, checkpoints, a clean stop."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.data.batches import Batch, Batches, Position, prefetch
from mlx_transformer.errors import RunError
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig, ValidationConfig
from mlx_transformer.training.checkpoint import Checkpoints, Progress
from mlx_transformer.training.memory import memory_limit
from mlx_transformer.training.report import MetricsLog, Reporter, ValidationReport, Window, number
from mlx_transformer.training.run_directory import RunDirectory
from mlx_transformer.training.step import MicroBatch, TrainingState, TrainStep

Outcome = Literal["finished", "stopped early", "interrupted"]


class Interruption(AbstractContextManager, Protocol):
    """Watches, while entered, for a wish to stop."""

    received: int  # the signal that came; 0: none


@dataclass(frozen=True)
class Hooks:
    """What the loop asks of those around it."""

    reporter: Reporter
    validate: Callable[[Transformer, int], ValidationReport] | None  # at a step; None: no text
    save_best: Callable[[Transformer], None]
    interruption: Interruption  # by the user


class Trainer:
    """A run from some state on. Of several ranks only the first validates, writes and reports."""

    def __init__(
        self,
        model: ModelConfig,
        state: TrainingState,
        batches: Batches,
        training: TrainingConfig,
        validation: ValidationConfig,
        files: RunDirectory,
        hooks: Hooks,
        group: mx.distributed.Group,
    ) -> None:
        self._model = model
        self._batches = batches
        self._training = training
        self._validation = validation
        self._hooks = hooks
        self._group = group
        device.keep_memory(unused=memory_limit(training))
        self._step = TrainStep(model, training, group, device.lane_count())
        self._state = self._step.pack(state)
        self._checkpoints = Checkpoints(files.checkpoints)
        self._log = MetricsLog(files.metrics)
        self._window = Window(training.max_steps)

    def train(self, progress: Progress) -> Outcome:
        """Go on from `progress` to the last step, or until told to stop."""
        start = Position(progress.epoch, progress.batch)
        stream = prefetch(self._batches.stream(start))
        with device.side_by_side(device.lane_count()):
            return self._loop(progress, stream)

    def _loop(self, progress: Progress, stream: Iterator[Batch]) -> Outcome:
        config = self._training
        while progress.step < config.max_steps:
            batches = [next(stream) for _ in range(config.accumulate)]
            pieces = [piece for batch in batches for piece in _cut(batch, config.micro_batches)]
            self._state, metrics = self._step(self._state, pieces)
            mx.async_eval(self._state, metrics)
            self._window.add(batches, metrics)
            where = batches[-1].position
            step = progress.step + 1
            progress = replace(progress, step=step, epoch=where.epoch, batch=where.batch)
            self._hooks.reporter.stepped(step)

            last = step == config.max_steps
            logs = last or step % config.log_every == 0
            if logs:
                self._report(step)
            if last or step % self._validation.every == 0:
                progress = self._validate(progress)
            early = progress.validations_since >= (self._validation.patience or float("inf"))
            # Several ranks check this only at log steps, where they already synchronise.
            asked = logs or self._group.size() == 1
            interrupted = asked and self._sum(self._hooks.interruption.received) > 0
            if last or early or interrupted or step % config.save_every == 0:
                self._save(progress)
            if early or interrupted:
                return "stopped early" if early else "interrupted"
        return "finished"

    def _report(self, step: int) -> None:
        report = self._window.report(step, self._group.size())
        self._window = Window(self._training.max_steps)
        self._check()
        if self._is_first_rank:
            self._log.append(report)
            self._hooks.reporter.trained(report)

    def _check(self) -> None:
        bad = int(number(self._state["scalars"]["bad_step"]))
        if bad:
            saved = self._checkpoints.paths()
            again = "resume from the last checkpoint" if saved else "begin again"
            raise RunError(
                f"the loss or its gradient was not finite at step {bad}, and nothing was saved "
                f"since: {again} with a lower training.learning_rate, a longer training.warmup or "
                "training.clip_norm"
            )

    def _validate(self, progress: Progress) -> Progress:
        """Look at the validation set; keep the model if it is the best so far."""
        if self._hooks.validate is None:
            return progress
        self._check()
        with self._window.paused():
            if self._is_first_rank:
                model = self._step.model_of(self._state)
                report = self._hooks.validate(model, progress.step)
                progress = _judged(progress, report)
                if progress.best_step == progress.step:
                    self._hooks.save_best(model)
                self._log.append(report)
                self._hooks.reporter.validated(report)
            since = self._sum(progress.validations_since if self._is_first_rank else 0)
        return replace(progress, validations_since=since)

    def _save(self, progress: Progress) -> None:
        self._check()
        if self._is_first_rank:
            with self._window.paused():
                self._checkpoints.save(self._step.unpack(self._state), progress, self._model)
                self._checkpoints.prune(self._training.save_every, self._training.keep_last)

    @property
    def _is_first_rank(self) -> bool:
        return self._group.rank() == 0

    def _sum(self, value: int) -> int:
        """Over all ranks."""
        if self._group.size() == 1:
            return value
        return int(number(mx.distributed.all_sum(mx.array(value), group=self._group)))


def _judged(progress: Progress, report: ValidationReport) -> Progress:
    """The progress after a validation: what is the best now, and since when nothing was better."""
    if progress.best_score is None or report.score > progress.best_score:
        progress = replace(progress, best_step=report.step, best_score=report.score)
    if progress.lowest_loss is None or report.loss < progress.lowest_loss:
        return replace(progress, lowest_loss=report.loss, validations_since=0)
    return replace(progress, validations_since=progress.validations_since + 1)


def _cut(batch: Batch, pieces: int | None) -> Iterator[MicroBatch]:
    """The batch as micro-batches of nearly equal rows; None: as one."""
    arrays = batch.source, batch.target_in, batch.target_out
    count = min(pieces or 1, len(batch.source))
    for source, target_in, target_out in zip(
        *(np.array_split(a, count) for a in arrays), strict=True
    ):
        yield mx.array(source), mx.array(target_in), mx.array(target_out)
