"""Tags around words that changed places, with alignments written by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.decoding.translator import Translation
from mlx_transformer.serve.markup import Markup


def translation(source: str, text: str, links: list[int]) -> Translation:
    """`links`: by word of the translation, the word of the source."""
    return Translation(
        text,
        0.0,
        0.0,
        tokens=[f"▁{word}" for word in text.split()],
        source_tokens=[f"▁{word}" for word in source.split()],
        complete=True,
        alignment=[(i, j) for j, i in enumerate(links)],
    )


def render(page: str, text: str, links: list[int]) -> str:
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
        # nothing was aligned with the word: the tag is there all the same
        ("<b>x</b> y", "Y Y", [1, 1], "<b></b>Y Y"),
        # closed without having been opened, opened without being closed
        ("x</b> y", "X Y", [0, 1], "X </b>Y"),
        ("x <b>y", "X Y", [0, 1], "X <b>Y"),
        ("run <code>a  b</code> now", "Führe aus", [0, 1], "Führe <code>a  b</code>aus"),
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


tags = st.sampled_from(
    ["<b>", "</b>", "<i>", "</i>", "<a href='x'>", "</a>", "<img>", "<p>", "<br>"]
)
words = st.sampled_from(["one", "two,", "(three)", "&amp;", " ", "\n", "<", "4"])


@given(st.lists(tags | words, max_size=25), st.randoms())
def test_every_tag_comes_out_once_and_no_text_becomes_a_tag(parts, random):
    page = " ".join(parts)
    markup = Markup(page)
    found = []
    for text in markup.texts:
        count = len(text.split())
        links = [random.randrange(count) for _ in range(random.randint(1, 6))]
        found.append(translation(text, " ".join("w" for _ in links), links))
    out = markup.render(found)
    assert sorted(re.findall("</?[a-z][^<>]*>", out)) == sorted(re.findall("</?[a-z][^<>]*>", page))
