"""Table 1 of the paper, measured: what a layer costs as the sequence grows.

    python tools/table1.py
    python tools/table1.py --write     (into docs/paper.md, with the picture)

Self-attention is the model's own, beside a recurrent and a convolutional layer of MLX, all of one
width. Time is CPU time, the least of several passes; memory is the peak of a pass beyond the
weights, the median of several; operations are the nodes of the graph that MLX evaluates. Exponents
are fitted to the longest sequences: cost ~ n^exponent.
"""

import argparse
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# ruff: noqa: I001 - before mlx: on Linux this package brings the fast BLAS
from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.model import SelfAttention
from mlx_transformer.pictures.files import drawing, new_figure, save
from mlx_transformer.pictures.plots import style

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from paper_page import DOCS, write

D, KERNEL = 32, 3  # small, so that n^2 d soon outgrows the n d^2 of the projections
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
FITTED = 4  # the longest ones
PEAKS = 5  # passes of which the least memory counts
MEASURES = ("milliseconds", "megabytes", "operations")

Layer = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Cost:
    milliseconds: float
    megabytes: float
    operations: float


def layers() -> dict[str, Layer]:
    """One of each kind: (1,n,d) -> (1,n,d)"""
    attention = SelfAttention(ModelConfig(d_model=D, h=1))
    return {
        "self-attention": lambda x: attention(x, None),
        "recurrent": nn.RNN(D, D),
        "convolutional": nn.Conv1d(D, D, KERNEL, padding=KERNEL // 2),
    }


def cost(layer: Layer, n: int, passes: int) -> Cost:
    x = mx.random.normal((1, n, D))
    mx.eval(x, layer(x))
    dot = io.StringIO()
    mx.export_to_dot(dot, layer(x))
    seconds = []
    for _ in range(passes):
        start = time.process_time()
        mx.eval(layer(x))
        seconds.append(time.process_time() - start)
    needed = median(peak(layer, x) for _ in range(PEAKS))
    return Cost(1000 * min(seconds), needed / 1e6, dot.getvalue().count("shape=rectangle"))


def peak(layer: Layer, x: mx.array) -> int:
    """Bytes of one pass beyond what there is: more where a thread frees an array late, less where
    something older is freed meanwhile."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(layer(x))
    return mx.get_peak_memory() - before


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The slope of a line through the logarithms."""
    return float(np.polyfit(np.log(lengths[-FITTED:]), np.log(values[-FITTED:]), 1)[0])


def layers_between(layer: Layer, n: int) -> int:
    """How many layers until the last of n positions knows of the first: the longest path."""
    x = mx.random.normal((1, n, D))
    y = mx.concatenate([x[:, :1] + 1, x[:, 1:]], axis=1)
    for count in range(1, n + 1):
        x, y = layer(x), layer(y)
        if not mx.array_equal(x[:, -1], y[:, -1]):
            return count
    raise AssertionError("the first position never arrives")


Costs = Mapping[str, Sequence[Cost]]


def curve(costs: Sequence[Cost], measure: str) -> list[float]:
    return [getattr(cost, measure) for cost in costs]


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(costs: Costs, lengths: Sequence[int]) -> str:
    lines = []
    for measure in MEASURES:
        lines += [
            f"| {measure} at n = | " + " | ".join(map(str, lengths)) + " | exponent |",
            "|---" * (len(lengths) + 2) + "|",
        ]
        for name, each in costs.items():
            values = curve(each, measure)
            cells = " | ".join(number(value) for value in values)
            lines.append(f"| {name} | {cells} | {exponent(lengths, values):.2f} |")
        lines.append("")
    return "\n".join(lines).strip()


def draw(costs: Costs, lengths: Sequence[int], path: Path) -> None:
    with drawing(path):
        figure = new_figure(11, 3.6)
        for ax, measure in zip(figure.subplots(1, len(MEASURES)), MEASURES, strict=True):
            for number, (name, each) in enumerate(costs.items(), 1):
                values = curve(each, measure)
                color, _ = style(number)
                label = f"{name}: n^{exponent(lengths, values):.1f}"
                ax.loglog(lengths, values, "o-", color=color, markersize=3, label=label)
            ax.set_title(measure, weight="bold")
            ax.set_xlabel("sequence length n")
            ax.grid(color="#E4E4E4", linewidth=0.6)
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
            ax.set_ylim(top=30 * ax.get_ylim()[1])  # room for the legend
            ax.legend(loc="upper left", fontsize=8, frameon=False)
        save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="N")
    parser.add_argument("--passes", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--write", action="store_true", help="into docs/paper.md and its picture")
    args = parser.parse_args()
    mx.random.seed(0)
    with device.side_by_side(device.lane_count()):  # one core: threads that wait cost time too
        costs = {
            name: [cost(layer, n, args.passes) for n in args.lengths]
            for name, layer in layers().items()
        }
    found = table(costs, args.lengths)
    print(found)
    for name, layer in layers().items():
        if name != "recurrent":  # one layer, but n steps within it
            print(f"{name}: {layers_between(layer, 9)} layers between positions 1 and 9")
    if args.write:
        write("table 1", found)
        draw(costs, args.lengths, DOCS / "paper" / "table1.png")


if __name__ == "__main__":
    main()
