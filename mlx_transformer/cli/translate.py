"""`mlx-transformer translate`: a text, a file or a pipe; on a terminal, a prompt."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from mlx_transformer.cli.failures import naming_output
from mlx_transformer.cli.lines import STDIN, Lines, check_files, is_file, standard_input
from mlx_transformer.cli.opening import add_language_flags, add_model_flags, open_translator
from mlx_transformer.cli.output import tell, to_json
from mlx_transformer.cli.searching import (
    Meter,
    ProgressBar,
    add_search_flags,
    notes,
    options_of,
)
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import without_controls

if TYPE_CHECKING:
    from mlx_transformer.decoding.completer import Completion
    from mlx_transformer.decoding.translator import Translation

    Written = TypeVar("Written", Translation, Completion)

LONG_LINE = 10_000  # letters

EPILOG = """\
examples:
  mlx-transformer translate "Where is the train station?"
  mlx-transformer translate --input news.en --output news.de --beam 4
  mlx-transformer translate < news.en > news.de
  mlx-transformer translate --sample --temperature 0.8 --seed 7 "Once upon a time"
  mlx-transformer translate --model facebook/nllb-200-distilled-600M --to French "Good morning."
  mlx-transformer translate --model Helsinki-NLP/opus-mt-en-de --reverse "Guten Morgen."
  mlx-transformer translate                    (a prompt; :help lists its commands)

Every line gives one line. With --nbest each gives several, as: LINE ||| TRANSLATION ||| SCORE
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Translate a text, a file or a pipe; on a terminal, open a prompt."
    parser.epilog = EPILOG
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to translate; - is stdin")
    parser.add_argument("--input", metavar="FILE", help="translate its lines; - is stdin")
    parser.add_argument("--output", metavar="FILE", help="write here instead of to stdout")
    parser.add_argument(
        "--prefix", metavar="TEXT", default="", help="what every translation begins with"
    )
    parser.add_argument(
        "--json", action="store_true", help="one object a line, with scores and word alignment"
    )
    add_model_flags(parser)
    add_language_flags(parser)
    add_search_flags(parser)


def run(args: argparse.Namespace) -> None:
    if args.text is not None and args.input is not None:
        raise InputError("give a text or --input FILE, not both")
    source = STDIN if args.text == STDIN else args.input
    if args.text is None and source is None:
        if standard_input().isatty() and args.output is None and not args.json:
            from mlx_transformer.cli.repl import Repl

            return Repl(args, partial(options_of, args)).run()
        source = STDIN
    check_files(source, args.output)
    translator = open_translator(args)
    options = options_of(args, translator.defaults)
    with output(args.output) as out:
        if source is None:
            if is_file(args.text):
                tell(f"{args.text} is taken as text; --input {args.text} translates the file")
            text = args.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            warn_of_long([text])
            with notes():
                translation = translator.translate(
                    text, options, prefix=args.prefix, attention=args.json
                )
            write(out, 0, text, translation, args.json)
        else:
            each = partial(translator.each, options=options, prefix=args.prefix)
            work_on_lines(partial(each, attention=args.json), Lines(source), out, args.json, write)
    return None


@contextmanager
def output(path: str | None) -> Iterator[TextIO]:
    """UTF-8 with line feeds, whatever the terminal's own encoding."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        with naming_output("standard output"):
            yield sys.stdout
    else:
        with naming_output(path), Path(path).open("w", encoding="utf-8", newline="\n") as file:
            yield file


def work_on_lines(
    work: "Callable[[list[str]], Iterator[Written]]",
    lines: Lines,
    out: TextIO,
    as_json: bool,
    write: "Callable[[TextIO, int, str, Written, bool], None]",
) -> None:
    """Line in, line out, each written as soon as it and all before it are done."""
    meter = Meter()
    # Translations that appear on the terminal show by themselves how far it is.
    progress = None if out.isatty() else ProgressBar(meter, lines.count())
    try:
        with notes(), progress or nullcontext():
            for block in lines.blocks():
                warn_of_long(block)
                for line, found in zip(block, work(block), strict=True):
                    write(out, meter.sentences, line, found, as_json)
                    meter.add(found)
                    if progress is not None:
                        progress.update()
    finally:
        tell(str(meter))


def warn_of_long(block: Sequence[str]) -> None:
    """Nothing moves while such a line is translated."""
    for line in block:
        if len(line) > LONG_LINE:
            tell(f"a line of {len(line):,} letters takes a while: {line[:40]}...")


def write(out: TextIO, number: int, source: str, found: "Translation", as_json: bool) -> None:
    ranked = [found, *found.alternatives]
    if as_json:
        lines = [to_json(as_object(source, found))]
    elif len(ranked) > 1:
        lines = [f"{number} ||| {each.text} ||| {each.score:.4f}" for each in ranked]
    else:
        lines = [found.text]
    write_lines(out, lines)


def write_lines(out: TextIO, lines: Sequence[str]) -> None:
    if out.isatty():
        lines = [without_controls(line) for line in lines]
    out.writelines(line + "\n" for line in lines)
    out.flush()


def as_object(source: str, found: "Translation") -> dict[str, Any]:
    """What --json prints; `alignment` pairs words of source and translation, counted from 0."""
    return {
        "source": source,
        "translation": found.text,
        "score": found.score,
        "logp": found.logp,
        "complete": found.complete,
        "source_tokens": found.source_tokens,
        "tokens": found.tokens,
        "alignment": found.alignment or [],
        "nbest": [
            {"translation": each.text, "score": each.score, "logp": each.logp}
            for each in [found, *found.alternatives]
        ],
    }
