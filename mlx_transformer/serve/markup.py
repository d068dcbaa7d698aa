"""HTML in, HTML out: text is translated, every tag is kept, once and properly nested.

Block tags cut a page into passages, and each passage is one text to translate. Inline tags within
a passage are put around the words that the word alignment gives for those they were around, and
what was around words stays so as long as there are words enough (`placing.py`).
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from mlx_transformer.decoding.alignment import words_of
from mlx_transformer.decoding.translator import Translation
from mlx_transformer.serve.placing import Links, Span, runs_for

# No tag is longer: a stray `<` must not have the rest of the page searched for its end.
_TAG = re.compile(
    r"<!--.*?-->|<[!?][^>]{0,2000}>"
    r"""|<(?P<end>/?)(?P<name>[a-zA-Z][^\s>/]{0,60})(?:"[^"]{0,2000}"|'[^']{0,2000}'|[^'">]){0,500}>""",
    re.DOTALL,
)
_UNTRANSLATED = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["'][^"']*\bnotranslate\b"""
)
_INLINE = {
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font"),
    *("i", "ins", "label", "mark", "q", "s", "small", "span", "strike", "strong", "sub", "sup"),
    *("time", "tt", "u"),
}
_PUNCTUATION = (*".,;:!?",)
_OPENING = (*'([{„“«"',)  # a word may begin with one of these
_VOID = {"img", "input", "wbr"}  # those that stand within a sentence
_CODE = {"code", "kbd", "samp", "var"}  # kept as it is, within a sentence
# Elements within elements; what is opened deeper inside stays where it is, but holds no words.
_DEEPEST = 50
_RAW = {"script", "style", "textarea", "pre", "svg", "math", "template"}


@dataclass
class Node:
    """Inline tags around words [start, end) of a passage; a point where both are the same."""

    opening: str
    closing: str
    start: int
    end: int
    children: list["Node"] = field(default_factory=list)
    needs: int = 0  # words, so that neither it nor a child that has text becomes empty
    is_word: bool = False  # it is read like a word: a space goes between it and its neighbour
    # It begins or ends beside punctuation of the same word, which stays outside.
    inside_first: bool = False
    inside_last: bool = False


class Passage:
    """A run of text with inline tags, as it is being read."""

    def __init__(self) -> None:
        self.raw = ""
        self.text = ""  # white space collapsed
        self.words = 0
        self.root = Node("", "", 0, 0)
        self._open = [(self.root, 0, 0)]  # and how much text there was before, and how much raw

    def add_text(self, raw: str) -> None:
        self.raw += raw
        text = re.sub(r"\s+", " ", self.text[-1:] + html.unescape(raw))
        self.words += len(text.split()) - self._within_word
        self.text = self.text[:-1] + (text if self.text else text.lstrip())

    def add_point(self, raw: str) -> Node:
        self.raw += raw
        node = Node(raw, "", self.words, self.words)
        self._children.append(node)
        return node

    def add_word(self, raw: str, behind: str) -> None:
        """An element that is read and not translated, and the character behind it"""
        self._make_word(self.add_point(raw), behind)

    def _make_word(self, node: Node, behind: str) -> None:
        node.is_word = not self._within_word or behind.isspace()
        node.inside_last = behind in _PUNCTUATION

    def open(self, raw: str) -> None:
        if len(self._open) > _DEEPEST:
            self.add_point(raw)
            return
        node = Node(raw, "", self.words, self.words)
        self._children.append(node)
        self._open.append((node, len(self.text.rstrip()), len(self.raw)))
        self.raw += raw

    def close(self, raw: str, name: str, behind: str) -> None:
        """Matches the tag opened last; one that matches nothing is a point."""
        node, before, opened = self._open[-1]
        if len(self._open) == 1 or not re.match(rf"<{re.escape(name)}\b", node.opening, re.I):
            self.add_point(raw)
            return
        self.raw += raw
        node.closing = raw
        self._open.pop()
        if len(self.text.rstrip()) > before:
            # "(<b>" and "un<b>": the word has begun before the tag.
            node.inside_first = before > 0 and self.text[before] != " "
            node.start, node.end = node.start - node.inside_first, self.words
            node.inside_last = self.text[-1].isalnum()
            node.needs = max(1, sum(child.needs for child in node.children))
        elif any(child.is_word for child in node.children):  # it holds nothing to translate
            node.opening, node.closing, node.children = self.raw[opened:], "", []
            self._make_word(node, behind)

    def finish(self) -> None:
        """What was opened and not closed here becomes points, and its children its neighbours."""
        while len(self._open) > 1:
            node, *_ = self._open.pop()
            siblings, node.children = node.children, []
            self._children.extend(siblings)

    @property
    def _children(self) -> list[Node]:
        return self._open[-1][0].children

    @property
    def _within_word(self) -> bool:
        return bool(self.text) and self.text[-1] != " "

    @property
    def is_text(self) -> bool:
        return any(character.isalnum() for character in self.text)


