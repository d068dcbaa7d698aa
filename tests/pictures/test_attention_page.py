"""The page, opened in a real browser as a reader does: pointer, finger, keys, phone, dark."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mlx_transformer.pictures.attention import KINDS, View, label
from mlx_transformer.pictures.attention_page import attention_page
from tests.chromium import EXECUTABLE, Page
from tests.needs import missing
from tests.pictures.test_plots import GERMAN, NASTY, random_attention

TEXT = "<script>alert(\"hi\")</script> {{script}} & 'quotes' 🐈 </script><!--"


def attention_of_text(**options):
    return replace(random_attention(**options), text=TEXT, translation="<b>Fett</b> „Straße“ 🎉")


def test_the_page_holds_every_weight_and_asks_for_nothing():
    attention = attention_of_text()
    page = attention_page(attention, View())
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", page)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert data["text"] == TEXT
    for kind, stored in zip(KINDS, data["kinds"], strict=True):
        assert np.allclose(stored["layers"], attention.weights(kind), atol=5.1e-5)
        assert stored["queries"] == [label(token) for token in attention.tokens(kind)[0]]
        assert stored["keys"] == [label(token) for token in attention.tokens(kind)[1]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    if not EXECUTABLE:
        missing("there is no Chromium here")
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page at a size; afterwards the browser must have had nothing to complain about."""
    browser.errors.clear()
    browser.requests.clear()
    file = tmp_path / "attention.html"

    def open_page(attention, view=View(), width=1000, height=800, dark=False) -> Page:  # noqa: B008
        file.write_text(attention_page(attention, view), encoding="utf-8")
        browser.screen(width, height, dark)
        browser.open(file.as_uri())
        return browser

    yield open_page
    browser.evaluate("0")  # events that came before are read now
    assert browser.errors == []
    assert set(browser.requests) == {file.as_uri()}


def word(side: str, i: int) -> str:
    return f"document.querySelectorAll('.words.{side} .word')[{i}]"


def choice(fieldset: str, i: int) -> str:
    return f"document.querySelectorAll('#{fieldset} input')[{i}]"


def lines(page: Page) -> list[dict[str, float]]:
    """Ends, as numbers of rows, and thickness of every line."""
    return page.evaluate(
        "[...document.querySelectorAll('.lines line')].map(l => ({"
        "q: Math.floor(l.y1.baseVal.value), k: Math.floor(l.y2.baseVal.value),"
        "width: Number(l.getAttribute('stroke-width')), color: l.style.stroke}))"
    )


def expected(matrices, queries=None, keys=None) -> list[tuple[int, int, float]]:
    """(query, key, weight) of the lines that must be there: matrices (heads, queries, keys)"""
    return [
        (q, k, float(weight))
        for matrix in matrices
        for (q, k), weight in np.ndenumerate(np.round(matrix.astype(float), 4))
        if weight > 0.02 and (queries is None or q in queries) and (keys is None or k in keys)
    ]


def check_lines(page: Page, wanted: list[tuple[int, int, float]]) -> None:
    drawn = lines(page)
    assert [(line["q"], line["k"]) for line in drawn] == [(q, k) for q, k, _ in wanted]
    widths, weights = [line["width"] for line in drawn], [weight for *_, weight in wanted]
    assert np.corrcoef(widths, weights)[0, 1] > 0.99999


def test_text_is_shown_as_text(opened):
    page = opened(attention_of_text())
    assert page.evaluate("document.getElementById('text').textContent") == TEXT
    assert page.evaluate("document.title") == f"Attention: {TEXT}"
    names = "[...document.querySelectorAll('.words.{} .word')].map(w => w.textContent)"
    assert page.evaluate(names.format("keys")) == [label(token) for token in NASTY]
    assert page.evaluate(names.format("queries")) == [label(token) for token in GERMAN]
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate("document.querySelectorAll('b').length") == 0


def test_a_hovered_word_shows_its_lines_and_a_layer_changes_them(opened, tmp_path):
    attention = attention_of_text()
    page = opened(attention)
    check_lines(page, expected(attention.cross[1]))
    page.hover(word("queries", 2))
    check_lines(page, expected(attention.cross[1], queries=[2]))
    said = page.evaluate("document.getElementById('details').textContent")
    assert said.startswith("“·schifffahrts” attends to")
    best = int(attention.cross[1, 0, 2].argmax())
    share = attention.cross[1, 0, 2, best]
    assert f"Head 1 {label(NASTY[best])} {100 * share:.{0 if share > 0.0995 else 1}f}%" in said
    page.hover(word("keys", 5))
    check_lines(page, expected(attention.cross[1], keys=[5]))
    page.screenshot(tmp_path / "before.png")
    page.click(choice("layers", 0))
    check_lines(page, expected(attention.cross[0]))
    page.hover(word("keys", 5))
    page.screenshot(tmp_path / "after.png")
    before, after = (np.asarray(Image.open(tmp_path / f"{x}.png")) for x in ("before", "after"))
    assert before.shape == after.shape == (800, 1000, 3)
    assert np.any(before != after)


