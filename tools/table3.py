"""Table 3 of the paper in miniature: every row scaled down, on one text, with one budget.

    python tools/table3.py --out runs/table3
    python tools/table3.py --recipe multi30k-en-de --set data.dir=data/multi30k --out runs/table3

Each preset of `config.PRESETS` that is a row of the table is trained with an eighth of its widths
and half of its layers; heads, dropout, smoothing and positions are the paper's. As in the paper,
checkpoints are not averaged and beam 4 with alpha 0.6 translates. The learning rate is that of the
recipe, the same for all rows. A call that was stopped goes on where it was, and what is finished
is not trained again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from paper_page import write

from mlx_transformer.config import ModelConfig, preset
from mlx_transformer.data.prepare import prepare
from mlx_transformer.recipes import (
    FROM_TOKENIZER,
    ModelSection,
    Recipe,
    ValidationConfig,
    load_recipe,
)
from mlx_transformer.storage import count_parameters
from mlx_transformer.training.run_directory import RunDirectory

WIDTHS, LAYERS = 8, 2  # what the paper's are divided by

# The paper's perplexity and BLEU on its development set.
PAPER = {
    "base": (4.92, 25.8),
    "A-h1": (5.29, 24.9),
    "A-h4": (5.00, 25.5),
    "A-h16": (4.91, 25.8),
    "A-h32": (5.01, 25.4),
    "B-dk16": (5.16, 25.1),
    "B-dk32": (5.01, 25.4),
    "C-N2": (6.11, 23.7),
    "C-N4": (5.19, 25.3),
    "C-N8": (4.88, 25.5),
    "C-d256": (5.75, 24.5),
    "C-d1024": (4.66, 26.0),
    "C-dff1024": (5.12, 25.4),
    "C-dff4096": (4.75, 26.2),
    "D-dropout0": (5.77, 24.6),
    "D-dropout0.2": (4.95, 25.5),
    "D-smoothing0": (4.67, 25.3),
    "D-smoothing0.2": (5.47, 25.7),
    "E-learned": (4.92, 25.7),
    "big": (4.33, 26.4),
}
SAME = 0.02  # perplexities of the paper closer than this say nothing about a direction


class Score(NamedTuple):
    perplexity: float
    quality: float | None  # BLEU, or per cent exactly right; None: nothing was translated


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where runs go")
    parser.add_argument(
        "--recipe", default="numbers", help="its text, vocabulary and learning rate"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--rows", nargs="+", choices=list(PAPER), default=list(PAPER))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--write", action="store_true", help="into docs/paper.md")
    args = parser.parse_args()
    recipe = load_recipe(args.recipe, args.overrides)
    recipe = replace(
        recipe,
        training=replace(
            recipe.training,
            max_steps=args.steps,
            batch_tokens=args.batch_tokens,
            average_last=1,
            keep_last=1,
            save_every=max(args.steps // 4, 1),
        ),
        validation=replace(recipe.validation, every=args.steps, beam=ValidationConfig.beam),
    )
    prepare(recipe, args.out / "data")
    rows = list(dict.fromkeys(["base", *args.rows]))
    for seed in args.seeds:
        for row in rows:
            train(row_recipe(recipe, row, seed), args.out, f"{row}-{seed}")
    found = table(args.out, rows, recipe, args.seeds)
    print(found)
    if args.write:
        told = conditions(args.recipe, recipe, args.seeds)
        write("table 3", f"{told}\n\n{found}\n\n{count(found)}")


def scaled(config: ModelConfig) -> ModelConfig:
    """The row's model made small."""
    d_k, d_v = config.head_sizes
    return replace(
        config,
        d_model=config.d_model // WIDTHS,
        d_ff=config.d_ff // WIDTHS,
        d_k=d_k // WIDTHS,
        d_v=d_v // WIDTHS,
        encoder_layers=config.encoder_layers // LAYERS,
        decoder_layers=config.decoder_layers // LAYERS,
    )


def row_recipe(recipe: Recipe, row: str, seed: int) -> Recipe:
    base, config = ModelConfig().to_dict(), scaled(preset(row)).to_dict()
    settings = {k: v for k, v in config.items() if v != base[k] and k not in FROM_TOKENIZER}
    return replace(
        recipe, model=ModelSection("base", settings), training=replace(recipe.training, seed=seed)
    )


