"""`mlx-transformer prepare`: the text of a recipe as a tokenizer and memory-mapped ids."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.prepare import PreparationReport, Progress, SplitReport, prepare
from mlx_transformer.recipe import load_recipe, shipped_recipes


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Learn the tokenizer of a recipe and write its text as memory-mapped ids.\n"
        "`train` does this by itself; do it beforehand to see what is dropped, or to share it."
    )
    parser.epilog = (
        "example: mlx-transformer prepare multi30k-en-de --set data.dir=~/multi30k --out prepared\n"
        f"recipes: {', '.join(shipped_recipes())}, or a path that ends in .toml"
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a shipped recipe, or a TOML file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        help="replace a key of the recipe; may be given again",
    )


def run(args: argparse.Namespace) -> None:
    recipe = load_recipe(args.recipe, args.overrides)
    with shown_progress() as progress:
        report = prepare(recipe, args.out, progress=progress)
    print(f"{args.out}: {'already prepared, nothing changed' if report.reused else 'prepared'}")
    print("\n".join(summary(report)))
    corpus = ParallelCorpus.open(args.out, "train")
    config = recipe.model_config(corpus.source_vocab_size, corpus.target_vocab_size)
    batches = Batches(corpus, config, recipe.training.batch_tokens)
    print(
        f"{'batches':10} {len(batches):,} an epoch of at most {recipe.training.batch_tokens:,} "
        f"tokens a side, in {len(batches.shapes)} shapes, {batches.efficiency:.1%} real tokens"
    )


def summary(report: PreparationReport) -> list[str]:
    """What was prepared, what was dropped and why, in lines."""
    sizes = (report.source_vocab_size, report.target_vocab_size)
    lines = [f"{'pieces':10} {sizes[0]:,} source, {sizes[1]:,} target"]
    for name, split in report.splits.items():
        lines.append(
            f"{name:10} {split.pairs:,} pairs, "
            f"{split.source_tokens:,} source and {split.target_tokens:,} target tokens"
        )
        lines += [f"{'':10} {line}" for line in _dropped(split)]
    return lines


def _dropped(split: SplitReport) -> list[str]:
    lines = []
    if split.dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in split.dropped.items())
        lines.append(f"dropped {sum(split.dropped.values()):,} pairs: {reasons}")
    if split.invalid_lines:
        lines.append(f"not UTF-8: {', '.join(split.invalid_lines)}")
    return lines


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """A bar for every stage on a terminal, otherwise a line when it is done, on stderr."""
    bar, stage, started = tqdm(disable=True), "", 0.0

    def show(name: str, done: int, total: int) -> None:
        nonlocal bar, stage, started
        if name != stage:
            bar.close()
            bar = tqdm(total=total, desc=name, unit=" pairs", unit_scale=True, disable=None)
            stage, started = name, time.monotonic()
        bar.update(done - bar.n)
        if bar.disable and done == total:
            print(f"{stage}: {time.monotonic() - started:.1f} s", file=sys.stderr)

    try:
        yield show
    finally:
        bar.close()
