"""Sentences a second of deployed models: ours beside the engines that they were made for.

    python tools/bench_deployed.py --firefox FOLDER --english TEXT --argos PACKAGE --chinese TEXT \\
        --write BENCHMARKS.md

It needs `fxtranslate` and `ctranslate2` beside this project (pip brings both), and a machine that
does nothing else. Loading and converting the models is not measured.
"""

import argparse
import json
import multiprocessing
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench_sides import (
    THREADS,
    Answer,
    Side,
    Works,
    in_turn,
    serve,
    table,
    where_and_when,
    write_section,
)

Translate = Callable[[], list[str]]

NOTE = """\
Sentences a second, text in, text out, each engine on {threads} cores with the whole text at \
once; ours in float32. A ratio below 1 means that the other engine is faster. fxtranslate has one \
thread: it runs as {threads} processes, each with its part of the text. The engines that multiply \
in int8 round, so not all lines are equal."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("firefox", "english", "argos", "chinese"):
        options.add_argument(f"--{name}", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=3, help="median of how many (default: 3)")
    options.add_argument("--lines", type=int, help="only the first of each text, to try it out")
    options.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this file")
    args = options.parse_args()
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        workspace = Path(temporary)
        prepare(workspace, args)
        ours, fx, ct2 = (
            stack.enter_context(Side(__file__, name, workspace)) for name in ("mlx", "fx", "ct2")
        )
        firefox = [(ours, "firefox"), (fx, "plain"), (ours, "shortlist"), (fx, "shortlist")]
        argos = [(ours, "argos"), (ct2, "float32"), (ct2, "int8")]
        found = [in_turn(works, args.rounds, "deployed") for works in (firefox, argos)]
    report = "\n\n".join(
        [
            where_and_when("fxtranslate", "ctranslate2"),
            NOTE.format(threads=THREADS),
            firefox_table(args.firefox.name, found[0]),
            argos_table(args.argos.name, found[1]),
        ]
    )
    print(report)
    if args.write:
        write_section(args.write, "Deployed models", report)


def firefox_table(model: str, answers: Sequence[Answer]) -> str:
    rows = [
        [title, rate(ours), f"{rate(theirs)} ({ratio(ours, theirs)})", equal(ours, theirs)]
        for title, (ours, theirs) in {
            "greedy": answers[:2],
            "greedy, with the shortlist": answers[2:],
        }.items()
    ]
    head = [f"`{model}`, {len(answers[0].result):,} sentences", "this project"]
    return table([*head, "fxtranslate int8", "equal lines"], rows)


def argos_table(model: str, answers: Sequence[Answer]) -> str:
    ours, *others = answers
    cells = [f"{rate(each)} ({ratio(ours, each)}; {equal(ours, each)} equal)" for each in others]
    head = [f"`{model}`, {len(ours.result):,} sentences", "this project"]
    return table(
        [*head, "CTranslate2 float32", "CTranslate2 int8"], [["beam 4", rate(ours), *cells]]
    )


def rate(answer: Answer) -> str:
    return f"{len(answer.result) / answer.seconds:,.1f}"


def ratio(ours: Answer, theirs: Answer) -> str:
    return f"{theirs.seconds / ours.seconds:.2f}x"


def equal(ours: Answer, theirs: Answer) -> str:
    same = sum(a == b for a, b in zip(ours.result, theirs.result, strict=True))
    return f"{same / len(ours.result):.1%}"


def prepare(workspace: Path, args: argparse.Namespace) -> None:
    """What the sides are told; Argos's package is unpacked for CTranslate2."""
    with zipfile.ZipFile(args.argos) as file:
        file.extractall(workspace / "argos")
    texts = {
        name: getattr(args, name).read_text(encoding="utf-8").splitlines()[: args.lines]
        for name in ("english", "chinese")
    }
    models = {name: str(getattr(args, name).resolve()) for name in ("firefox", "argos")}
    (workspace / "work.json").write_text(json.dumps({**texts, **models}))


def told(workspace: Path) -> dict[str, Any]:
    return json.loads((workspace / "work.json").read_text())


def load_ours(workspace: Path) -> Works:
    from mlx_transformer import load

    work = told(workspace)
    firefox, argos = load(work["firefox"]), load(work["argos"])

    def translate(translator: Any, text: str, **options: Any) -> Translate:
        return lambda: [
            found.text for found in translator.translate(work[text], whole_lines=True, **options)
        ]

    return {
        "firefox": translate(firefox, "english"),
        "shortlist": translate(firefox, "english", shortlist=True),
        "argos": translate(argos, "chinese"),  # as Argos searches: beam 4, length penalty 0.2
    }


ENGINES: dict[str, Any] = {}  # of one process of fxtranslate


def load_engines(folder: str) -> None:
    import fxtranslate

    def file(pattern: str) -> bytes:
        (path,) = Path(folder).glob(pattern)
        return path.read_bytes()

    model, words = file("model*.bin"), file("vocab*.spm")
    ENGINES["plain"] = fxtranslate.Translator(model, words, words)
    ENGINES["shortlist"] = fxtranslate.Translator(model, words, words, file("lex*.bin"))


def translate_with(kind: str, line: str) -> str:
    return ENGINES[kind].translate(line)


def load_fxtranslate(workspace: Path) -> Works:
    work = told(workspace)
    pool = multiprocessing.get_context("spawn").Pool(THREADS, load_engines, (work["firefox"],))

    def translate(kind: str) -> Translate:
        lines = [(kind, line) for line in work["english"]]
        return lambda: pool.starmap(translate_with, lines, chunksize=8)

    return {kind: translate(kind) for kind in ("plain", "shortlist")}


def load_ctranslate2(workspace: Path) -> Works:
    import ctranslate2
    import sentencepiece

    work = told(workspace)
    (model,) = (workspace / "argos").glob("*/model")
    pieces = sentencepiece.SentencePieceProcessor(str(model.parent / "sentencepiece.model"))

    def translate(kind: str) -> Translate:
        engine = ctranslate2.Translator(str(model), compute_type=kind, intra_threads=THREADS)

        def run() -> list[str]:
            cut = pieces.encode(work["chinese"], out_type=str)
            found = engine.translate_batch(
                cut, beam_size=4, length_penalty=0.2, max_batch_size=1024, batch_type="tokens"
            )
            texts = (pieces.decode(each.hypotheses[0]) for each in found)
            return [text.replace("▁", " ").strip() for text in texts]

        return run

    return {kind: translate(kind) for kind in ("float32", "int8")}


SIDES = {"mlx": load_ours, "fx": load_fxtranslate, "ct2": load_ctranslate2}

if __name__ == "__main__":
    import sys

    if "--worker" in sys.argv:
        serve(SIDES, *sys.argv[sys.argv.index("--worker") + 1 :])
    else:
        main()
