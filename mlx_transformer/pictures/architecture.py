"""Figures 1 and 2 of the paper, drawn from a model: its real modules, with their sizes.

`towers` reads the module tree, the rest puts on paper what it found. Nothing is computed for it:
MLX arrays are lazy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mlx.nn as nn
import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import CrossAttention, FeedForward, SelfAttention, Transformer
from mlx_transformer.pictures.files import FAINT, TEXT, drawing, new_figure, save
from mlx_transformer.storage import count_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BlockKind = Literal[
    "attention", "recurrent", "norm", "feed_forward", "embedding", "output", "operation"
]  # fmt: skip
FILL: dict[BlockKind, str] = {
    "attention": "#FFE1C2",
    "recurrent": "#FFE1C2",
    "norm": "#F6F3C4",
    "feed_forward": "#CDE7F5",
    "embedding": "#FADCE2",
    "output": "#DFE0F5",
    "operation": "#D9EFD9",
}
Point = tuple[float, float]


@dataclass(frozen=True)
class Block:
    """A box: what it is, and the sizes of its matrices."""

    kind: BlockKind
    name: str
    sizes: str = ""


@dataclass(frozen=True)
class Sublayer:
    block: Block
    norm: Block
    reads_memory: bool = False


@dataclass(frozen=True)
class Tower:
    """A stack with what lies below and above it, from the bottom to the top."""

    text: str  # what goes in
    embedding: Block
    positions: str | None
    sublayers: Sequence[Sublayer]  # of one layer
    layers: int
    above: Sequence[Block]
    result: str  # what comes out


def draw_architecture(model: Transformer, title: str, path: Path) -> None:
    """The whole model on the left, one attention of it, in two steps, on the right."""
    with drawing(path):
        figure = new_figure(1, 1)
        figure.set_layout_engine(None)
        pen = Pen(figure.add_axes((0, 0, 1, 1)))
        pen.ax.set_axis_off()
        top = max(draw_model(pen, model), draw_attention_of(pen, model.config))
        pen.text(0.1, top, title, ha="left", weight="bold", fontsize=TEXT + 5)
        pen.faint(0.1, top - 0.2, summary(model), ha="left", va="top", linespacing=1.6)
        width, height = DETAIL + BOX / 2 + 0.6, top + 0.3
        pen.ax.set(xlim=(0, width), ylim=(0, height))
        figure.set_size_inches(width, height)
        save(figure, path)


# What is in a model


def towers(model: Transformer) -> list[Tower]:
    """The encoder and the decoder, or the one of them that there is."""
    names = [name for name in ("encoder", "decoder") if name in model]
    return [tower(model, name, last=name == names[-1]) for name in names]


def tower(model: Transformer, name: str, *, last: bool) -> Tower:
    config, stack = model.config, model[name]
    axes = "(B, S)" if name == "encoder" else "(B, T)"
    both = config.alone is None
    text = "ids" if not both else "source ids" if name == "encoder" else "target ids, shifted right"
    words = f"{config.vocab_size if name == 'encoder' else config.target_size:,} × {config.d_model}"
    if name == "decoder" and both and config.shared_embeddings:
        words = "the same matrix"
    norms = [] if isinstance(stack.norm, nn.Identity) else [block(stack.norm)]
    return Tower(
        f"{text} {axes}",
        Block("embedding", "Word vectors", words),
        None if config.positions == "relative" else f"{config.positions} positions",
        sublayers(stack.layers[0], masked=name == "decoder"),
        len(stack.layers),
        [*norms, *(output(model) if last else [])],
        result(config, axes, last=last),
    )


def output(model: Transformer) -> list[Block]:
    """What lies above the last stack: figure 1's linear layer and softmax, if it writes words."""
    config = model.config
    if config.word_head == "none":
        return []
    again = "   the word matrix again" if config.tied_output else ""
    linear = Block("output", "Linear", f"{config.d_model} → {config.target_size:,}{again}")
    head = [Block("output", "Word head")] if "word_head" in model else []
    return [*head, linear, Block("operation", "Softmax")]


def result(config: ModelConfig, axes: str, *, last: bool) -> str:
    if last and config.word_head != "none":
        return f"probabilities {axes[:-1]}, {config.target_size:,})"
    return f"{'vectors' if last else 'memory'} {axes[:-1]}, {config.d_model})"


def sublayers(layer: nn.Module, *, masked: bool) -> list[Sublayer]:
    """Every module of a layer that has a norm of its own, in the order in which they run."""
    return [
        Sublayer(
            block(part, masked), block(layer[f"{name}_norm"]), isinstance(part, CrossAttention)
        )
        for name, part in layer.children().items()
        if f"{name}_norm" in layer
    ]


