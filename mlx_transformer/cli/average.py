"""mlx-transformer average: the mean of a run's last checkpoints as one model."""

import argparse
from pathlib import Path

from mlx_transformer.cli.output import note, show

EPILOG = """\
example:
  mlx-transformer average runs/mine --last 5 --out runs/mine-average
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Average the weights of the last checkpoints of a run into one model directory, as the "
        "paper does (5 for base, 20 for big). Training does so at its end."
    )
    parser.epilog = EPILOG
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--last", type=_count, default=5, help="how many checkpoints (default 5)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new model")


def run(args: argparse.Namespace) -> None:
    from mlx_transformer.training.run import Run

    paths = Run.open(args.run).average(args.last, args.out)
    note(f"averaged {', '.join(path.name for path in paths)}")
    show(args.out)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)