def train(recipe: Recipe, out: Path, name: str) -> None:
    """By the command, in a process of its own, unless it is done."""
    files = RunDirectory(out / name)
    if files.model.exists():
        return
    print(f"training {name}", file=sys.stderr, flush=True)
    if files.checkpoints.exists():
        call = ["--resume", str(files.path)]
    else:
        files.path.mkdir(exist_ok=True)
        if not files.data.exists():
            files.data.symlink_to(Path("..") / "data")  # prepared once for all rows
        asked = out / f"{name}.toml"
        asked.write_text(recipe.to_toml(), encoding="utf-8")
        call = [str(asked), "--out", str(files.path)]
    subprocess.run(
        [sys.executable, "-m", "mlx_transformer", "train", *call],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def score(files: RunDirectory, metric: str) -> Score:
    """Of the validation at the last step."""
    records = map(json.loads, files.metrics.read_text(encoding="utf-8").splitlines())
    *_, last = (record for record in records if record["kind"] == "validation")
    return Score(last["perplexity"], last[metric])


def verdict(paper: float, paper_base: float, ours: Sequence[float], base: Sequence[float]) -> str:
    """Perplexities of a row beside those of base: does the paper's direction reproduce?

    A direction counts where every run of the row lies on one side of every run of base.
    """
    lower, higher = max(ours) < min(base), min(ours) > max(base)
    if abs(paper - paper_base) < SAME:
        return "the paper: no difference; here " + (
            "better" if lower else "worse" if higher else "none either"
        )
    said = "better" if paper < paper_base else "worse"
    found = "better" if lower else "worse" if higher else None
    if found is None:
        return f"the paper: {said}; here too close to call"
    return f"reproduces: {said}" if found == said else f"does not reproduce: {found} here"


def count(found: str) -> str:
    """How many rows of the table reproduce."""
    yes, no = found.count("| reproduces"), found.count("| does not reproduce")
    others = len(found.splitlines()) - 3 - yes - no
    return f"{yes} directions reproduce, {no} do not, and {others} rows say nothing either way."


def conditions(name: str, recipe: Recipe, seeds: Sequence[int]) -> str:
    training = recipe.training
    return (
        f"Text: `{name}`; {training.max_steps:,} updates of {training.batch_tokens:,} tokens, "
        f"schedule {training.schedule}, peak {training.learning_rate}, warmup {training.warmup}; "
        f"seeds {', '.join(map(str, seeds))}."
    )


def table(out: Path, rows: Sequence[str], recipe: Recipe, seeds: Sequence[int]) -> str:
    metric = recipe.validation.metric
    scores = {row: [score(RunDirectory(out / f"{row}-{n}"), metric) for n in seeds] for row in rows}
    base = [found.perplexity for found in scores["base"]]
    quality = {"exact": "exactly right, %"}.get(metric, "BLEU")
    lines = [
        f"| row | N | d_model | d_ff | h | d_k | d_v | parameters | perplexity | {quality} "
        "| paper: perplexity | BLEU | direction against base |",
        "|---" * 13 + "|",
    ]
    for row, found in scores.items():
        perplexities = [one.perplexity for one in found]
        said = "" if row == "base" else verdict(PAPER[row][0], PAPER["base"][0], perplexities, base)
        cells = [
            f"`{row}`",
            *sizes(row, recipe.tokenizer.vocab_size),
            " ".join(f"{perplexity:.2f}" for perplexity in perplexities),
            " ".join("-" if one.quality is None else f"{one.quality:.1f}" for one in found),
            *PAPER[row],
            said,
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def sizes(row: str, vocab_size: int) -> list[str]:
    """N, d_model, d_ff, h, d_k, d_v and the parameters of a row's small model"""
    small = scaled(preset(row))
    config = replace(small, vocab_size=vocab_size, target_vocab_size=vocab_size)
    names = ("encoder_layers", "d_model", "d_ff", "h", "d_k", "d_v")
    return [*(str(getattr(config, name)) for name in names), f"{count_parameters(config):,}"]


if __name__ == "__main__":
    main()
