"""`mlx-transformer prepare`: the text of a recipe as a tokenizer and files of ids."""

import argparse
from pathlib import Path

from mlx_transformer.cli.console import Console
from mlx_transformer.cli.output import show
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.prepare import prepare
from mlx_transformer.recipes import load_recipe, shipped_recipes


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Learn the tokenizer of a recipe and write its text as files of ids. `train` does\n"
        "this by itself; do it beforehand to see what is dropped and how well the batches fit."
    )
    parser.epilog = (
        "example: mlx-transformer prepare multi30k-en-de --set data.dir=~/multi30k --out prepared\n"
        f"recipes: {', '.join(shipped_recipes())}, or a path that ends in .toml"
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name or a .toml file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="replace a key of the recipe, as tokenizer.vocab_size=4000; may be repeated",
    )


def run(args: argparse.Namespace) -> None:
    recipe = load_recipe(args.recipe, args.overrides)
    console = Console()
    report = prepare(recipe, args.out, progress=console.preparing)
    console.prepared(report)
    if report.reused:
        console.message("this was prepared before; nothing has changed since")
    corpus = ParallelCorpus.open(args.out, "train")
    config = recipe.model_config(corpus.source_vocab_size, corpus.target_vocab_size)
    batches = Batches(corpus, config, recipe.training.batch_tokens)
    console.message(
        f"batches: {len(batches):,} an epoch in {len(batches.shapes)} shapes of at most "
        f"{recipe.training.batch_tokens:,} tokens a side, {batches.efficiency:.1%} of them real"
    )
    show(args.out)