def block(module: nn.Module, masked: bool = False) -> Block:
    if isinstance(module, SelfAttention):
        name = "Masked multi-head attention" if masked else "Multi-head attention"
        return Block("attention", name, sizes(module))
    if isinstance(module, CrossAttention):
        return Block("attention", "Multi-head attention", sizes(module))
    if isinstance(module, FeedForward):
        return Block("feed_forward", "Feed forward", sizes(module))
    if isinstance(module, nn.RMSNorm | nn.LayerNorm):
        return Block("norm", "RMS norm" if isinstance(module, nn.RMSNorm) else "Norm")
    return Block("recurrent", type(module).__name__, sizes(module))


def sizes(module: nn.Module) -> str:
    """`w_1 512 → 2048, w_2 2048 → 512`: the matrices of a module by their names in it"""
    matrices = [(name, part) for name, part in module.children().items() if "weight" in part]
    shapes = [(name, part.weight.shape) for name, part in matrices]
    return "   ".join(f"{name} {d_in} → {d_out}" for name, (d_out, d_in) in shapes)


def summary(model: Transformer) -> str:
    config = model.config
    return (
        f"{count_parameters(config):,} parameters\n"
        f"d_model {config.d_model}, d_ff {config.d_ff}, h {config.h}, "
        f"d_k {config.d_k}, d_v {config.d_v}\n"
        f"dropout {config.dropout:g}, label smoothing {config.label_smoothing:g}\n"
        "B sentences of S source and T target tokens"
    )


# On paper: inches, counted from below on the left

BOX = 2.8  # width of a box
TALL, FLAT = 0.52, 0.3  # heights of boxes with and without sizes
GAP = 0.26  # between two boxes
SIDE = 0.28  # from a box to the line that goes around it
SPREAD = 0.8  # between the arrows of q, k and v
ENCODER, DECODER, DETAIL = 2.0, 6.0, 10.1  # where the middle of each column is
LINE = "#444444"


