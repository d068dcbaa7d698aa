"""Tags around words that changed places, with alignments written by hand."""

import random
import re
import time
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.decoding.translator import Translation
from mlx_transformer.serve.markup import Markup

Links = Sequence[int | Sequence[int]]


def translation(source: str, text: str, links: Links) -> Translation:
    """`links`: by word of the translation, the word or words of the source, strongest first"""
    return Translation(
        text,
        0.0,
        0.0,
        tokens=[f"▁{word}" for word in text.split()],
        source_tokens=[f"▁{word}" for word in source.split()],
        complete=True,
        alignment=[
            (i, j) for j, of in enumerate(links) for i in ([of] if isinstance(of, int) else of)
        ],
    )


def render(page: str, text: str, links: Links) -> str:
    markup = Markup(page)
    [source] = markup.texts
    return markup.render([translation(source, text, links)])


@pytest.mark.parametrize(
    ("page", "text", "links", "wanted"),
    [
        ("the <b>red</b> car", "das rote Auto", [0, 1, 2], "das <b>rote</b> Auto"),
        # words change places, and their tags with them
        ("a <i>b</i> <b>c</b>", "C B A", [2, 1, 0], "<b>C</b> <i>B</i> A"),
        # one tag around words that are no longer beside each other: the longest run
        ("<b>x y</b> z", "X Z Y Y", [0, 2, 1, 1], "X Z <b>Y Y</b>"),
        ("<a><b>x</b> y</a> z", "Z X Y", [2, 0, 1], "Z <a><b>X</b> Y</a>"),
        # punctuation stays outside where it was outside
        ("<b>Hi</b>, you", "Hallo, du", [0, 1], "<b>Hallo</b>, du"),
        ("(<b>Hi</b>) you", "(Hallo) du", [0, 1], "(<b>Hallo</b>) du"),
        ("x<img src='1'> y", "Y X", [1, 0], "<img src='1'>Y X"),
        ("1 &lt; 2", "1 < 2", [0, 1, 2], "1 &lt; 2"),
        ("<b>Hi, you.</b>", "Hallo, du.", [0, 1], "<b>Hallo, du.</b>"),
        # nothing comes from the word: the closest one that is in no other tag
        ("<b>x</b> y", "Y Y", [1, 1], "<b>Y</b> Y"),
        ("x <b>y</b> z", "X Q Z", [0, 0, 2], "X <b>Q</b> Z"),
        ("v <b>x</b> <i>y</i> z", "V Y Y Z", [0, 2, 2, 3], "<b>V</b> <i>Y Y</i> Z"),
        # one that comes from it among others, if its tag can spare it
        ("v <b>x</b> <i>y</i> z", "V Y Y Z", [0, [2, 1], 2, 3], "V <b>Y</b> <i>Y</i> Z"),
        ("v <b>x</b> <i>y</i> z", "V Y Z", [0, [2, 1], 3], "<b>V</b> <i>Y</i> Z"),
        # all words are in other tags: those that have several share
        ("<b>x</b> <i>y</i>", "Y Y", [1, 1], "<b>Y</b> <i>Y</i>"),
        ("<b>x y</b> z", "X Z Y Y", [0, [2, 1], 1, 1], "X Z <b>Y Y</b>"),
        # one word, two tags: it goes to the one it comes from
        ("<b>x</b> <i>y</i>", "Y", [1], "<b></b><i>Y</i>"),
        ("<b>x</b> <i>y</i>", "X", [0], "<b>X</b><i></i>"),
        # a tag is as wide as what it holds needs
        ("<a><b>x</b> <i>y</i></a> z", "Z Q X", [2, 2, 0], "Z <a><i>Q</i> <b>X</b></a>"),
        # a word of another tag in the middle is not swallowed
        ("<b>x y</b> <i>z</i>", "X X Z Y Y", [0, 0, 2, 1, 1], "<b>X X</b> <i>Z</i> Y Y"),
        # empty before, empty after
        ("x<b></b> y", "X Y", [0, 1], "X <b></b>Y"),
        # closed without having been opened, opened without being closed
        ("x</b> y", "X Y", [0, 1], "X </b>Y"),
        ("x <b>y", "X Y", [0, 1], "X <b>Y"),
        ("run <code>a  b</code> now", "Führe aus", [0, 1], "Führe <code>a  b</code> aus"),
        (
            "run <kbd>a</kbd> <var>b</var> now",
            "Führe aus",
            [0, 1],
            "Führe <kbd>a</kbd> <var>b</var> aus",
        ),
        ("now run <code>a</code> .", "Führe aus .", [1, 0, 2], "Führe aus <code>a</code>."),
        ("now run <code>a</code>.", "Führe aus.", [1, 0], "Führe aus <code>a</code>."),
        ("run: <code>a</code>", "Führe aus:", [0, 0], "Führe aus: <code>a</code>"),
        ("un<code>a</code>able", "unfähig", [0], "unfähig<code>a</code>"),
        ("run <code>a</code> (now)", "Führe (jetzt)", [0, 1], "Führe <code>a</code> (jetzt)"),
        ("run <code>a</code> „now“", "Führe „jetzt“", [0, 1], "Führe <code>a</code> „jetzt“"),
        ('run <code>a</code> "now"', 'Führe "jetzt"', [0, 1], 'Führe <code>a</code> "jetzt"'),
        # an element that holds nothing else is placed as it would be
        ("run <b><code>a</code></b> now", "Führe aus", [0, 1], "Führe <b><code>a</code></b> aus"),
        (
            "now run <b><code>a</code></b>.",
            "Führe aus.",
            [1, 0],
            "Führe aus <b><code>a</code></b>.",
        ),
        (
            "<i><b><code>a</code></b> <kbd>b</kbd></i> now",
            "Jetzt",
            [0],
            "<i><b><code>a</code></b> <kbd>b</kbd></i> Jetzt",
        ),
        ("run: <b><code>a</code></b>", "Führe aus:", [0, 0], "Führe aus: <b><code>a</code></b>"),
        ("(run <code>a</code>) now", "(Führe ) aus", [0, 1, 2], "(Führe <code>a</code>) aus"),
    ],
)
def test_inline_tags_follow_their_words(page, text, links, wanted):
    assert render(page, text, links) == wanted


