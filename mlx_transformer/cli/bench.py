"""`mlx-transformer bench`: how fast this machine trains and translates."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import STDERR, note, show, to_json
from mlx_transformer.config import ModelConfig, preset
from mlx_transformer.inputs.printable import printable
from mlx_transformer.measuring.benchmark import STAGES, Speed, Throughput, measure
from mlx_transformer.measuring.machine import machine
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model, save_model

VOCABULARY = 8000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure speed on this machine, in target tokens a second: training on batches of 64 "
        "pairs of 32 tokens, and translating as many. The limit is the time of the matrix products "
        "alone. The first translation is that of a new process."
    )
    parser.epilog = "example: mlx-transformer bench --presets tiny small --json"
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, metavar="DIR", help="a model instead of presets")
    which.add_argument(
        "--presets",
        nargs="+",
        default=["tiny", "small", "base"],
        metavar="PRESET",
        help=f"with random weights and {VOCABULARY:,} words (default: tiny small base)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    configs = {name: preset(name, vocab_size=VOCABULARY) for name in args.presets}
    with _progress(1 if args.model else len(configs)) as tell:
        if args.model:
            directory = model_directory(args.model)
            load_model(directory)  # what is wrong with it is said before anything is measured
            speeds = [measure(directory.name, directory, lambda stage: tell("model", stage))]
        else:
            speeds = [_measure_preset(name, config, tell) for name, config in configs.items()]
    if args.json:
        show(to_json({"machine": machine(), "speeds": [asdict(s) for s in speeds]}, indent=2))
    else:
        show(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
        show("\n".join(_table(speeds)))


def _measure_preset(name: str, config: ModelConfig, tell: Callable[[str, str], None]) -> Speed:
    with TemporaryDirectory() as directory:
        save_model(Transformer(config), Path(directory))
        return measure(name, Path(directory), lambda stage: tell(name, stage))


@contextmanager
def _progress(models: int) -> Iterator[Callable[[str, str], None]]:
    """A bar on a terminal, plain lines elsewhere: told the stage of a model that begins."""
    begun = count()
    with tqdm(total=STAGES * models, file=STDERR, leave=False, disable=None) as bar:

        def tell(model: str, stage: str) -> None:
            bar.n = next(begun)
            bar.set_description(printable(f"{model}: {stage}"))
            if bar.disable:
                note(f"{model}: {stage}")

        yield tell


def _table(speeds: Sequence[Speed]) -> Iterator[str]:
    """A column a model, in Markdown: to be read here and shared elsewhere."""

    def row(title: str, cells: Iterable[str]) -> str:
        return f"| {title:20} | " + " | ".join(f"{cell:>11}" for cell in cells) + " |"

    yield row("", [speed.model for speed in speeds])
    yield row("-" * 20, ["-" * 10 + ":"] * len(speeds))
    yield row("parameters", [f"{speed.parameters:,}" for speed in speeds])
    for title, rates in (
        ("train", [speed.train for speed in speeds]),
        ("greedy", [speed.greedy for speed in speeds]),
        ("beam 4", [speed.beam for speed in speeds]),
    ):
        yield row(f"{title}, tokens/s", [_cell(r, "{0.tokens_per_second:,.0f}") for r in rates])
        yield row(f"{title}, of limit", [_cell(r, "{0.share_of_limit:.0%}") for r in rates])
        yield row(f"{title}, peak memory", [_cell(r, "{0.peak_megabytes:,.0f} MB") for r in rates])
    yield row("first translation", [f"{s.first_translation_seconds:.2f} s" for s in speeds])


def _cell(rate: Throughput | None, form: str) -> str:
    return "-" if rate is None else form.format(rate)
