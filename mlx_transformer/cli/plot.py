"""`mlx-transformer plot`: training curves of runs, learning rates of recipes, position tables."""

import argparse
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import show, tell
from mlx_transformer.config import PRESETS, preset
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import printable
from mlx_transformer.model import sinusoids
from mlx_transformer.pictures.plots import draw_curves, draw_positions, draw_schedules
from mlx_transformer.recipes import load_recipe
from mlx_transformer.storage import load_model
from mlx_transformer.training.report import MetricsLog
from mlx_transformer.training.run_directory import RunDirectory
from mlx_transformer.training.schedule import make_schedule

POSITIONS = 128  # rows of a position table that are drawn
POINTS = 1000  # of a learning rate


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw the training curves of one or several runs, the learning rate of recipes, or the\n"
        "position table of a model, as a .png or .svg file."
    )
    parser.epilog = (
        "examples:\n"
        "  mlx-transformer plot runs/small runs/large --out compared.png\n"
        "  mlx-transformer plot --schedule numbers my-recipe.toml\n"
        "  mlx-transformer plot --positions base"
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help="directories of training runs")
    parser.add_argument(
        "--schedule", metavar="RECIPE", nargs="+", help="the learning rates of recipes"
    )
    parser.add_argument(
        "--positions", metavar="PRESET|DIR", help="the position table of a preset or a model"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="the picture (default: curves.png in the first run; schedule.png or positions.png)",
    )


def run(args: argparse.Namespace) -> None:
    if sum(map(bool, (args.runs, args.schedule, args.positions))) != 1:
        raise InputError("give one or several runs, or --schedule RECIPE, or --positions PRESET")
    if args.runs:
        runs = {name: RunDirectory(Path(name)) for name in args.runs}
        out = args.out or runs[args.runs[0]].curves
        logs = {printable(name): MetricsLog(run.metrics).read(tell) for name, run in runs.items()}
        draw_curves(logs, out)
    elif args.schedule:
        out = args.out or Path("schedule.png")
        draw_schedules({printable(name): schedule(name) for name in args.schedule}, out)
    else:
        out = args.out or Path("positions.png")
        draw_positions(positions(args.positions), out)
    show(out)


def schedule(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, rates) of a recipe, from its first step to its last."""
    recipe = load_recipe(name)
    size = recipe.tokenizer.vocab_size
    rate = make_schedule(recipe.training, recipe.model_config(size, size).d_model)
    even = np.linspace(1, recipe.training.max_steps, POINTS).round()
    steps = np.unique([*even, max(recipe.training.warmup, 1)])  # the peak is among them
    return steps, np.array([rate(float(step)) for step in steps])


def positions(name: str) -> dict[str, np.ndarray]:
    """Tables (positions, d_model) by title: one for both stacks, or one each if learned."""
    model = None
    if name not in PRESETS and (directory := model_directory(Path(name))).is_dir():
        model = load_model(directory, mx.float32)
    config = model.config if model else preset(name)
    rows = slice(config.position_offset, config.position_offset + POSITIONS)
    if config.positions == "sinusoidal":
        table = sinusoids(config, min(POSITIONS, config.max_length))
        return {f"Sinusoidal positions of {printable(name)}": table[rows]}
    if model is None:
        raise InputError(f"the positions of {name} are learned: give a trained model's directory")
    return {
        "Learned positions of the encoder": np.array(model.source_embedding.positions)[rows],
        "Learned positions of the decoder": np.array(model.target_embedding.positions)[rows],
    }
