"""Pictures, read back from the files: words, weights, colours."""

import base64
import io
import itertools
import re
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from mlx_transformer.errors import InputError, RunError
from mlx_transformer.pictures import plots
from mlx_transformer.pictures.attention import Attention, View, label
from mlx_transformer.pictures.attention_page import attention_page

SVG = "{http://www.w3.org/2000/svg}"
NASTY = ["▁<script>", "alert", '("hi")', "▁$x^2$", "▁&amp;", "▁Straße", "▁🐈", "</s>"]
GERMAN = ["▁Donau", "dampf", "schifffahrts", "gesellschaft", "▁läuft", ".", "</s>"]


def random_attention(source=NASTY, written=GERMAN, layers=2, h=3, seed=0) -> Attention:
    generator = np.random.default_rng(seed)

    def weights(queries, keys):
        powers = np.exp(generator.normal(0, 2, (layers, h, queries, keys)))
        return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)

    S, T = len(source), len(written)
    read = ["<s>", *written[:-1]]
    maps = {"encoder": weights(S, S), "decoder": weights(T, T), "cross": weights(T, S)}
    return Attention("text", "Text", source, read, written, **maps)


def svg(path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()


def words(root) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_heat_maps_show_every_weight_and_every_word_as_it_is(tmp_path):
    attention = random_attention()
    plots.draw_attention(attention, tmp_path / "maps.svg", View(layers=(1,), heads=(2, 3)))
    root = svg(tmp_path / "maps.svg")
    shown = words(root)
    for word in ("<script>", "·alert", '("hi")', "$x^2$", "&amp;", "Straße", "🐈", "</s>"):
        assert shown.count(word) >= 2, word  # once a head
    assert {"Donau", "·dampf", "·schifffahrts", "·gesellschaft", "head 2", "head 3"} <= {*shown}
    assert "Cross-attention, layer 1 of 2 (rows: being written, columns: text)" in shown
    maps = images(root)[:2]
    for image, weights in zip(maps, attention.cross[0, 1:], strict=True):
        expected = colormaps["Blues"](weights)[..., :3] * 255
        assert np.abs(cells(image, weights.shape) - expected).max() < 3


def images(root) -> list[np.ndarray]:
    """The bitmaps in a picture, which matplotlib stores upside down."""
    found = []
    for image in root.iter(f"{SVG}image"):
        data = image.get("{http://www.w3.org/1999/xlink}href").split(",", 1)[1]
        bitmap = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
        found.append(np.asarray(bitmap, dtype=float)[::-1])
    return found


def cells(image, shape) -> np.ndarray:
    """The colour in the middle of each cell: (rows, columns, 3)"""
    rows, columns = (
        ((np.arange(n) + 0.5) * size / n).astype(int)
        for n, size in zip(shape, image.shape, strict=False)
    )
    return image[rows[:, None], columns]


def lines(root) -> np.ndarray:
    """(lines, 5): the two heights, the thickness, the opacity and the head of each line"""
    found = []
    for path in root.iter(f"{SVG}path"):
        style, ends = path.get("style", ""), re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))
        if "stroke-opacity" in style and "fill: none" in style and len(ends) == 2:
            values = dict(re.findall(r"([\w-]+): ([^;]+)", style))
            head = [color.lower() for color in plots.COLORS].index(values["stroke"])
            thickness, opacity = (float(values[f"stroke-{x}"]) for x in ("width", "opacity"))
            found.append([float(ends[0][1]), float(ends[1][1]), thickness, opacity, head])
    return np.array(found)


def test_lines_join_the_words_with_the_thickness_of_the_weights(tmp_path):
    attention = random_attention()
    plots.draw_attention(attention, tmp_path / "lines.svg", View(kinds=("cross",), lines=True))
    root = svg(tmp_path / "lines.svg")
    drawn = lines(root)
    heads, queries, keys = np.nonzero(attention.cross[-1] > plots.VISIBLE)
    weights = attention.cross[-1][heads, queries, keys]
    assert np.array_equal(drawn[:, 4], heads)
    assert np.corrcoef(drawn[:, 2], weights)[0, 1] > 0.99999
    assert np.allclose(drawn[:, 3], np.sqrt(weights), atol=1e-4)
    for column, places, tokens in ((0, queries, GERMAN), (1, keys, NASTY)):
        # On either side a line ends within the row of its word.
        heights = {label(token): y for y, token in enumerate(tokens)}
        found = [t for t in root.iter(f"{SVG}text") if "".join(t.itertext()) in heights]
        own = found[: len(tokens)] if column == 0 else found[-len(tokens) :]
        height = np.array([float(text.get("y")) for text in own])
        row = height[1] - height[0]
        assert np.all(np.abs(drawn[:, column] - (height[places] - 0.15 * row)) < row / 2)
    assert {"head 1", "head 2", "head 3"} <= {*words(root)}


