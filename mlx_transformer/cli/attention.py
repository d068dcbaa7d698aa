"""`mlx-transformer attention`: draw what a model attends to while it translates a text."""

import argparse
import sys
from pathlib import Path

from mlx_transformer.cli.searching import add_model_flags, load_translator, notes
from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError
from mlx_transformer.pictures.attention import KINDS, Attention, Kind, View, attention_of
from mlx_transformer.pictures.attention_page import attention_page
from mlx_transformer.pictures.plots import PICTURES, draw_attention

PAGE = ".html"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw what a model attends to while it translates a text: as a page to explore (.html),\n"
        "as heat maps, or as lines between words (.png, .svg)."
    )
    parser.epilog = (
        "examples:\n"
        '  mlx-transformer attention "The dog sleeps." --out dog.html\n'
        '  mlx-transformer attention "The dog sleeps." --out dog.png \\\n'
        "      --kind encoder --layer all --word dog"
    )
    parser.add_argument(
        "text", metavar="TEXT", help="a sentence to translate; - reads standard input"
    )
    add_model_flags(parser)
    parser.add_argument(
        "--out", metavar="FILE", required=True, type=Path, help="an .html, .png or .svg file"
    )
    parser.add_argument("--target", metavar="TEXT", help="this translation instead of the model's")
    parser.add_argument(
        "--kind",
        type=kinds,
        default=("cross",),
        metavar="KIND,...",
        help=f"{', '.join(KINDS)} or all (default: cross)",
    )
    parser.add_argument(
        "--layer",
        type=numbers,
        default=(-1,),
        metavar="N,...",
        help="layers counted from 1, or all (default: the last)",
    )
    parser.add_argument(
        "--head", type=numbers, metavar="N,...", help="heads counted from 1 (default: all)"
    )
    parser.add_argument("--word", help="only the lines of this word, as in the paper's figure 3")
    parser.add_argument(
        "--lines", action="store_true", help="lines between the words instead of heat maps"
    )


def run(args: argparse.Namespace) -> None:
    check_suffix(args.out)
    text = sys.stdin.read().strip() if args.text == "-" else args.text
    if not text.strip():
        raise InputError("there is no text to translate")
    attention = attend(load_translator(args.model, args.dtype), text, args.target)
    with notes():
        draw(attention, args.out, View(args.kind, args.layer, args.head, args.word, args.lines))
    print(args.out)


def attend(translator: Translator, text: str, target: str | None = None) -> Attention:
    """What the model attends to as it writes `target`, or else its own translation of the text."""
    model, tokenizer = translator.model, translator.tokenizer
    eos = model.config.eos_id
    if target is not None:
        return attention_of(model, tokenizer, text, [*tokenizer.encode_target(target), eos])
    [[best]] = search(model, [[*tokenizer.encode_source(text), eos]])
    return attention_of(model, tokenizer, text, [*best.ids, eos] if best.complete else best.ids)


def draw(attention: Attention, path: Path, view: View) -> None:
    """Write a page or a picture, as the name of the file says."""
    check_suffix(path)
    if path.suffix.lower() == PAGE:
        path.write_text(attention_page(attention, view), encoding="utf-8")
    else:
        draw_attention(attention, path, view)


def check_suffix(path: Path) -> None:
    if path.suffix.lower() not in (PAGE, *PICTURES):
        raise InputError(f"{path} must end in {PAGE}, {' or '.join(PICTURES)}")


def kinds(text: str) -> tuple[Kind, ...]:
    """`encoder,cross` or `all`"""
    names = list(KINDS) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(KINDS)}, all")
    return tuple(kind for kind in KINDS if kind in names)


def numbers(text: str) -> tuple[int, ...] | None:
    """`1,3`, or None for `all`"""
    if text == "all":
        return None
    if not all(number.isdecimal() for number in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is neither numbers such as 1,3 nor all")
    return tuple(map(int, text.split(",")))