def test_kinds_and_heads(opened):
    attention = attention_of_text()
    page = opened(attention)
    page.click(choice("kinds", 1))
    check_lines(page, expected(attention.decoder[1]))
    page.click(choice("heads", 0))
    check_lines(page, expected(attention.decoder[1, 1:]))
    page.click("document.querySelectorAll('#heads button')[1]")
    assert lines(page) == []
    page.click(choice("heads", 2))
    check_lines(page, expected(attention.decoder[1, 2:]))
    page.click("document.querySelectorAll('#heads button')[0]")
    check_lines(page, expected(attention.decoder[1]))


def test_a_tap_keeps_a_word_and_a_second_one_lets_it_go(opened):
    attention = attention_of_text()
    page = opened(attention, width=360, height=740)
    page.tap(word("queries", 1))
    page.wait("document.querySelectorAll('[aria-pressed=true]').length === 1")
    check_lines(page, expected(attention.cross[1], queries=[1]))
    page.tap(word("queries", 1))
    page.wait("document.querySelectorAll('[aria-pressed=true]').length === 0")
    check_lines(page, expected(attention.cross[1]))


def test_everything_works_with_the_keyboard(opened):
    attention = attention_of_text()
    page = opened(attention)
    focused = "document.activeElement"
    page.press("Tab")
    assert page.evaluate(f"{focused}.name") == "kind"
    page.press("ArrowLeft")  # from cross to decoder
    check_lines(page, expected(attention.decoder[1]))
    for _ in range(20):
        page.press("Tab")
        if page.evaluate(f"{focused}.className.includes('word')"):
            break
    page.press("ArrowDown")
    page.press("ArrowDown")
    check_lines(page, expected(attention.decoder[1], queries=[2]))
    page.press("Enter")
    page.press("ArrowRight")
    check_lines(page, expected(attention.decoder[1], keys=[2]))
    page.press("End")
    check_lines(page, expected(attention.decoder[1], keys=[len(GERMAN) - 1]))
    page.press("Tab")  # away from the words: the one kept shows again
    page.evaluate("document.activeElement.blur()")
    check_lines(page, expected(attention.decoder[1], queries=[2]))
    page.press("Escape")
    check_lines(page, expected(attention.decoder[1]))


def test_heat_maps_with_pointer_and_keys(opened):
    attention = attention_of_text()
    page = opened(attention)
    page.click(choice("views", 1))
    alphas = page.evaluate(
        "[...document.querySelectorAll('canvas')].map(c => [...c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data].filter((_, i) => i % 4 === 3))"
    )
    drawn = np.array(alphas).reshape(attention.cross[1].shape) / 255
    assert np.abs(drawn - attention.cross[1]).max() < 0.003
    page.evaluate("document.querySelectorAll('.cells')[1].focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.press(key)
    said = "document.getElementById('details').textContent"
    weight = attention.cross[1, 1, 1, 2]
    assert page.evaluate(said).startswith('Head 2: “·dampf” attends to “("hi")” with ')
    assert abs(float(page.evaluate(said).split()[-1][:-1]) / 100 - weight) <= 0.005
    page.hover("document.querySelectorAll('canvas')[0]")
    assert page.evaluate(said).startswith("Head 1: ")
    page.tap("document.querySelectorAll('canvas')[2]")
    page.wait(f"{said}.startsWith('Head 3: ')")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", [0, 1], ids=["lines", "map"])
def test_forty_words_on_a_phone(opened, tmp_path, dark, view):
    """At 360 pixels nothing is cut: what is wider than the screen scrolls within its own box."""
    words = [*(["▁Stimmabgabe", "▁Registrierungs", "verfahren", "▁the"] * 10), "</s>"]
    page = opened(random_attention(words, words, layers=2, h=8), width=360, height=740, dark=dark)
    page.click(choice("views", view))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    cut = "[...document.querySelectorAll('{}')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.evaluate(cut.format(".word, .rows span, .columns span") + ".length") == 0
    if view == 0:
        edges = page.evaluate(
            "[...document.querySelectorAll('.word')].map(e => e.getBoundingClientRect())"
            ".map(r => [r.left, r.right])"
        )
        assert np.min(edges) >= 0 and np.max(edges) <= 360
    page.screenshot(tmp_path / "phone.png")
    corner = Image.open(tmp_path / "phone.png").convert("RGB").getpixel((2, 2))
    assert (sum(corner) < 100) == dark


def test_a_page_opens_where_it_was_asked_to(opened):
    attention = attention_of_text()
    page = opened(attention, View(("encoder",), (1,), (3,), "Straße"))
    check_lines(page, expected(attention.encoder[0, 2:], queries=[5]))


def test_controls_have_names_and_groups(opened):
    page = opened(attention_of_text())
    controls = "[...document.querySelectorAll('input, button')].map(e => (e.labels?.[0] ?? e)"
    assert all(page.evaluate(controls + ".textContent)"))
    legends = "[...document.querySelectorAll('legend')].map(l => l.textContent)"
    assert page.evaluate(legends) == ["Attention", "View", "Layer", "Heads"]
