"""Pictures: what a model attends to, its position table, learning rates, training curves.

Every function takes words and numbers and writes a .png or .svg file. matplotlib, the extra
`plots`, is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_transformer.errors import InputError
from mlx_transformer.pictures.attention import (
    SIDES,
    Attention,
    Panel,
    View,
    find_word,
    label,
    panels,
)
from mlx_transformer.pictures.files import DPI, FAINT, drawing, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

# Eight colours at least 12 apart (CIEDE2000) in normal, red-, green- and blue-blind vision, and 3:1
# from white. Later heads repeat them with other dashes: two signs tell heads apart.
COLORS = ("#0066DD", "#AA5511", "#118855", "#EE5588", "#BB8800", "#4499CC", "#554422", "#000000")
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
VISIBLE, NOTABLE = 0.02, 0.1  # the weight from which a line is drawn, and a word is black

# Sizes in inches.
CELL = 0.19  # of a heat map
ROW = 0.24  # of a column of words
SPAN = 2.4  # between two columns of words
LETTER = 0.08  # the width of a usual one
MAPS_A_ROW = 4


def draw_attention(attention: Attention, path: Path, view: View) -> None:
    """Heat maps, one a head; or lines between words, as in figures 3 to 5 of the paper."""
    rows = panels(attention, view)
    with drawing(path):
        if view.lines or view.word is not None:
            figure = _bundles(rows, view.word)
        else:
            figure = _heat_maps([panel for row in rows for panel in row])
        save(figure, path)


# Heat maps


def _heat_maps(rows: Sequence[Panel]) -> Figure:
    """The heads of a layer together, under its name."""
    columns = min(MAPS_A_ROW, max(len(panel.heads) for panel in rows))
    sizes = np.array([_maps_size(panel, columns) for panel in rows])
    figure = new_figure(sizes[:, 0].max(), sizes[:, 1].sum())
    parts = figure.subfigures(len(rows), 1, height_ratios=sizes[:, 1], squeeze=False)
    for part, panel in zip(parts[:, 0], rows, strict=True):
        queries, keys = SIDES[panel.kind]
        title = f"{panel.title} (rows: {queries}, columns: {keys})"
        part.suptitle(title, x=0.01, ha="left", weight="bold")
        axes = part.subplots(-(-len(panel.heads) // columns), columns, squeeze=False)
        for ax in axes.flat[len(panel.heads) :]:
            ax.set_axis_off()
        for ax, head, weights in zip(axes.flat, panel.heads, panel.weights, strict=False):
            image = _heat_map(ax, panel, weights)
            ax.set_xlabel(f"head {head}")
        part.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.01, label="weight")
    return figure


def _maps_size(panel: Panel, columns: int) -> tuple[float, float]:
    rows = -(-len(panel.heads) // columns)
    width = len(panel.keys) * CELL + _length(panel.queries) + 0.25
    height = len(panel.queries) * CELL + 0.7 * _length(panel.keys) + 0.5
    return columns * width + 0.7, rows * height + 0.3


def _heat_map(ax: Axes, panel: Panel, weights: np.ndarray) -> AxesImage:
    """weights (queries, keys), with the words on both axes."""
    image = ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    keys, queries = ([label(token) for token in side] for side in (panel.keys, panel.queries))
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(keys)), keys, rotation=45, ha="left", rotation_mode="anchor")
    ax.set_yticks(range(len(queries)), queries)
    # A fine grid between the cells, so that a pale row can be followed to its word.
    columns, rows = (np.arange(len(side) - 1) + 0.5 for side in (keys, queries))
    ax.vlines(columns, -0.5, len(queries) - 0.5, color="#E4E4E4", linewidth=0.4)
    ax.hlines(rows, -0.5, len(keys) - 0.5, color="#E4E4E4", linewidth=0.4)
    ax.tick_params(length=0)
    ax.spines[:].set(visible=True, color="#BBBBBB", linewidth=0.6)
    return image


# Lines


def _bundles(rows: Sequence[Sequence[Panel]], word: str | None) -> Figure:
    """Kinds below each other, layers beside each other, heads by colour."""
    first = [row[0] for row in rows]
    columns, heads = max(map(len, rows)), first[0].heads
    width = columns * (max(_length(p.queries) + _length(p.keys) for p in first) + SPAN + 1)
    heights = [(1 + max(len(p.queries), len(p.keys))) * ROW + 0.4 for p in first]
    legend_columns = min(len(heads), int(width // 0.95))
    legend_height = -(-len(heads) // legend_columns) * 0.2 + 0.15
    figure = new_figure(width, sum(heights) + legend_height)
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for ax in axes.flat:
        ax.set_axis_off()
    for row_axes, row in zip(axes, rows, strict=True):
        for ax, panel in zip(row_axes, row, strict=False):  # a stack may have fewer layers
            _bundle(ax, panel, word)
    lines = [_sample(f"head {head}", head) for head in heads]
    figure.legend(handles=lines, loc="outside lower center", ncols=legend_columns, frameon=False)
    return figure


def _bundle(ax: Axes, panel: Panel, word: str | None) -> None:
    weights, left, right = panel.weights, -0.03, 1.03
    if word is not None:
        # Only the lines of one word; at their other ends, a row of boxes shows every head.
        side, places = find_word(panel, word)
        weights = np.zeros_like(panel.weights)
        if side == "queries":
            weights[:, places] = panel.weights[:, places]
            right += _boxes(ax, panel.heads, weights.max(1), 1.01)
        else:
            weights[:, :, places] = panel.weights[:, :, places]
            left += _boxes(ax, panel.heads[::-1], weights.max(2)[::-1], -0.01)
    _lines(ax, panel.heads, weights)
    queries, keys = SIDES[panel.kind]
    for x, align, name, tokens, most in (
        (left, "right", queries, panel.queries, weights.max((0, 2))),
        (right, "left", keys, panel.keys, weights.max((0, 1))),
    ):
        ax.text(x, -1.1, name, ha=align, va="center_baseline", color=FAINT, style="italic")
        for y, token in enumerate(tokens):
            color = "black" if most[y] > NOTABLE else FAINT
            ax.text(x, y, label(token), ha=align, va="center_baseline", color=color)
    ax.set(xlim=(0, 1), ylim=(max(weights.shape[1:]) - 0.4, -1.6))
    ax.set_title(panel.title, weight="bold")


def _lines(ax: Axes, heads: Sequence[int], weights: np.ndarray) -> None:
    """weights (heads, queries, keys) as lines from the left to the right."""
    from matplotlib.collections import LineCollection

    n = len(heads)
    # Each head has a track of its own within a word's row: lines between the same two words lie
    # beside each other, not on top.
    tracks = (np.arange(n) - (n - 1) / 2) * 0.7 / max(n, 4)
    thickest = max(ROW * 72 * 0.7 / max(n, 4), 2.5)
    for head, track, matrix in zip(heads, tracks, weights, strict=True):
        q, k = np.nonzero(matrix > VISIBLE)
        color, dashes = style(head)
        ends = np.array([[0 * q, q + track], [0 * k + 1, k + track]])  # (2 ends, x and y, lines)
        ax.add_collection(
            LineCollection(
                list(ends.transpose(2, 0, 1)),
                linewidths=0.3 + thickest * matrix[q, k],
                alpha=np.sqrt(matrix[q, k]),
                colors=color,
                linestyles=dashes,
            )
        )


def _boxes(ax: Axes, heads: Sequence[int], weights: np.ndarray, x: float) -> float:
    """weights (heads, words) as boxes from x outwards; how far they reach."""
    from matplotlib.colors import to_rgba

    width = min(0.08, 1 / len(heads)) / SPAN * (1 if x > 0 else -1)
    for i, (head, row) in enumerate(zip(heads, weights, strict=True)):
        colors = [to_rgba(style(head)[0], weight) for weight in row]
        ax.barh(range(len(row)), width, 0.5, left=x + i * width, color=colors, clip_on=False)
    return width * len(heads)


def style(number: int) -> tuple[str, Any]:
    """(colour, dashes) of a head or a curve, counted from 1."""
    return COLORS[(number - 1) % len(COLORS)], DASHES[(number - 1) // len(COLORS) % len(DASHES)]


def _sample(name: str, number: int) -> Line2D:
    """A line to show in a legend."""
    from matplotlib.lines import Line2D

    color, dashes = style(number)
    return Line2D([], [], color=color, linestyle=dashes, linewidth=2, label=name)


# Positions, learning rates, training


def draw_positions(tables: Mapping[str, np.ndarray], path: Path) -> None:
    """Position tables (positions, d_model) by title, below each other."""
    with drawing(path):
        # A whole number of pixels a cell: otherwise columns of sines and cosines blur into waves
        # that are not there.
        rows, columns = (3 * size / DPI for size in next(iter(tables.values())).shape)
        width, height = columns + 1.6, len(tables) * (rows + 1)
        figure = new_figure(width, height)
        figure.set_layout_engine(None)
        for i, (title, table) in enumerate(tables.items()):
            bottom = (len(tables) - 1 - i) * (rows + 1) + 0.6
            y, h = bottom / height, rows / height
            ax = figure.add_axes((0.6 / width, y, columns / width, h))
            limit = np.abs(table).max()
            image = ax.imshow(
                table, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
            )
            ax.set(xlabel="dimension", ylabel="position")
            ax.set_title(title, weight="bold")
            figure.colorbar(
                image, cax=figure.add_axes(((columns + 0.75) / width, y, 0.15 / width, h))
            )
        save(figure, path)


def draw_schedules(schedules: Mapping[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Learning rates by name: (steps, rates)."""
    with drawing(path):
        figure = new_figure(7, 4)
        ax = figure.subplots()
        for number, (steps, rates) in enumerate(schedules.values(), 1):
            color, dashes = style(number)
            ax.plot(steps, rates, color=color, linestyle=dashes)
        _finish_curves(figure, [ax], ["learning rate"], list(schedules))
        save(figure, path)