@dataclass(frozen=True)
class Pen:
    ax: Axes

    def box(self, x: float, y: float, block: Block, width: float = BOX) -> float:
        """A box whose lower side has its middle at (x, y); the height of its upper side."""
        from matplotlib.patches import FancyBboxPatch

        height = TALL if block.sizes else FLAT
        self.ax.add_patch(
            FancyBboxPatch(
                (x - width / 2, y),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.07",
                facecolor=FILL[block.kind],
                edgecolor=LINE,
                linewidth=0.8,
                zorder=2,
            )
        )
        middle = y + height / 2
        if block.sizes:
            self.text(x, middle + 0.1, block.name, weight="bold")
            self.text(x, middle - 0.12, block.sizes, fontsize=TEXT - 1.5)
        else:
            self.text(x, middle, block.name, weight="bold")
        return y + height

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 3}
        self.ax.text(x, y, words, **centred | style)

    def faint(self, x: float, y: float, words: str, **style: Any) -> None:
        style = {"color": FAINT, "fontsize": TEXT - 1} | style
        self.text(x, y, words, **style)

    def line(self, *points: Point) -> None:
        self.ax.plot(*zip(*points, strict=True), color=LINE, linewidth=0.9, zorder=1)

    def arrow(self, *points: Point) -> None:
        """A line with a head at its end."""
        self.line(*points)
        style = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, "mutation_scale": 8}
        self.ax.annotate(
            "", points[-1], points[-2], arrowprops={**style, "shrinkA": 0, "shrinkB": 0}
        )

    def circle(self, x: float, y: float, words: str = "") -> None:
        from matplotlib.patches import Circle

        self.ax.add_patch(Circle((x, y), 0.12, facecolor="white", edgecolor=LINE, zorder=2))
        self.text(x, y - 0.005, words, fontsize=TEXT + 2)

    def wave(self, x: float, y: float) -> None:
        self.circle(x, y)
        turn = np.linspace(-np.pi, np.pi, 40)
        self.ax.plot(x + turn * 0.025, y + np.sin(turn) * 0.06, color=LINE, linewidth=0.9, zorder=3)

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = "round,pad=0,rounding_size=0.15"
        self.ax.add_patch(
            FancyBboxPatch(
                (x, y), width, height, boxstyle=style, facecolor="#F5F5F5", edgecolor="#AAAAAA",
                linewidth=0.8, zorder=0,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Ends:
    """Where other lines meet a tower that was drawn."""

    top: float
    memory: float | None  # height at which what the encoder made comes in


def draw_tower(pen: Pen, x: float, tower: Tower, side: int, *, pre_norm: bool) -> Ends:
    """From the text at the bottom to the result on top; lines around go on this side (-1: left)."""
    pen.faint(x, 0.2, tower.text)
    pen.arrow((x, 0.32), (x, 0.55))
    y = pen.box(x, 0.55, tower.embedding)
    if tower.positions:
        middle = y + GAP + 0.06
        pen.circle(x, middle, "+")
        pen.wave(x + side * 0.75, middle)
        pen.line((x, y), (x, middle - 0.12))
        pen.line((x + side * 0.63, middle), (x + side * 0.12, middle))
        pen.faint(x + side * 0.95, middle, tower.positions, ha="left" if side > 0 else "right")
        y = middle + 0.12
    start = y + 0.22
    pen.line((x, y), (x, start))
    y, memory = start, None
    for sublayer in tower.sublayers:
        if sublayer.reads_memory:
            memory = y + _below(pre_norm) - 0.14
        y = draw_sublayer(pen, x, y, sublayer, side, pre_norm=pre_norm)
    left = x - BOX / 2 - (SIDE + 0.17 if side < 0 else 0.17)
    pen.frame(left, start, BOX + SIDE + 0.34, y - start)
    pen.text(
        left - 0.1 if side < 0 else left + BOX + SIDE + 0.44,
        (start + y) / 2,
        f"{tower.layers} ×",
        ha="right" if side < 0 else "left",
        fontsize=TEXT + 4,
    )
    for block in tower.above:
        pen.arrow((x, y), (x, y + GAP))
        y = pen.box(x, y + GAP, block)
    return Ends(y, memory)


def _below(pre_norm: bool) -> float:
    """From the bottom of a sublayer to the bottom of its box of weights."""
    return 0.42 + (FLAT + GAP + 0.1 if pre_norm else 0)


def draw_sublayer(
    pen: Pen, x: float, y: float, sublayer: Sublayer, side: int, *, pre_norm: bool
) -> float:
    """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)); the height of its top."""
    branch, around = y + 0.12, x + side * (BOX / 2 + SIDE)
    pen.line((x, y), (x, branch))
    bottom = y + _below(pre_norm)
    fork = bottom - (0.24 if sublayer.reads_memory else 0.2)
    if pre_norm:
        pen.arrow((x, branch), (x, y + 0.3))
        pen.line((x, pen.box(x, y + 0.3, sublayer.norm)), (x, fork))
    else:
        pen.line((x, branch), (x, fork))
    if sublayer.reads_memory:
        pen.arrow((x, fork), (x + side * SPREAD, fork), (x + side * SPREAD, bottom))
    elif sublayer.block.kind == "attention":
        pen.line((x - SPREAD, fork), (x + SPREAD, fork))
        for offset in (-SPREAD, 0, SPREAD):
            pen.arrow((x + offset, fork), (x + offset, bottom))
    else:
        pen.arrow((x, fork), (x, bottom))
    top = pen.box(x, bottom, sublayer.block)
    if pre_norm:
        pen.line((x, top), (x, top + 0.1))
        pen.circle(x, top + 0.22, "+")
        pen.arrow(
            (x, branch), (around, branch), (around, top + 0.22), (x + side * 0.12, top + 0.22)
        )
        end = top + 0.34
    else:
        pen.arrow((x, top), (x, top + 0.16))
        norm = Block("norm", f"Add & {sublayer.norm.name}")
        end = pen.box(x, top + 0.16, norm)
        middle = end - FLAT / 2
        pen.arrow((x, branch), (around, branch), (around, middle), (x + side * BOX / 2, middle))
    pen.line((x, end), (x, end + 0.14))
    return end + 0.14


def draw_model(pen: Pen, model: Transformer) -> float:
    """Figure 1; the height of its top."""
    drawn = towers(model)
    pre_norm = model.config.norm == "pre"
    columns = [ENCODER, DECODER] if len(drawn) == 2 else [(ENCODER + DECODER) / 2]
    sides = [-1, +1][-len(drawn) :]
    ends = [
        draw_tower(pen, x, tower, side, pre_norm=pre_norm)
        for x, tower, side in zip(columns, drawn, sides, strict=True)
    ]
    for x, tower, end in zip(columns, drawn, ends, strict=True):
        pen.faint(x, end.top + 0.37, tower.result)
    pen.arrow((columns[-1], ends[-1].top), (columns[-1], ends[-1].top + 0.25))
    if len(drawn) == 2:
        draw_memory(pen, *ends)
    return max(end.top for end in ends) + 0.37


def draw_memory(pen: Pen, encoder: Ends, decoder: Ends) -> None:
    """Keys and values of the decoder's second attention, from the encoder's last layer."""
    assert decoder.memory is not None
    between, over = (ENCODER + DECODER) / 2 + 0.1, encoder.top + 0.25
    x, y = DECODER - SPREAD, decoder.memory
    way = [(ENCODER, encoder.top), (ENCODER, over), (between, over), (between, y)]
    pen.arrow(*way, (x, y), (x, y + 0.14))
    pen.arrow((x, y), (DECODER, y), (DECODER, y + 0.14))


def draw_attention_of(pen: Pen, config: ModelConfig) -> float:
    """Figure 2: self-attention of the model from the outside and, above, from the inside."""
    return _scaled_dot_product(pen, DETAIL, _multi_head(pen, DETAIL, config) + 0.45, config)


def _multi_head(pen: Pen, x: float, config: ModelConfig) -> float:
    d, h, (d_k, d_v) = config.d_model, config.h, config.head_sizes
    pen.faint(x, 0.2, f"(B, T, {d})")
    pen.line((x, 0.32), (x, 0.42))
    pen.line((x - SPREAD, 0.42), (x + SPREAD, 0.42))
    attention = 1.75
    for name, wide, column in (
        ("q", d_k, x - SPREAD),
        ("k", d_k, x),
        ("v", d_v, x + SPREAD),
    ):
        pen.arrow((column, 0.42), (column, 0.6))
        top = pen.box(column, 0.6, Block("output", name, f"{d} → {h * wide}"), SPREAD)
        pen.arrow((column, top), (column, attention))
        pen.faint(column + 0.05, top + 0.28, f"{h} × {wide}", ha="left")
    for behind in (0.14, 0.07):
        pen.box(x + behind, attention + behind, Block("attention", ""))
    y = pen.box(x, attention, Block("attention", "Scaled dot-product attention"))
    pen.text(x + BOX / 2 + 0.2, y, f"{h} ×", ha="left", fontsize=TEXT + 4)
    pen.arrow((x, y + 0.14), (x, y + 0.4))
    y = pen.box(x, y + 0.4, Block("norm", f"Concat: {h} × {d_v} = {h * d_v}"))
    pen.arrow((x, y), (x, y + GAP))
    y = pen.box(x, y + GAP, Block("output", "out", f"{h * d_v} → {d}"))
    pen.arrow((x, y), (x, y + 0.25))
    pen.faint(x, y + 0.35, f"(B, T, {d})")
    pen.text(x, y + 0.6, "Multi-head attention", weight="bold", fontsize=TEXT + 1)
    return y + 0.6


def _scaled_dot_product(pen: Pen, x: float, y: float, config: ModelConfig) -> float:
    d_k, d_v = config.head_sizes
    scale = f"1 / √{d_k} = {1 / math.sqrt(d_k):.4g}" if config.scale_attention else "1"
    mask = "Relative bias and mask" if config.positions == "relative" else "Mask"
    steps = [
        Block("output", "MatMul", "Q Kᵀ: T × S"),
        Block("norm", "Scale", f"times {scale}"),
        Block("embedding", mask, "lowest where none may look"),
        Block("operation", "Softmax", "each of T rows sums to 1"),
    ]
    left, values = x - BOX / 2 + 1.0, x + BOX / 2 - 0.3
    for name, column in (
        (f"Q: T × {d_k}", left - 0.5),
        (f"K: S × {d_k}", left + 0.5),
        (f"V: S × {d_v}", values),
    ):
        pen.faint(column, y, name)
    pen.line((values, y + 0.12), (values, y + 0.4))
    for column in (left - 0.5, left + 0.5):
        pen.line((column, y + 0.12), (column, y + 0.2))
    y += 0.2
    pen.arrow((left - 0.5, y), (left - 0.5, y + 0.2))
    pen.arrow((left + 0.5, y), (left + 0.5, y + 0.2))
    start, y = y, pen.box(left, y + 0.2, steps[0], 2.0)
    for step in steps[1:]:
        pen.arrow((left, y), (left, y + 0.2))
        y = pen.box(left, y + 0.2, step, 2.0)
    pen.arrow((left, y), (left, y + 0.2))
    pen.arrow((values, start), (values, y + 0.2))
    y = pen.box(x, y + 0.2, Block("output", "MatMul", f"T × {d_v}"))
    pen.arrow((x, y), (x, y + 0.25))
    pen.text(x, y + 0.4, "Scaled dot-product attention", weight="bold", fontsize=TEXT + 1)
    return y + 0.4
