"""HTML in, HTML out: text is translated, every tag is kept, once and properly nested.

Block tags cut a page into passages, and each passage is one text to translate. Inline tags within
a passage are put around the words that the word alignment gives for those they were around.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlx_transformer.decoding.alignment import words_of
from mlx_transformer.decoding.translator import Translation

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
_VOID = {"img", "input", "wbr"}  # those that stand within a sentence
_CODE = {"code", "kbd", "samp", "var"}  # kept as it is, within a sentence
_RAW = {"script", "style", "textarea", "pre", "svg", "math", "template"}


@dataclass
class Node:
    """Inline tags around words [start, end) of a passage; a point where both are the same."""

    opening: str
    closing: str
    start: int
    end: int
    children: list["Node"] = field(default_factory=list)
    # It begins or ends beside punctuation of the same word, which stays outside.
    inside_first: bool = False
    inside_last: bool = False


Placed = tuple[Node, int, int]


class Passage:
    """A run of text with inline tags, as it is being read."""

    def __init__(self) -> None:
        self.raw = ""
        self.text = ""  # white space collapsed
        self.root = Node("", "", 0, 0)
        self._open = [self.root]

    def add_text(self, raw: str) -> None:
        self.raw += raw
        text = re.sub(r"\s+", " ", self.text[-1:] + html.unescape(raw))
        self.text = self.text[:-1] + (text if self.text else text.lstrip())

    def add_point(self, raw: str) -> None:
        self.raw += raw
        here = self._words_before()
        self._open[-1].children.append(Node(raw, "", here, here))

    def open(self, raw: str) -> None:
        self.raw += raw
        node = Node(raw, "", self._words_before(), 0)
        # "(<b>" and "un<b>": the word has begun before the tag.
        if self.text and not self.text.endswith(" "):
            node.start, node.inside_first = node.start - 1, True
        self._open[-1].children.append(node)
        self._open.append(node)

    def close(self, raw: str, name: str) -> None:
        """Matches the tag opened last; one that matches nothing is a point."""
        node = self._open[-1]
        if len(self._open) == 1 or not re.match(rf"<{re.escape(name)}\b", node.opening, re.I):
            self.add_point(raw)
            return
        self.raw += raw
        node.closing, node.end = raw, max(node.start, self._words_before())
        node.inside_last = not self.text.endswith(" ")
        self._open.pop()

    def finish(self) -> None:
        """What was opened and not closed here becomes points, and its children its neighbours."""
        while len(self._open) > 1:
            node = self._open.pop()
            siblings, node.children = node.children, []
            node.end, node.inside_first = node.start, False
            self._open[-1].children.extend(siblings)

    def _words_before(self) -> int:
        return len(self.text.split())

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
                passage.add_point(raw)
                continue
        elif name in _VOID or raw.startswith("<!--"):
            passage.add_point(raw)
            continue
        elif name in _INLINE:
            passage.close(raw, name) if tag["end"] else passage.open(raw)
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
    links = _links(found, len(passage.text.split()), len(words))
    before = passage.raw[: len(passage.raw) - len(passage.raw.lstrip())]
    after = passage.raw[len(passage.raw.rstrip()) :]
    starts, place = [], 0
    for word in words:
        starts.append(place)
        place += len(word) + 1
    text = " ".join(words)
    spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
    inner = _write(passage.root.children, links, spans, (0, len(words)), text, (0, len(text)))
    return before + inner + after


def _links(found: Translation, sources: int, targets: int) -> list[int]:
    """By word of the translation, the word of the text it comes from.

    Where tokenizers count words in another way, places are taken in proportion.
    """
    source_words = max(1, len(words_of(found.source_tokens)))
    target_words = max(1, len(words_of(found.tokens)))
    by_token = {target: source for source, target in found.alignment or []}
    links = []
    for j in range(targets):
        source = by_token.get(j * target_words // targets, j * source_words // targets)
        links.append(min(source * sources // source_words, sources - 1))
    return links


def _write(
    nodes: Sequence[Node],
    links: Sequence[int],
    spans: Sequence[tuple[int, int]],
    words: tuple[int, int],
    text: str,
    limits: tuple[int, int],
) -> str:
    """The text within `limits`, which are those of `words`, with these nodes in it."""
    out, place = "", limits[0]
    for node, first, last in _place(nodes, links, *words):
        start, end = _characters(node, spans, first, last, text)
        start = min(max(start, place), limits[1])
        end = min(max(end, start), limits[1])
        inner = _write(node.children, links, spans, (first, last), text, (start, end))
        out += html.escape(text[place:start], quote=False) + node.opening + inner + node.closing
        place = end
    return out + html.escape(text[place : limits[1]], quote=False)


def _characters(
    node: Node, spans: Sequence[tuple[int, int]], first: int, last: int, text: str
) -> tuple[int, int]:
    """From where to where in the text a node goes that is around words [first, last)"""
    if first == last:
        start = spans[first][0] if first < len(spans) else len(text)
        return start, start
    start, end = spans[first][0], spans[last - 1][1]
    while node.inside_first and start < end - 1 and not text[start].isalnum():
        start += 1
    while node.inside_last and end > start + 1 and not text[end - 1].isalnum():
        end -= 1
    return start, end


def _place(nodes: Sequence[Node], links: Sequence[int], low: int, high: int) -> list[Placed]:
    """Nodes and the words [first, last) they go around: apart from each other, in order."""
    free = [True] * (high - low)
    placed: list[Placed] = []
    for node in sorted(nodes, key=lambda node: node.start - node.end):  # the longest first
        first, last = _run(node, links, low, high, free)
        free[first - low : last - low] = [False] * (last - first)
        placed.append((node, first, last))
    return sorted(placed, key=lambda each: (each[1], each[2], each[0].start))


def _run(
    node: Node, links: Sequence[int], low: int, high: int, free: Sequence[bool]
) -> tuple[int, int]:
    """The free words in a row with most that come from the node's words and least that do not"""
    best, run = (0, 0, 0), (0, low)  # score, first, last; score and start of the current run
    for j in range(low, high):
        score, start = run if run[0] > 0 else (0, j)
        is_own = node.start <= links[j] < node.end
        score = score + (1 if is_own else -1) if free[j - low] else -1
        run = (score, start)
        if score > best[0]:
            best = (score, start, j + 1)
    return best[1:] if best[0] else (_point(node, links, low, high, free),) * 2


def _point(node: Node, links: Sequence[int], low: int, high: int, free: Sequence[bool]) -> int:
    """Before the first word that comes from the node's place or from behind it, within no other"""
    place = next((j for j in range(low, high) if links[j] >= node.start), high)
    while low < place < high and not free[place - low] and not free[place - low - 1]:
        place += 1
    return place
