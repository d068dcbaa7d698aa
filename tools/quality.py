"""How good a model is: BLEU, chrF and TER on test sets, by search, precision and length.

    python tools/quality.py weights/en-de --test Tatoeba DIR/test.en DIR/test.de \\
        --test NTREX DIR/ntrex.en DIR/ntrex.de --sentences DIR/first-sentences.en

Prints Markdown: a table of scores with sacrebleu's signatures, BLEU by length of the source, and
the translations of the sentences to look at. Beam 4 and the weights as they are; with `--all` also
greedy search, and the weights in 8 and 4 bits.
"""

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mlx_transformer import SearchOptions, Translator, load
from mlx_transformer.convert.conversion import convert
from mlx_transformer.data.metrics import Metric, measure

METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter")
LENGTHS = ((1, 5), (6, 10), (11, 20), (21, 30), (31, 10_000))  # words of the source


class TestSet(NamedTuple):
    name: str
    sources: list[str]
    references: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--test", nargs=3, action="append", metavar=("NAME", "SOURCE", "REFERENCE"))
    parser.add_argument("--sentences", type=Path, help="also print how these are translated")
    parser.add_argument("--all", action="store_true", help="greedy search, 8 and 4 bits as well")
    args = parser.parse_args()
    tests = [TestSet(name, lines(source), lines(target)) for name, source, target in args.test]
    with tempfile.TemporaryDirectory() as folder:
        print_scores(args.model, tests, Path(folder), everything=args.all)
    if args.sentences:
        sources = lines(args.sentences)
        written = texts(load(args.model), sources)
        print_table(("source", "translation"), zip(sources, written, strict=True))


def print_scores(model: Path, tests: Sequence[TestSet], folder: Path, *, everything: bool) -> None:
    models = {"as it ships": model}
    if everything:
        for bits in (8, 4):
            models[f"{bits} bits"] = folder / f"{bits}"
            convert(model, models[f"{bits} bits"], bits=bits)
    scores, by_length, signatures = [], [], {}
    for precision, directory in models.items():
        translator = load(directory)
        for beam in (4, 1) if everything else (4,):
            for test in tests:
                written = texts(translator, test.sources, beam)
                found = measure(METRICS, written, test.references)
                signatures = {metric: signature for metric, (_, signature) in found.items()}
                figures = (f"{found[metric][0]:.2f}" for metric in METRICS)
                scores.append((test.name, f"beam {beam}", precision, *figures))
                if precision == "as it ships" and beam == 4:
                    by_length.append((test.name, *bleu_by_length(test, written)))
    print_table(("test set", "search", "weights", "BLEU", "chrF2", "TER"), scores)
    print_table(("BLEU by words of the source", *map(bounds, LENGTHS)), by_length)
    print("\n".join(f"{metric}: `{text}`" for metric, text in signatures.items()), end="\n\n")


def texts(translator: Translator, sources: Sequence[str], beam: int = 4) -> list[str]:
    return [found.text for found in translator.translate(sources, SearchOptions(beam=beam))]


def bleu_by_length(test: TestSet, written: Sequence[str]) -> list[str]:
    """BLEU of the sentences of each length, and how many there are."""
    cells = []
    for least, most in LENGTHS:
        chosen = [i for i, line in enumerate(test.sources) if least <= len(line.split()) <= most]
        if not chosen:
            cells.append("")
            continue
        references = [test.references[i] for i in chosen]
        bleu, _ = measure(["bleu"], [written[i] for i in chosen], references)["bleu"]
        cells.append(f"{bleu:.1f} ({len(chosen):,})")
    return cells


def bounds(length: tuple[int, int]) -> str:
    least, most = length
    return f"{least} to {most}" if most < LENGTHS[-1][1] else f"{least} and more"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")
    print()


def lines(path: str | Path) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()