# Title, kind of record and key of each panel that training curves can have.
CURVES = (
    ("training perplexity", "training", "perplexity"),
    ("validation perplexity", "validation", "perplexity"),
    ("validation BLEU", "validation", "bleu"),
    ("exactly right, per cent", "validation", "exact"),
    ("learning rate", "training", "learning_rate"),
)


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """The records of metrics.jsonl by the name of the run.

    What no run measured is left out, and so is what stayed 0, as BLEU of single words does.
    """
    series = {
        title: [_series(records, kind, key) for records in runs.values()]
        for title, kind, key in CURVES
    }
    series = {
        title: each for title, each in series.items() if any(points[:, 1].any() for points in each)
    }
    if not series:
        raise InputError("nothing to draw yet: no run has logged a step")
    with drawing(path):
        from matplotlib.ticker import LogLocator

        figure = new_figure(4 * min(len(series), 2), 3.2 * -(-len(series) // 2))
        axes = figure.subplots(-(-len(series) // 2), min(len(series), 2), squeeze=False).flat
        for ax, (title, each) in zip(axes, series.items(), strict=False):
            for number, points in enumerate(each, 1):
                color, dashes = style(number)
                marker = "o" if len(points) == 1 else None
                ax.plot(points[:, 0], points[:, 1], color=color, linestyle=dashes, marker=marker)
            if "perplexity" in title:
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                ax.yaxis.set_major_formatter("{x:g}")
                ax.yaxis.set_minor_formatter("")
        for ax in axes[len(series) :]:
            ax.set_axis_off()
        _finish_curves(figure, axes[: len(series)], list(series), list(runs))
        save(figure, path)


def _series(records: Sequence[Mapping[str, Any]], kind: str, key: str) -> np.ndarray:
    """(points, 2): steps and values"""
    points = [
        (record["step"], record[key])
        for record in records
        if record["kind"] == kind and record.get(key) is not None
    ]
    return np.array(points, dtype=float).reshape(-1, 2)


def _finish_curves(
    figure: Figure, axes: Iterable[Axes], titles: Sequence[str], names: Sequence[str]
) -> None:
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, weight="bold")
        ax.set_xlabel("step")
        ax.grid(color="#E4E4E4", linewidth=0.6)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter("{x:,.0f}")
    samples = [_sample(name, number) for number, name in enumerate(names, 1)]
    figure.legend(handles=samples, loc="outside lower center", ncols=2, frameon=False)


def _length(tokens: Sequence[str]) -> float:
    """About the inches that the longest token takes."""
    return max(len(label(token)) for token in tokens) * LETTER
