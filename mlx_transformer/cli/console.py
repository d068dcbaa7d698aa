"""How a run looks to the user: a bar on a terminal, plain lines elsewhere, all on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from mlx_transformer.cli.output import STDERR, note
from mlx_transformer.data.prepare import PreparationReport
from mlx_transformer.errors import InputError
from mlx_transformer.training.report import MetricsLog, TrainingReport, ValidationReport
from mlx_transformer.training.run_directory import RunDirectory


class Console:
    """Shows preparation and training; with `shown` off, as on all ranks but one, nothing."""

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown
        self._bar: tqdm | None = None
        self._stage = ""
        self._max_steps = 0
        self._run: Path | None = None

    def message(self, text: str) -> None:
        if self._shown:
            note(text)

    def preparing(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._close()
            self._stage = stage
            self._bar = self._new_bar(total, "pair", stage)
            if not sys.stderr.isatty():
                self.message(f"{stage}: {total:,} pairs")
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def prepared(self, report: PreparationReport) -> None:
        self._close()
        for split, found in report.splits.items():
            dropped = ", ".join(f"{count:,} {why}" for why, count in found.dropped.items())
            tokens = f"{found.source_tokens:,} + {found.target_tokens:,} tokens"
            self.message(f"{split}: {found.pairs:,} pairs, {tokens}; dropped: {dropped or 'none'}")
            for line in found.invalid_lines:
                self.message(f"  {line}")

    @contextmanager
    def training(self, run: Path, max_steps: int) -> Iterator[None]:
        """Show the steps of this run inside, and keep its curves.png up to date."""
        self._run, self._max_steps = run, max_steps
        self._bar = self._new_bar(max_steps, "step", "train")
        try:
            yield
            self._draw_curves()
        finally:
            self._close()

    def stepped(self, step: int) -> None:
        if self._bar is not None:
            if self._bar.n == 0:
                self._bar.initial = step - 1  # a resumed run: earlier steps took no time here
            self._bar.update(step - self._bar.n)

    def trained(self, report: TrainingReport) -> None:
        if self._bar is None:
            self.message(report.line(self._max_steps))
        else:
            self._bar.set_postfix_str(report.figures())

    def validated(self, report: ValidationReport) -> None:
        for line in report.lines():
            self.message(line)
        self._draw_curves()

    def tested(self, report: ValidationReport) -> None:
        self.message(report.lines()[0])

    def _draw_curves(self) -> None:
        """Without matplotlib, or space on the disk, there is no picture, and training goes on."""
        if self._run is None or not self._shown or find_spec("matplotlib") is None:
            return
        from mlx_transformer.pictures.plots import draw_curves

        try:
            files = RunDirectory(self._run)
            draw_curves(
                {self._run.name: MetricsLog(files.metrics).read(self.message)}, files.curves
            )
        except (OSError, InputError) as error:
            self.message(f"curves.png was not drawn: {error}")

    def _new_bar(self, total: int, unit: str, title: str) -> tqdm | None:
        if not (self._shown and sys.stderr.isatty()):
            return None
        return tqdm(
            total=total,
            unit=unit,
            desc=title,
            file=STDERR,
            dynamic_ncols=True,
            # The figures come first; the bar takes what they leave of the width.
            bar_format="{desc} {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix} {bar}",
        )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
