"""What a run tells: log lines, validations, and the same as JSON in metrics.jsonl."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import mlx.core as mx

from mlx_transformer.data.batches import Batch
from mlx_transformer.data.metrics import TITLES, Metric
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.storage import replace_text
from mlx_transformer.training.step import UpdateMetrics


@dataclass(frozen=True)
class TrainingReport:
    """The steps since the last log line."""

    step: int
    loss: float  # label-smoothed, mean of a target token
    perplexity: float  # of the true words, without smoothing
    learning_rate: float
    gradient_norm: float  # of the last step
    source_tokens_per_second: float
    target_tokens_per_second: float
    padding: float  # share of the positions of both sides that hold none
    peak_memory: int  # bytes
    seconds_left: float

    def figures(self) -> str:
        speed = f"{self.source_tokens_per_second:,.0f}+{self.target_tokens_per_second:,.0f}"
        return (
            f"loss {self.loss:.3f}  ppl {self.perplexity:.2f}  lr {self.learning_rate:.2e}  "
            f"{speed} tokens/s  padding {self.padding:.1%}  {self.peak_memory / 1e9:.2f} GB  "
            f"norm {self.gradient_norm:.2f}"
        )

    def line(self, max_steps: int) -> str:
        left = duration(self.seconds_left)
        return f"step {self.step}/{max_steps}  {self.figures()}  {left} left"


@dataclass(frozen=True)
class Sample:
    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class ValidationReport:
    """One look at the validation or test set; scores are there where sentences were translated."""

    step: int
    loss: float
    perplexity: float
    seconds: float
    metric: Metric = "bleu"  # what it is judged by
    bleu: float | None = None
    chrf: float | None = None
    exact: float | None = None  # per cent that is exactly right
    signature: str | None = None  # of that metric, as sacrebleu writes it
    samples: Sequence[Sample] = ()
    split: Literal["validation", "test"] = "validation"

    @property
    def score(self) -> float:
        """Higher is better: what it is judged by, or the loss as long as that is 0."""
        return getattr(self, self.metric) or -self.loss

    def lines(self) -> list[str]:
        scores = "".join(
            f"  {title} {getattr(self, name):.2f}"
            for name, title in TITLES.items()
            if getattr(self, name, None) is not None
        )
        head = f"{self.split} at step {self.step}: loss {self.loss:.3f}  ppl {self.perplexity:.2f}"
        lines = [f"{head}{scores}  ({self.seconds:.0f} s)"]
        for sample in self.samples:
            lines += [
                f"  source     {sample.source}",
                f"  reference  {sample.reference}",
                f"  translated {sample.translation}",
            ]
        return lines


class Reporter(Protocol):
    """Who shows a run to the user."""

    def message(self, text: str) -> None: ...

    def stepped(self, step: int) -> None:
        """A step was issued; its figures are not known yet."""

    def trained(self, report: TrainingReport) -> None: ...

    def validated(self, report: ValidationReport) -> None: ...

    def tested(self, report: ValidationReport) -> None: ...


@dataclass
class Window:
    """The steps between two log lines. Their metrics stay on the device until it closes."""

    max_steps: int
    source_tokens: int = 0
    target_tokens: int = 0
    positions: int = 0
    steps: list[UpdateMetrics] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def add(self, batches: Sequence[Batch], metrics: UpdateMetrics) -> None:
        self.source_tokens += sum(batch.source_tokens for batch in batches)
        self.target_tokens += sum(batch.target_tokens for batch in batches)
        self.positions += sum(batch.source.size + batch.target_in.size for batch in batches)
        self.steps.append(metrics)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside, on validation or saving, is not training time."""
        mx.eval(self.steps)
        start = time.perf_counter()
        yield
        self.began += time.perf_counter() - start

    def report(self, step: int, ranks: int) -> TrainingReport:
        """Waits for the device; every rank is taken to be as fast as this one."""
        loss, nll, tokens = (
            number(mx.stack([getattr(step, name) for step in self.steps]).sum())
            for name in ("loss", "nll", "tokens")
        )
        last = self.steps[-1]
        seconds = time.perf_counter() - self.began
        real = self.source_tokens + self.target_tokens
        return TrainingReport(
            step=step,
            loss=loss / tokens,
            perplexity=perplexity(nll / tokens),
            learning_rate=number(last.learning_rate),
            gradient_norm=number(last.norm),
            source_tokens_per_second=self.source_tokens * ranks / seconds,
            target_tokens_per_second=self.target_tokens * ranks / seconds,
            padding=1 - real / self.positions,
            peak_memory=mx.get_peak_memory(),
            seconds_left=(self.max_steps - step) * seconds / len(self.steps),
        )


class MetricsLog:
    """metrics.jsonl: one JSON object a line, with the kind of its report."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, report: TrainingReport | ValidationReport) -> None:
        kind = "training" if isinstance(report, TrainingReport) else report.split
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **asdict(report)}) + "\n")
        except OSError as error:
            raise RunError(f"could not write {self._path}: {error.strerror}") from error

    def read(self, warn: Callable[[str], None]) -> list[dict[str, Any]]:
        """All records; lines that are none are left out and counted to `warn`. The last may be
        cut short, by a process that was killed: that is nothing strange."""
        if not self._path.is_file():
            folder, name = self._path.parent, self._path.name
            raise InputError(f"{folder} is no training run, or has not logged a step: no {name}")
        *lines, last = self._path.read_text("utf-8", "replace").split("\n")
        records = [_record(line) for line in lines]
        if strange := records.count(None):
            warn(f"{self._path}: {strange:,} lines are no records of a run and are left out")
        return [record for record in (*records, _record(last)) if record is not None]

    def cut(self, step: int, warn: Callable[[str], None]) -> None:
        """Forget what came after `step`: a resumed run will say it again."""
        if self._path.exists():
            # The test score belongs to the end of the run, and the end is reached again.
            records = [each for each in self.read(warn) if each["kind"] != "test"]
            kept = [record for record in records if record["step"] <= step]
            replace_text(self._path, "".join(json.dumps(record) + "\n" for record in kept))


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(record, dict) and type(record.get("step")) is int and "kind" in record
    return record if known else None


def number(scalar: mx.array) -> float:
    """The value of a scalar; waits for the device."""
    value = scalar.item()
    assert not isinstance(value, complex)
    return float(value)


def perplexity(nll: float) -> float:
    return math.exp(min(nll, 700.0))  # beyond, a float overflows


def duration(seconds: float) -> str:
    """`2d 3h`, `3h 05m` or `4m 10s`"""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}h {minute:02d}m" if hours else f"{minute}m {second:02d}s"
