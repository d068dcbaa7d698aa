"""mlx-transformer average: the mean of a run's last checkpoints, or of models, as one model."""

import argparse
from pathlib import Path

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import note, show
from mlx_transformer.errors import InputError

USUAL_LAST = 5
EPILOG = """\
examples:
  mlx-transformer average runs/mine --last 5 --out runs/mine-average
  mlx-transformer average runs/mine/model runs/tuned/model --out runs/both
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Average the weights of the last checkpoints of a run into one model directory, as the "
        "paper does (5 for base, 20 for big). Training does so at its end. Or average models: the "
        "ends of runs that went on from each other (train --start) are often better together."
    )
    parser.epilog = EPILOG
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="RUN|MODEL",
        help="a run directory, or several models",
    )
    parser.add_argument(
        "--last", type=_count, help=f"how many checkpoints of the run (default {USUAL_LAST})"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a directory to make"
    )


def run(args: argparse.Namespace) -> None:
    from mlx_transformer.training.averaging import average_models
    from mlx_transformer.training.run import Run

    if args.out.exists():  # perhaps the run itself
        raise InputError(f"{args.out} exists: name a directory to make")
    if len(args.paths) == 1:
        paths = Run.open(args.paths[0]).average(args.last or USUAL_LAST, args.out)
        note(f"averaged {', '.join(path.name for path in paths)}")
    elif args.last is not None:
        raise InputError("--last counts the checkpoints of one run: name one, or leave it out")
    else:
        average_models([model_directory(path) for path in args.paths], args.out)
    show(args.out)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)
