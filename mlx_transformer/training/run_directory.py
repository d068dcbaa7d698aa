"""Where the parts of a run are."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe, resolved; written last when a run is made, so it marks a whole one."""
        return self.path / "run.toml"

    @property
    def lock(self) -> Path:
        """Held by the process that trains."""
        return self.path / ".lock"

    @property
    def start(self) -> Path:
        """The model that fine-tuning starts from."""
        return self.path / "start"

    @property
    def data(self) -> Path:
        """The prepared text and the tokenizer."""
        return self.path / "data"

    @property
    def metrics(self) -> Path:
        """What was reported."""
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        """The same as a picture."""
        return self.path / "curves.png"

    @property
    def checkpoints(self) -> Path:
        """One directory a checkpoint: step-NNNNNNNN."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The model of the best validation so far."""
        return self.path / "best"

    @property
    def model(self) -> Path:
        """The average at the end: what a run is for."""
        return self.path / "model"