class Markup:
    """A page: `texts` are to be translated, `render` puts the translations in their place."""

    def __init__(self, page: str) -> None:
        self._parts: list[str | Passage] = []
        for part in _parts(page):
            if isinstance(part, Passage):
                part.finish()
                part = part if part.is_text else part.raw
            self._parts.append(part)

    @property
    def texts(self) -> list[str]:
        return [part.text.strip() for part in self._parts if isinstance(part, Passage)]

    def render(self, translations: Sequence[Translation]) -> str:
        found = iter(translations)
        return "".join(
            part if isinstance(part, str) else _render(part, next(found)) for part in self._parts
        )


def _parts(page: str) -> Iterator[str | Passage]:
    """Passages, and between them what is not translated."""
    passage, place = Passage(), 0
    while place < len(page):
        tag = _TAG.search(page, place)
        passage.add_text(page[place : tag.start() if tag else len(page)])
        if tag is None:
            break
        name, raw = (tag["name"] or "").lower(), tag[0]
        place = tag.end()
        if not tag["end"] and (name in _RAW | _CODE or _UNTRANSLATED.search(raw)):
            place = _end_of(page, name, place)
            raw = page[tag.start() : place]
            if name in _INLINE | _CODE:
                passage.add_word(raw, page[place : place + 1])
                continue
        elif name in _VOID or raw.startswith("<!--"):
            passage.add_point(raw)
            continue
        elif name in _INLINE:
            behind = page[place : place + 1]
            passage.close(raw, name, behind) if tag["end"] else passage.open(raw)
            continue
        yield passage
        yield raw
        passage = Passage()
    yield passage


def _end_of(page: str, name: str, place: int) -> int:
    """Where the element that was opened before `place` ends, others of its name inside it"""
    depth = 1
    for tag in re.finditer(rf"<(/?){re.escape(name)}\b[^>]{{0,2000}}>", page[place:], re.I):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return place + tag.end()
    return len(page)


def _render(passage: Passage, found: Translation) -> str:
    words = found.text.split()
    before = passage.raw[: len(passage.raw) - len(passage.raw.lstrip())]
    after = passage.raw[len(passage.raw.rstrip()) :]
    ends = list(accumulate(len(word) + 1 for word in words))
    spans = [(end - len(word) - 1, end - 1) for end, word in zip(ends, words, strict=True)]
    written = Written(" ".join(words), spans, _links(found, passage.words, len(words)))
    inner = written.around(passage.root.children, (0, len(words)), (0, len(written.text)))
    return before + inner + after


def _links(found: Translation, sources: int, targets: int) -> Links:
    """By word of the translation, the words of the text it comes from, the first one most of all.

    Where tokenizers count words in another way, places are taken in proportion.
    """
    source_words = max(1, len(words_of(found.source_tokens)))
    target_words = max(1, len(words_of(found.tokens)))
    by_token: dict[int, list[int]] = {}
    for source, target in found.alignment or []:
        by_token.setdefault(target, []).append(source)
    links = []
    for j in range(targets):
        linked = by_token.get(j * target_words // targets, [j * source_words // targets])
        links.append([min(source * sources // source_words, sources - 1) for source in linked])
    return links


@dataclass(frozen=True)
class Written:
    """A translation: its words' places in the text, and the words of the source they come from."""

    text: str
    spans: Sequence[Span]
    links: Links

    def around(self, nodes: Sequence[Node], words: Span, limits: Span) -> str:
        """The text within `limits`, which are those of `words`, with these nodes in it."""
        out, written = "", limits[0]
        runs = runs_for(nodes, self.links, *words)
        for n in sorted(range(len(nodes)), key=lambda n: (runs[n], n)):
            node, (first, last) = nodes[n], runs[n]
            start, end = self._characters(node, first, last)
            start = min(max(start, written), limits[1])
            end = min(max(end, start), limits[1])
            inner = node.opening + self.around(node.children, (first, last), (start, end))
            out += self._escaped(written, start) + self._spaced(node, inner + node.closing, start)
            written = end
        return out + self._escaped(written, limits[1])

    def _spaced(self, node: Node, written: str, start: int) -> str:
        if not node.is_word:
            return written
        before = " " if self.text[:start][-1:] not in ("", " ") else ""
        behind = self.text[start : start + 1]
        return before + written + (" " if behind.isalnum() or behind in _OPENING else "")

    def _characters(self, node: Node, first: int, last: int) -> Span:
        """From where to where in the text a node goes that is around words [first, last)"""
        if first == last:
            start = self.spans[first][0] if first < len(self.spans) else len(self.text)
            if start == len(self.text) and node.is_word and node.inside_last:
                start = len(self.text.rstrip("".join(_PUNCTUATION)))
            return start, start
        start, first_end = self.spans[first]
        last_start, end = self.spans[last - 1]
        while node.inside_first and start < first_end - 1 and not self.text[start].isalnum():
            start += 1
        last_start = max(start, last_start)
        while node.inside_last and end > last_start + 1 and not self.text[end - 1].isalnum():
            end -= 1
        return start, end

    def _escaped(self, start: int, end: int) -> str:
        return html.escape(self.text[start:end], quote=False)