def test_a_word_leaves_only_its_own_lines(tmp_path):
    attention = random_attention()
    view = View(word="Donaudampfschifffahrtsgesellschaft")
    plots.draw_attention(attention, tmp_path / "word.svg", view)
    assert len(lines(svg(tmp_path / "word.svg"))) == np.sum(attention.cross[-1, :, :4] > 0.02)
    plots.draw_attention(attention, tmp_path / "key.svg", View(word="Straße"))
    assert len(lines(svg(tmp_path / "key.svg"))) == np.sum(attention.cross[-1, :, :, 5] > 0.02)


@pytest.mark.slow
def test_nothing_is_cut_at_forty_long_words(tmp_path):
    """Whatever touched the edge of the picture would be cut: around it all must be white."""
    long = ["▁Bundesausbildungsförderungsgesetz"] * 40 + ["</s>"]
    attention = random_attention(long, long, layers=1, h=1)
    for name, view in (("maps", View()), ("lines", View(lines=True)), ("word", View(word="</s>"))):
        plots.draw_attention(attention, tmp_path / f"{name}.png", view)
        picture = np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"))
        edge = [picture[:5], picture[-5:], picture[:, :5], picture[:, -5:]]
        assert min(part.min() for part in edge) == 255
        assert picture.min() < 50


def test_a_letter_without_font_is_reported_once(tmp_path):
    with pytest.warns(UserWarning, match="no font here has 🐈 - an .svg or .html file shows it"):
        plots.draw_attention(random_attention(), tmp_path / "cat.png", View())


@pytest.mark.parametrize("kinds", [("encoder", "decoder", "cross"), ("decoder",)])
def test_every_kind_and_layer_is_named(tmp_path, kinds):
    attention = random_attention(NASTY[-2:], GERMAN[-3:], h=2)
    for view in (View(kinds, None), View(kinds, None, lines=True)):
        plots.draw_attention(attention, tmp_path / "all.svg", view)
        titles = [word for word in words(svg(tmp_path / "all.svg")) if "layer" in word]
        assert len(titles) == len(set(titles)) == 2 * len(kinds)


def test_heads_differ_in_colour_or_dashes():
    assert len({plots.style(head) for head in range(1, 33)}) == 32


# Colour vision: Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "red-blind": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                  [-0.003882, -0.048116, 1.051998]],
    "green-blind": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                    [-0.011820, 0.042940, 0.968881]],
    "blue-blind": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def page_palettes() -> dict[str, tuple[str, list[str]]]:
    """(background, colours of the heads) of the page, light and dark, from its style."""
    page = attention_page(random_attention(), View())
    backgrounds = re.findall(r"--paper: (#\w+)", page)
    colors = [color for _, color in re.findall(r"--head-(\d): (#\w+)", page)]
    return {"light": (backgrounds[0], colors[:8]), "dark": (backgrounds[1], colors[8:])}


def test_page_and_pictures_share_their_colours():
    assert page_palettes()["light"] == ("#ffffff", list(plots.COLORS))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_told_apart_by_every_reader(scheme, vision):
    background, colors = page_palettes()[scheme]
    assert len(colors) == 8
    seen = [lab(np.array(VISIONS[vision]) @ linear(color)) for color in colors]
    assert min(difference(a, b) for a, b in itertools.combinations(seen, 2)) > 12
    assert min(contrast(color, background) for color in colors) >= 3  # WCAG 2, graphics


def linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    darker, lighter = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (lighter + 0.05) / (darker + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
              [0.0193339, 0.1191920, 0.9503041]]  # fmt: skip
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one: np.ndarray, two: np.ndarray) -> float:
    """CIEDE2000"""
    (L1, a1, b1), (L2, a2, b2) = one, two
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25**7))
    C1, C2 = np.hypot(a1 * stretch, b1), np.hypot(a2 * stretch, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a * stretch)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if C1 * C2 else 0
    L, C, h = (L1 + L2) / 2, (C1 + C2) / 2, h1 + turn / 2 if C1 * C2 else h1 + h2
    T = 1 - 0.17 * cos(h - 30) + 0.24 * cos(2 * h) + 0.32 * cos(3 * h + 6) - 0.2 * cos(4 * h - 63)
    dL = (L2 - L1) / (1 + 0.015 * (L - 50) ** 2 / np.sqrt(20 + (L - 50) ** 2))
    dC = (C2 - C1) / (1 + 0.045 * C)
    dH = 2 * np.sqrt(C1 * C2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * C * T)
    bend = 60 * np.exp(-((((h % 360) - 275) / 25) ** 2))
    R = -2 * np.sqrt(C**7 / (C**7 + 25**7)) * np.sin(np.radians(bend))
    return float(np.sqrt(dL**2 + dC**2 + dH**2 + R * dC * dH))


