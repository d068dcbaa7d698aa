"""`mlx-transformer complete`: a decoder alone goes on with a text, a file of them or a pipe."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from mlx_transformer.cli.lines import STDIN, Lines, check_files, standard_input
from mlx_transformer.cli.opening import add_model_flags, open_completer
from mlx_transformer.cli.output import to_json
from mlx_transformer.cli.searching import add_search_flags, notes, options_of
from mlx_transformer.cli.translate import output, work_on_lines, write_lines
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.errors import InputError

if TYPE_CHECKING:
    from mlx_transformer.decoding.completer import Completer, Completion

EPILOG = """\
examples:
  mlx-transformer complete --model runs/gpt-mini/model "the old farmer"
  mlx-transformer complete --model openai-community/gpt2 --sample --top-k 40 "Once upon a time"
  mlx-transformer complete --model runs/gpt-mini/model --input prompts.txt --output texts.txt
  mlx-transformer complete --model runs/gpt-mini/model       (a prompt; :help lists its commands)

The text is written with what follows it, as it grows. Every line of a file gives one line; with
--nbest each gives several, as: LINE ||| TEXT ||| SCORE
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Go on with a text: what a decoder alone (a GPT) does."
    parser.epilog = EPILOG
    parser.add_argument("text", nargs="?", metavar="TEXT", help="how it begins; - is stdin")
    parser.add_argument("--input", metavar="FILE", help="complete its lines; - is stdin")
    parser.add_argument("--output", metavar="FILE", help="write here instead of to stdout")
    parser.add_argument("--json", action="store_true", help="one object a line, with scores")
    add_model_flags(parser, "openai-community/gpt2")
    add_search_flags(parser, with_source=False)


def run(args: argparse.Namespace) -> None:
    if args.text is not None and args.input is not None:
        raise InputError("give a text or --input FILE, not both")
    source = STDIN if args.text == STDIN else args.input
    to_stdout = args.output is None and not args.json
    at_prompt = args.text is None and source is None and to_stdout and standard_input().isatty()
    if args.text is None and not at_prompt:
        source = source or STDIN
    check_files(source, args.output)
    completer = open_completer(args)
    options = options_of(args, completer.defaults)
    if at_prompt:
        from mlx_transformer.cli.complete_repl import CompleteRepl

        return CompleteRepl(completer, options).run()
    with output(args.output) as out:
        if source is not None:
            each = partial(completer.each, options=options)
            work_on_lines(each, Lines(source), out, args.json, write)
        elif args.json or options.nbest > 1:
            with notes():
                write(out, 0, args.text, completer.complete(args.text, options), args.json)
        else:
            stream(out, completer, args.text, options)
    return None


def stream(out: TextIO, completer: "Completer", text: str, options: SearchOptions) -> None:
    """The text, and what follows it word by word"""
    out.write(text)
    for piece in completer.stream(text, options):
        out.write(piece)
        out.flush()
    out.write("\n")


def write(out: TextIO, number: int, _: str, found: "Completion", as_json: bool) -> None:
    ranked = [found, *found.alternatives]
    if as_json:
        lines = [to_json(as_object(found))]
    elif len(ranked) > 1:
        lines = [f"{number} ||| {one_line(each)} ||| {each.score:.4f}" for each in ranked]
    else:
        lines = [one_line(found)]
    write_lines(out, lines)


def one_line(found: "Completion") -> str:
    """Some models write line feeds."""
    return " ".join((found.prompt + found.text).splitlines())


def as_object(found: "Completion") -> dict[str, Any]:
    return {
        "prompt": found.prompt,
        "text": found.text,
        "score": found.score,
        "logp": found.logp,
        "complete": found.complete,
        "tokens": found.tokens,
        "nbest": [
            {"text": each.text, "score": each.score, "logp": each.logp}
            for each in [found, *found.alternatives]
        ],
    }
