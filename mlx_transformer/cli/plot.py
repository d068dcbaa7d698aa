"""`mlx-transformer plot`: training curves, learning rates, position tables, architectures."""

import argparse
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import show, tell
from mlx_transformer.config import PRESETS, ModelConfig, preset
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import printable
from mlx_transformer.model import Transformer, sinusoids
from mlx_transformer.pictures.architecture import draw_architecture
from mlx_transformer.pictures.plots import draw_curves, draw_positions, draw_schedules
from mlx_transformer.recipes import load_recipe
from mlx_transformer.storage import CONFIG_FILE, load_model, named_parameters
from mlx_transformer.training.report import MetricsLog
from mlx_transformer.training.run_directory import RunDirectory
from mlx_transformer.training.schedule import make_schedule

POSITIONS = 128  # rows of a position table that are drawn
POINTS = 1000  # of a learning rate


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw the training curves of one or several runs, the learning rate of recipes, the\n"
        "position table of a model, or its architecture, as a .png or .svg file."
    )
    parser.epilog = (
        "examples:\n"
        "  mlx-transformer plot runs/small runs/large --out compared.png\n"
        "  mlx-transformer plot --schedule numbers my-recipe.toml\n"
        "  mlx-transformer plot --positions base\n"
        "  mlx-transformer plot --architecture weights/en-de --out figure1.png"
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help="directories of training runs")
    parser.add_argument(
        "--schedule", metavar="RECIPE", nargs="+", help="the learning rates of recipes"
    )
    parser.add_argument(
        "--positions", metavar="PRESET|DIR", help="the position table of a preset or a model"
    )
    parser.add_argument(
        "--architecture",
        metavar="PRESET|DIR",
        nargs="?",
        const="base",
        help="the modules of a preset or a model with their sizes, as in the paper's figures 1 and "
        "2 (default: base)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="the picture (default: curves.png in the first run, or schedule.png, positions.png, "
        "architecture.png)",
    )


def run(args: argparse.Namespace) -> None:
    if sum(map(bool, (args.runs, args.schedule, args.positions, args.architecture))) != 1:
        raise InputError(
            "give one or several runs, or --schedule RECIPE, or --positions PRESET, or "
            "--architecture PRESET"
        )
    if args.runs:
        runs = {name: RunDirectory(Path(name)) for name in args.runs}
        out = args.out or runs[args.runs[0]].curves
        logs = {printable(name): MetricsLog(run.metrics).read(tell) for name, run in runs.items()}
        draw_curves(logs, out)
    elif args.schedule:
        out = args.out or Path("schedule.png")
        draw_schedules({printable(name): schedule(name) for name in args.schedule}, out)
    elif args.positions:
        out = args.out or Path("positions.png")
        draw_positions(positions(args.positions), out)
    else:
        out = args.out or Path("architecture.png")
        model = architecture(args.architecture)
        draw_architecture(model, printable(args.architecture), out)
    show(out)


def schedule(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, rates) of a recipe, from its first step to its last."""
    recipe = load_recipe(name)
    size = recipe.tokenizer.vocab_size
    rate = make_schedule(recipe.training, recipe.model_config(size, size).d_model)
    even = np.linspace(1, recipe.training.max_steps, POINTS).round()
    steps = np.unique([*even, max(recipe.training.warmup, 1)])  # the peak is among them
    return steps, np.array(rate(mx.array(steps.astype(np.float32))))


def positions(name: str) -> dict[str, np.ndarray]:
    """Tables (positions, d_model) by title: one for both stacks, or one each if learned."""
    directory = _directory(name)
    model = load_model(directory, mx.float32) if directory else None
    config = model.config if model else preset(name)
    if config.positions == "relative":
        raise InputError(f"{name} has no table of positions: its attention looks at distances")
    rows = slice(config.position_offset, config.position_offset + POSITIONS)
    if config.positions == "sinusoidal":
        table = sinusoids(config, min(POSITIONS, config.max_length))
        return {f"Sinusoidal positions of {printable(name)}": table[rows]}
    if model is None:
        raise InputError(f"the positions of {name} are learned: give a trained model's directory")
    weights = named_parameters(model)
    sides = {"encoder": "source_embedding.positions", "decoder": "target_embedding.positions"}
    return {
        f"Learned positions of the {stack}": np.array(weights[table])[rows]
        for stack, table in sides.items()
        if table in weights  # half a model has one
    }


def architecture(name: str) -> Transformer:
    """A preset or a model directory; the weights, which a drawing does not show, are not read."""
    directory = _directory(name)
    config = ModelConfig.load(directory / CONFIG_FILE) if directory else preset(name)
    return Transformer(replace(config, quantization=None))


def _directory(name: str) -> Path | None:
    """Of a model; a preset has none."""
    if name in PRESETS:
        return None
    directory = model_directory(Path(name))
    return directory if directory.is_dir() else None
