"""`mlx-transformer fill`: words for the gaps of a text, by an encoder alone."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from mlx_transformer.cli.lines import STDIN, Lines, check_files
from mlx_transformer.cli.opening import add_model_flags, open_text_encoder
from mlx_transformer.cli.output import show, to_json
from mlx_transformer.errors import InputError

if TYPE_CHECKING:
    from mlx_transformer.decoding.text_encoder import Guess

EPILOG = """\
examples:
  mlx-transformer fill --model google-bert/bert-base-uncased "The capital of France is <mask>."
  mlx-transformer fill --model runs/bert-mini/model --nbest 1 --input gaps.txt

Prints the most probable words of each gap with their probabilities. With --nbest 1 every line gives
one line: the text with its gaps filled.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Fill the gaps of a text: what an encoder with a word head (a BERT) does."
    parser.epilog = EPILOG
    parser.add_argument("text", nargs="?", metavar="TEXT", help="a text with <mask> in it")
    parser.add_argument("--input", metavar="FILE", help="fill its lines; - is stdin")
    parser.add_argument("--nbest", type=int, metavar="N", default=5, help="words (default 5)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    add_model_flags(parser, "google-bert/bert-base-uncased")


def run(args: argparse.Namespace) -> None:
    if (args.text is None) == (args.input is None):
        raise InputError("give a text with <mask> in it, or --input FILE")
    if args.nbest < 1:
        raise InputError(f"--nbest must be at least 1, not {args.nbest}")
    source = STDIN if args.text == STDIN else args.input
    check_files(source, None)
    encoder = open_text_encoder(args)
    for text in [args.text] if source is None else Lines(source):
        gaps = encoder.fill(text, args.nbest)
        if args.json:
            show(to_json({"text": text, "gaps": [list(map(asdict, gap)) for gap in gaps]}))
        elif args.nbest == 1:
            show(gaps[0][0].text)
        else:
            show_guesses(gaps)


def show_guesses(gaps: "list[list[Guess]]") -> None:
    """probability, word and text; of several gaps also which"""
    for number, gap in enumerate(gaps, 1):
        for guess in gap:
            row = f"{guess.probability:.4f}\t{guess.word}\t{guess.text}"
            show(f"{number}\t{row}" if len(gaps) > 1 else row)
