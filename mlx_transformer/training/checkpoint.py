"""Checkpoints that survive being killed: a directory is either whole or not there.

checkpoints/step-NNNNNNNN/ holds config.json and model.safetensors, so that it is also a model to
load, optimizer.safetensors with everything else of the training state, and progress.json, written
last, with the data position and a checksum of each file.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_transformer.config import FORMAT_VERSION, ModelConfig, check_format
from mlx_transformer.errors import RunError, naming
from mlx_transformer.storage import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    built_aside,
    save_arrays,
    undo_unfinished,
)
from mlx_transformer.training.layout import NamedArrays
from mlx_transformer.training.step import TrainingState

OPTIMIZER_FILE = "optimizer.safetensors"
PROGRESS_FILE = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Where a run is, beside its arrays."""

    step: int = 0
    epoch: int = 0  # with `batch`, where the data goes on
    batch: int = 0
    best_step: int = 0
    best_score: float | None = None  # higher is better
    lowest_loss: float | None = None
    validations_since: int = 0  # without a lower loss
    tokenizer: str | None = None  # fingerprint of the one the ids were made with


class DamagedError(RunError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"checkpoint {path} is damaged: {why}")


class Checkpoints:
    """The checkpoints of a run, oldest to newest by their step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def paths(self) -> list[Path]:
        return sorted(self.directory.glob("step-" + "[0-9]" * 8))

    def undo_unfinished(self) -> None:
        """Clear away what a trainer left that was killed while it saved; no other may be there."""
        for path in self.directory.glob(".step-*"):
            undo_unfinished(self.directory / path.stem.removeprefix("."))

    def save(self, state: TrainingState, progress: Progress, config: ModelConfig) -> None:
        """Write one, at once or not at all."""
        rest = {name: tree for name, tree in state.items() if name != "parameters"}
        with built_aside(self.directory / f"step-{progress.step:08d}") as aside:
            config.save(aside / CONFIG_FILE)
            save_arrays(aside / WEIGHTS_FILE, state["parameters"])
            save_arrays(aside / OPTIMIZER_FILE, dict(tree_flatten(rest)))
            sums = {path.name: _checksum(path) for path in sorted(aside.iterdir())}
            content = {
                "format_version": FORMAT_VERSION,
                "progress": asdict(progress),
                "sha256": sums,
            }
            text = json.dumps(content, indent=2) + "\n"
            (aside / PROGRESS_FILE).write_text(text, encoding="utf-8")

    def prune(self, every: int, keep: int) -> None:
        """Drop all but the last `keep`, and what was saved between multiples of `every`.

        So a run that was interrupted, and saved then, ends with the checkpoints of any other.
        """
        *before, newest = self.paths()
        regular = [path for path in before if int(path.name[-8:]) % every == 0]
        for path in set(before) - set([*regular, newest][-keep:]):
            shutil.rmtree(path)

    def newest(
        self, warn: Callable[[str], None]
    ) -> tuple[TrainingState, Progress, ModelConfig] | None:
        """The last whole checkpoint; each damaged one after it is named to `warn`."""
        paths = self.paths()
        for path in reversed(paths):
            try:
                return _load(path)
            except DamagedError as error:
                warn(str(error) + ("; the one before is used" if path != paths[0] else ""))
        if paths:
            raise RunError(f"no checkpoint in {self.directory} is whole: delete them to begin anew")
        return None


def _load(path: Path) -> tuple[TrainingState, Progress, ModelConfig]:
    progress = _verify(path)
    with _seeing_damage(path):
        state = _state(_load_arrays(path / WEIGHTS_FILE), _load_arrays(path / OPTIMIZER_FILE))
    mx.eval(state)  # loading is lazy, and the files may be gone by the first step
    return state, progress, ModelConfig.load(path / CONFIG_FILE)


def _state(parameters: NamedArrays, rest: NamedArrays) -> TrainingState:
    """`rest` has the moments of each weight under `m.` and `v.`, and scalars."""

    def under(prefix: str) -> NamedArrays:
        return {n.removeprefix(prefix): a for n, a in rest.items() if n.startswith(prefix)}

    state: TrainingState = {
        "parameters": parameters,
        "m": under("m."),
        "v": under("v."),
        "step": rest["step"],
        "bad_step": rest["bad_step"],
    }
    if "loss_scale" in rest:
        state["loss_scale"], state["good_steps"] = rest["loss_scale"], rest["good_steps"]
    return state


def _verify(path: Path) -> Progress:
    """The progress of a checkpoint, every file of which is as it was saved."""
    with _seeing_damage(path):
        content = dict(json.loads((path / PROGRESS_FILE).read_text(encoding="utf-8")))
    with naming(path / PROGRESS_FILE):
        check_format(content.get("format_version", 1))
    with _seeing_damage(path):
        for name in (CONFIG_FILE, WEIGHTS_FILE, OPTIMIZER_FILE):
            if _checksum(path / name) != content["sha256"][name]:
                raise DamagedError(path, f"{name} is not what was saved")
        return Progress(**content["progress"])


@contextmanager
def _seeing_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DamagedError(path, f"{error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(path, f"{PROGRESS_FILE} cannot be read") from error


def average(paths: Sequence[Path]) -> NamedArrays:
    """The mean of the weights of a run's checkpoints, by name."""
    total: NamedArrays = {}
    for path in paths:
        _verify(path)
        for name, weight in _load_arrays(path / WEIGHTS_FILE).items():
            total[name] = total[name] + weight if name in total else weight
        mx.eval(total)
    return {name: weight / len(paths) for name, weight in total.items()}


def _load_arrays(path: Path) -> NamedArrays:
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)  # as every safetensors file
    return arrays


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