def cos(degrees: float) -> float:
    return float(np.cos(np.radians(degrees)))


def test_the_difference_of_colours_is_that_of_its_authors():
    """Pairs from the data that Sharma, Wu and Dalal (2005) published with the formula."""
    pairs = [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
    ]
    for one, two, expected in pairs:
        assert abs(difference(np.array(one), np.array(two)) - expected) < 1e-4


# Positions, learning rates, training


def test_the_position_table_is_drawn_cell_by_cell(tmp_path):
    table = np.random.default_rng(0).uniform(-1, 1, (20, 48))
    plots.draw_positions({"one": table, "two": -table}, tmp_path / "positions.svg")
    root = svg(tmp_path / "positions.svg")
    expected = colormaps["RdBu"]((table / np.abs(table).max() + 1) / 2)[..., :3] * 255
    assert np.abs(cells(images(root)[0], table.shape) - expected).max() < 4
    assert {"one", "two", "position", "dimension"} <= {*words(root)}


RECORDS = [
    {"kind": "training", "step": 100, "perplexity": 50.0, "learning_rate": 1e-3},
    {"kind": "training", "step": 200, "perplexity": 20.0, "learning_rate": 2e-3},
    {"kind": "validation", "step": 200, "perplexity": 25.0, "bleu": None},
]


def test_curves_of_what_the_runs_measured(tmp_path):
    plots.draw_curves({"one": RECORDS, "$two": RECORDS[:1]}, tmp_path / "curves.svg")
    shown = words(svg(tmp_path / "curves.svg"))
    titles = {"training perplexity", "validation perplexity", "learning rate", "one", "$two"}
    assert titles <= {*shown}
    assert "validation BLEU" not in shown
    scored = [*RECORDS, {"kind": "validation", "step": 300, "perplexity": 9.0, "bleu": 30.0}]
    plots.draw_curves({"one": scored}, tmp_path / "curves.svg")
    assert "validation BLEU" in words(svg(tmp_path / "curves.svg"))


def test_what_means_nothing_is_not_drawn(tmp_path):
    single_words = {"kind": "validation", "step": 300, "perplexity": 9.0, "bleu": 0.0}
    plots.draw_curves({"one": [*RECORDS, single_words]}, tmp_path / "curves.svg")
    assert "validation BLEU" not in words(svg(tmp_path / "curves.svg"))
    judged = single_words | {"bleu": None, "exact": 99.5}
    plots.draw_curves({"one": [*RECORDS, judged]}, tmp_path / "curves.svg")
    assert "exactly right, per cent" in words(svg(tmp_path / "curves.svg"))


def test_a_curve_runs_through_its_points(tmp_path):
    steps, rates = np.array([0.0, 50, 100]), np.array([0, 2.0, 1.0])
    plots.draw_schedules({"up and down": (steps, rates)}, tmp_path / "schedule.svg")
    style = f"stroke: {plots.COLORS[0].lower()}"
    path = next(
        p for p in svg(tmp_path / "schedule.svg").iter(f"{SVG}path") if style in p.get("style", "")
    )
    points = np.array(re.findall(r"[ML] (\S+) (\S+)", path.get("d")), dtype=float)
    assert np.allclose(
        np.ptp(points, axis=0) * [0.5, 0.5], np.abs(points[1] - [points[0, 0], points[2, 1]])
    )
    assert points[1, 1] < points[2, 1] < points[0, 1]  # down is up in SVG


def test_a_run_without_records_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match="nothing to draw yet"):
        plots.draw_curves({"one": []}, tmp_path / "curves.png")


def test_other_files_and_a_missing_matplotlib_are_sentences(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"ends in .png or .svg, not 'a.gif'"):
        plots.draw_curves({"one": RECORDS}, tmp_path / "a.gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RunError, match=r"pip install 'mlx-transformer\[plots\]'"):
        plots.draw_curves({"one": RECORDS}, tmp_path / "a.png")


def test_too_large_a_picture_is_refused(tmp_path):
    attention = random_attention(["▁a"] * 900, ["▁b"] * 3, layers=1, h=4)
    with pytest.raises(InputError, match="choose fewer kinds, layers or heads"):
        plots.draw_attention(attention, tmp_path / "wide.png", View())