def test_blocks_are_texts_of_their_own_and_the_rest_is_left_alone():
    page = (
        "<!DOCTYPE html><style>b{}</style><p>One\n  two.</p><ul><li>Three</li></ul>"
        '<script>if (a < b) "x"</script><p translate="no">Four</p><!-- five --><p> 6 </p>'
    )
    markup = Markup(page)
    assert markup.texts == ["One two.", "Three", "6"]
    same = [translation(text, text, [*range(len(text.split()))]) for text in markup.texts]
    assert markup.render(same) == page.replace("One\n  two.", "One two.")


words = st.sampled_from(["one", "two,", "(three)", "&amp;", " ", "\n", "<", "4", "—"])
any_tags = st.sampled_from(
    ["<b>", "</b>", "<i>", "</i>", "<a href='x'>", "</a>", "<img>", "<p>", "<br>"]
)
# Whatever is open is closed again.
inline = st.recursive(
    words | st.sampled_from(["<img>", "<b></b>", "un<i>re</i>al", "<code>c</code>"]),
    lambda inner: st.builds(
        lambda tag, parts: f"<{tag}>{' '.join(parts)}</{tag}>",
        st.sampled_from(["b", "i", "a", "span"]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


def translated(page: str, chance: random.Random, least: int = 1) -> str:
    """Rendered with words that come from any others"""
    markup = Markup(page)
    found = []
    for text in markup.texts:
        sources = range(len(text.split()))
        count = chance.randint(least, least + 5)
        links = [chance.choices(sources, k=chance.randint(1, 3)) for _ in range(count)]
        found.append(
            translation(text, " ".join(chance.choice(["w", "w,", "—"]) for _ in links), links)
        )
    return markup.render(found)


@given(st.lists(any_tags | words, max_size=25), st.randoms())
def test_every_tag_comes_out_once_and_no_text_becomes_a_tag(parts, chance):
    page = " ".join(parts)
    tags = re.compile("</?[a-z][^<>]*>")
    assert sorted(tags.findall(translated(page, chance))) == sorted(tags.findall(page))


class Elements(HTMLParser):
    """The elements of a page: by path, how many, and how many of them have text"""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[tuple[str, bool]] = []
        self.found: list[tuple[str, bool]] = []
        self.feed(page)
        self.close()
        assert not self._open, "an element is not closed"

    def handle_starttag(self, tag, attrs):
        if tag not in ("img", "br"):
            self._open.append((tag, False))

    def handle_data(self, data):
        if data.strip():
            self._open = [(tag, True) for tag, _ in self._open]

    def handle_endtag(self, tag):
        path = "/".join(name for name, _ in self._open)
        opened, has_text = self._open.pop()
        assert opened == tag, "elements overlap"
        self.found.append((path, has_text))


@given(st.lists(inline, max_size=6), st.randoms())
def test_what_was_around_words_stays_so_and_all_stays_nested(parts, chance):
    """With more words than there are elements none becomes empty."""
    page = " ".join(parts)
    before = sorted(Elements(page).found)
    assert sorted(Elements(translated(page, chance, least=page.count("</"))).found) == before
    few = Elements(translated(page, chance)).found
    assert sorted(path for path, _ in few) == [path for path, _ in before]
    broken = page.replace("(", "<br>(")  # in the middle of elements
    assert len(Elements(translated(broken, chance)).found) == len(before)


def test_what_is_nested_too_deeply_or_too_often_comes_out_as_it_was():
    deep = "<b>" * 5000 + "x" + "</b>" * 5000
    assert render(deep, "X", [0]) == deep.replace("x", "X")
    many = "<b>x</b> " * 4000 + "y"
    text = " ".join(["X"] * 4000 + ["Y"])
    begin = time.process_time()
    assert render(many, text, [*range(4001)]) == many.upper().replace("B>", "b>")
    assert len(re.findall("<b>[XY]</b>", render(many, text, [4000] * 4001))) == 4000
    assert time.process_time() - begin < 5  # seconds; going over all words for each tag takes more
