"""The file that a picture becomes: matplotlib set up, a figure of some inches, .png or .svg.

matplotlib, the extra `plots`, is imported only when something is drawn.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_transformer.errors import InputError, RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg")
FAINT = "#767676"  # words that matter less
TEXT = 9  # points
DPI = 144
MAX_PIXELS = 2**16 - 1  # of either side, for matplotlib

# Faces with the letters that matplotlib's own lacks, used where they are installed.
MORE_FONTS = ("Arial Unicode MS", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei")


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    if max(width, height) * DPI > MAX_PIXELS:
        raise InputError("this is too much for one picture: choose fewer kinds, layers or heads")
    return Figure(figsize=(width, height), layout="constrained")


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """matplotlib set up for words, and its complaints about letters made one sentence."""
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"a picture ends in {' or '.join(PICTURES)}, not {path.name!r}")
    try:
        import matplotlib
        from matplotlib import font_manager
    except ModuleNotFoundError as error:
        raise RunError(
            f"a {path.suffix} picture needs matplotlib: pip install 'mlx-transformer[plots]'"
        ) from error
    installed = {font.name for font in font_manager.fontManager.ttflist}
    more_fonts = [name for name in MORE_FONTS if name in installed]
    settings: Any = {
        "font.family": ["DejaVu Sans", *more_fonts, "sans-serif"],
        "font.size": TEXT,
        "axes.titlesize": TEXT + 1,
        "figure.titlesize": TEXT + 1,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.parse_math": False,  # a word with dollars is no formula
        "svg.fonttype": "none",  # words stay text, shown with the reader's fonts
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    codes = {int(m[1]) for w in caught if (m := re.match(r"Glyph (\d+) ", str(w.message)))}
    if codes and path.suffix.lower() == ".png":
        letters = " ".join(map(chr, sorted(codes)))
        warnings.warn(f"no font here has {letters} - an .svg or .html file shows it", stacklevel=3)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
