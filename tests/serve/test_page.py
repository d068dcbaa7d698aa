"""The page in a real browser, as people use it: type, hover, click, drop, swap; phone and dark."""

import time
from collections.abc import Iterator

import pytest
from PIL import Image

from mlx_transformer import load
from tests.chromium import EXECUTABLE, Page
from tests.needs import missing
from tests.serve.running import Running, running

pytestmark = pytest.mark.slow

TEXT = "Good morning. I would like to know where you bought this watch."
GREETING = load().translate("Good morning.").text
GERMAN = load().translate(TEXT).text
QUESTION = "Where is the train station?"
ANSWER = load().translate(QUESTION).text
SHOWN = "document.getElementById('translation').textContent"
WORDS = "[...document.querySelectorAll('.word')]"


@pytest.fixture(scope="module")
def both_ways() -> Iterator[Running]:
    """The shipped model in both directions: what it makes of German does not matter here."""
    with running("--model", "en-de=weights/en-de", "--model", "de-en=weights/en-de") as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    if not EXECUTABLE:
        missing("there is no Chromium here")
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def page(browser, both_ways) -> Iterator[Page]:
    """Opened afresh; afterwards nothing was complained of, and nobody else was asked."""
    browser.errors.clear()
    browser.requests.clear()
    browser.screen(1200, 760)
    browser.open(both_ways.address)
    browser.evaluate("localStorage.clear()")
    browser.open(both_ways.address + "/")
    browser.wait("document.getElementById('target').value === 'de'")
    yield browser
    browser.evaluate("0")  # events that came before are read now
    assert browser.errors == []
    here = both_ways.address
    assert all(url.startswith((here, f"blob:{here}")) for url in browser.requests)


def write(page: Page, text: str) -> None:
    page.evaluate("document.getElementById('text').focus()")
    page.call("Input.insertText", text=text)


def translated(page: Page, text: str = TEXT, wanted: str = GERMAN) -> None:
    write(page, text)
    page.wait(f"{SHOWN} === {wanted!r} && !document.querySelector('.growing')")


def test_a_typed_text_is_translated_as_it_grows(page, tmp_path):
    write(page, "Where is")
    page.wait(f"{SHOWN}.length > 0")
    write(page, " the train station?")
    page.wait(f"{SHOWN} === {ANSWER!r}")
    assert page.evaluate("document.getElementById('count').textContent") == "27 characters"
    history = "[...document.querySelectorAll('#history button')].map(b => b.textContent)"
    page.wait(f"{history}.length === 1")
    assert page.evaluate(history) == [QUESTION + ANSWER]


def test_a_word_shows_its_counterpart(page):
    translated(page)
    page.hover(f"{WORDS}[0]")
    marked = "[...document.querySelectorAll('#shadow mark')].map(m => m.textContent)"
    greeting = load().translate("Good morning.", attention=True)
    words = ["Good", "morning."]
    assert page.evaluate(marked) == [words[i] for i, j in sorted(greeting.alignment) if j == 0]
    over, under = (
        page.evaluate(f"document.getElementById('{name}').getBoundingClientRect().toJSON()")
        for name in ("text", "shadow")
    )
    assert (over["x"], over["y"], over["width"]) == (under["x"], under["y"], under["width"])


def test_another_way_to_say_a_sentence(page):
    translated(page)
    page.click(f"{WORDS}[3]")
    page.wait("document.querySelectorAll('#others button').length > 0")
    other = page.evaluate("document.querySelector('#others button').textContent")
    ranked = load().translate(TEXT.split(". ")[1], nbest=5, beam=5)
    assert other in [each.text for each in ranked.alternatives]
    page.press("Enter")  # the first one has the focus
    page.wait(f"{SHOWN} === {GREETING + ' ' + other!r}")
    assert page.evaluate("document.getElementById('menu').hidden")
    page.press("Enter")  # and now the sentence has it
    page.wait("!document.getElementById('menu').hidden")
    page.press("Escape")
    assert page.evaluate("document.getElementById('menu').hidden")


def test_what_the_model_looked_at(page, both_ways, tmp_path):
    translated(page)
    page.click("document.querySelectorAll('.sentence')[0]")
    page.wait("document.querySelectorAll('#others button').length > 0")
    page.click("document.getElementById('look')")
    page.wait("document.getElementById('attention').open")
    count = 'mlx_transformer_requests_total{path="/attention",status="200"} 1'
    for _ in range(200):
        if count in both_ways.client.get("/metrics").text:
            break
        time.sleep(0.05)
    assert count in both_ways.client.get("/metrics").text
    page.screenshot(tmp_path / "attention.png")
    colours = Image.open(tmp_path / "attention.png").convert("RGB").getcolors(1 << 20)
    assert len(colours) > 100  # the lines of its heads
    page.press("Escape")
    page.wait("!document.getElementById('attention').open")


def test_a_dropped_file_is_translated_and_saved(page, tmp_path):
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.evaluate(
        "(() => { const data = new DataTransfer();"
        f"data.items.add(new File([{TEXT!r}], 'letter.txt', {{type: 'text/plain'}}));"
        "for (const type of ['dragenter', 'drop']) document.body.dispatchEvent("
        "new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true})); })()"
    )
    page.wait(f"{SHOWN} === {GERMAN!r}")
    page.click("document.getElementById('save')")
    saved = tmp_path / "letter.de.txt"
    for _ in range(200):
        if saved.exists():
            break
        time.sleep(0.05)
    assert saved.read_text(encoding="utf-8") == GERMAN


def test_languages_are_swapped(page):
    translated(page)
    page.click("document.getElementById('swap')")
    page.wait("document.getElementById('source').value === 'de'")
    assert page.evaluate("document.getElementById('text').value") == GERMAN
    page.wait("!document.querySelector('.growing') && !!document.querySelector('.word')")
    page.evaluate("document.getElementById('source').value = 'auto'")
    page.evaluate("document.getElementById('source').onchange()")
    page.wait("document.getElementById('source').options[0].textContent === 'Detected: German'")
    page.click("document.getElementById('swap')")  # knows the language that was detected
    page.wait("document.getElementById('source').value === 'en'")
    assert page.evaluate("document.getElementById('target').value") == "de"


def test_text_is_shown_as_text(page):
    nasty = "Good morning. <img src=x onerror=alert(1)> & <b>bold</b>"
    write(page, nasty)
    page.wait("!document.querySelector('.growing') && !!document.querySelector('.word')")
    assert (
        page.evaluate("document.querySelectorAll('#translation img, #translation b').length") == 0
    )
    assert page.evaluate("document.querySelectorAll('#history img').length") == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone(page, tmp_path, dark):
    translated(page)
    others = "document.querySelectorAll('#others button').length > 0"
    page.click(f"{WORDS}[3]")  # on a wide screen, far to the right
    page.wait(others)
    page.press("Escape")
    page.screen(360, 740, dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.tap(f"{WORDS}[3]")
    page.wait(others)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.evaluate("document.getElementById('menu').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= 360


def test_every_control_has_a_name(page):
    translated(page)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, textarea, input:not([type=hidden])')]"
        ".filter(e => e.offsetParent && !(e.ariaLabel || e.textContent.trim() ||"
        " e.labels?.[0]?.textContent.trim())).map(e => e.outerHTML)"
    )
    assert unnamed == []
    order = []
    page.evaluate("document.body.focus()")
    for _ in range(14):
        page.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"source", "swap", "target", "text", "copy", "save", "sentence"} <= set(order)
