"""Figures 3 to 5 of the paper from the model that ships, and figures 1 and 2, into docs/paper.

    python tools/paper_figures.py

A head is chosen by what it does on all sentences of a kind, not on the one that is drawn: the head
of the encoder with the greatest mean weight from one word to the other. What it found is written
into docs/paper.md, sentences where it fails included. Run it again when the weights change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from paper_page import DOCS, write

from mlx_transformer import Translator, load
from mlx_transformer.cli.attention import attend
from mlx_transformer.cli.plot import architecture, positions, schedule
from mlx_transformer.pictures.architecture import draw_architecture
from mlx_transformer.pictures.attention import Attention, Panel, View, find_word, panels
from mlx_transformer.pictures.plots import draw_attention, draw_positions, draw_schedules

PICTURES = DOCS / "paper"
Sentence = tuple[str, str, str]  # the text, a word of it, and the word that it should look at

# A verb in two parts, far from each other: figure 3.
DISTANT: Sequence[Sentence] = (
    ("Where did the brother of your best friend buy this watch?", "did", "buy"),
    ("What did you buy yesterday?", "did", "buy"),
    ("When will your parents come home?", "will", "come"),
    ("Has your brother ever been to Germany?", "Has", "been"),
    ("She has already written the letter.", "has", "written"),
    ("I have never in my life seen such a thing.", "have", "seen"),
)
# A word that stands for another one: figure 4.
ANAPHORA: Sequence[Sentence] = (
    ("The woman sold her house because it was too big.", "her", "woman"),
    ("My sister lost her watch.", "her", "sister"),
    ("The girl closed her eyes.", "her", "girl"),
    ("The teacher opened her book.", "her", "teacher"),
    ("The boy washed his hands.", "his", "boy"),
    ("The old man forgot his umbrella.", "his", "man"),
    ("My father sold his car.", "his", "father"),
)
# Heads with jobs of their own, by how far from itself a word looks: figure 5.
JOBS = {"before": -1, "after": +1}
PLAIN = "My brother bought a new car, but he does not like it."


@dataclass(frozen=True)
class Head:
    """A head of the encoder, counted from 1, and how much of its weight did the job."""

    layer: int
    head: int
    weights: Sequence[float]  # by sentence
    even: float  # what they would be on average if it looked everywhere alike
    among: int  # so many heads

    @property
    def mean(self) -> float:
        return float(np.mean(self.weights))

    @property
    def verdict(self) -> str:
        if self.mean > 2 * self.even:
            return "does it best"
        return "comes closest, and that is not close: a model of this size has no such head"

    def view(self, word: str | None = None) -> View:
        return View(("encoder",), (self.layer,), (self.head,), word, lines=True)


def best_head(weights: np.ndarray, even: float) -> Head:
    """weights (sentences, layers, heads) -> the head with the greatest mean"""
    layer, head = np.unravel_index(weights.mean(0).argmax(), weights.shape[1:])
    found = weights[:, layer, head].tolist()
    return Head(int(layer) + 1, int(head) + 1, found, even, weights[0].size)


def places(panel: Panel, word: str) -> list[int]:
    return find_word(panel, word)[1]


def looking(sentences: Sequence[Sentence], attentions: Sequence[Attention]) -> Head:
    """The head that looks from the one word to the other."""
    weights, even = [], []
    for (_, word, other), attention in zip(sentences, attentions, strict=True):
        [[panel, *_]] = panels(attention, View(("encoder",), (1,)))
        queries, keys = places(panel, word), places(panel, other)
        weights.append(attention.encoder[:, :, queries][..., keys].sum(-1).mean(-1))
        even.append(len(keys) / len(attention.source))
    return best_head(np.stack(weights), float(np.mean(even)))


def shifting(offset: int, attentions: Sequence[Attention]) -> Head:
    """The head whose words look so many words further."""
    maps = [attention.encoder for attention in attentions]
    weights = [np.diagonal(each, offset, 2, 3).mean(-1) for each in maps]
    return best_head(np.stack(weights), float(np.mean([1 / each.shape[-1] for each in maps])))


def table(sentences: Sequence[Sentence], found: Head) -> Iterator[str]:
    yield "| | looks at | weight | sentence |"
    yield "|---|---|---|---|"
    for (text, word, other), weight in zip(sentences, found.weights, strict=True):
        yield f"| {word} | {other} | {weight:.2f} | {text} |"
    yield f"| | | **{found.mean:.2f}** | the mean; without a preference it would be "\
          f"{found.even:.2f} |"  # fmt: skip


def report(translator: Translator) -> tuple[str, dict[str, tuple[Attention, View]]]:
    """What the page says, and what is to be drawn under which name."""
    drawn: dict[str, tuple[Attention, View]] = {}
    lines: list[str] = []
    for number, title, sentences in (
        (3, "long-distance dependencies", DISTANT),
        (4, "anaphora", ANAPHORA),
    ):
        attentions = [attend(translator, text) for text, *_ in sentences]
        found = looking(sentences, attentions)
        name = f"figure{number}"
        word = sentences[0][1]
        drawn[name] = attentions[0], found.view(word)
        lines += [
            f"**Figure {number}, {title}.** Of the encoder's {found.among} heads, head "
            f"{found.head} of layer {found.layer} {found.verdict}:",
            "",
            f"![What {word!r} looks at]({PICTURES.name}/{name}.png)",
            "",
            *table(sentences, found),
            "",
        ]
    texts = [PLAIN, *(text for text, *_ in (*DISTANT, *ANAPHORA))]
    attentions = [attend(translator, text) for text in texts]
    lines += ["**Figure 5, heads with different jobs.**"]
    for job, offset in JOBS.items():
        found = shifting(offset, attentions)
        drawn[f"figure5-{job}"] = attentions[0], found.view()
        lines += [
            f"In head {found.head} of layer {found.layer} a word gives {found.mean:.2f} of its "
            f"weight to the word {job} it, over all {len(texts)} sentences (without a preference "
            f"{found.even:.2f})."
        ]
    lines += ["", *(f"![The word {job}]({PICTURES.name}/figure5-{job}.png)" for job in JOBS)]
    return "\n".join(lines), drawn


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    text, drawn = report(load())
    for name, (attention, view) in drawn.items():
        draw_attention(attention, PICTURES / f"{name}.png", view)
    draw_architecture(architecture("base"), "base", PICTURES / "architecture.png")
    draw_positions(positions("small"), PICTURES / "positions.png")
    recipes = ("wmt14-en-de-base", "wmt14-en-de-big")
    draw_schedules({name: schedule(name) for name in recipes}, PICTURES / "schedule.png")
    write("figures 3 to 5", text)


if __name__ == "__main__":
    main()
