"""`mlx-transformer attention`: draw what a model attends to while it translates a text."""

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from mlx_transformer.cli.failures import naming_output
from mlx_transformer.cli.lines import standard_input
from mlx_transformer.cli.opening import add_language_flags, add_model_flags, open_model
from mlx_transformer.cli.output import show
from mlx_transformer.cli.searching import notes
from mlx_transformer.decoding.alignment import join_attention
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError
from mlx_transformer.pictures.attention import KINDS, Attention, MapKind, View, attention_of
from mlx_transformer.pictures.attention_page import attention_page
from mlx_transformer.pictures.files import PICTURES
from mlx_transformer.pictures.plots import draw_attention

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
    add_language_flags(parser)
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
    text = standard_input().read().strip() if args.text == "-" else args.text
    if not text.strip():
        raise InputError("there is no text to translate")
    translator = open_model(args)
    with notes():
        if args.target is None:
            attention = attend(translator, text)
        else:
            attention = attend_to(translator, text, args.target)
        with naming_output(str(args.out)):
            draw(attention, args.out, View(args.kind, args.layer, args.head, args.word, args.lines))
    show(args.out)


def attend_to(translator: Translator, text: str, target: str) -> Attention:
    """What the model attends to as it writes `target`, all of it as one sentence."""
    model, tokenizer = translator.model, translator.tokenizer
    eos = model.config.eos_id
    [source], [written] = tokenizer.sources([text], eos), tokenizer.targets([target], eos)
    return attention_of(model, tokenizer, text, source, written)


def attend(translator: Translator, text: str, options: SearchOptions | None = None) -> Attention:
    """What the model attends to as it translates the text, sentence by sentence."""
    model, tokenizer = translator.model, translator.tokenizer
    plan = translator.plan(text, options)
    sources = [sentence.ids for sentence in plan.sentences]
    found = search(model, sources, options, [sentence.start for sentence in plan.sentences])
    parts = []
    for source, (best, *_) in zip(sources, found, strict=True):
        written = [*best.ids, model.config.eos_id] if best.complete else best.ids
        parts.append(attention_of(model, tokenizer, text, source, written))
    if not parts:
        raise InputError("there is nothing in the text that the model can read")
    return joined(parts, translator.translation(plan, found, attention=False).text)


def joined(parts: Sequence[Attention], translation: str) -> Attention:
    """Sentences one after the other, each attending to itself only."""
    return Attention(
        text=parts[0].text,
        translation=translation,
        source=list(chain(*(part.source for part in parts))),
        read=list(chain(*(part.read for part in parts))),
        written=list(chain(*(part.written for part in parts))),
        encoder=join_attention([part.encoder for part in parts]),
        decoder=join_attention([part.decoder for part in parts]),
        cross=join_attention([part.cross for part in parts]),
    )


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


def kinds(text: str) -> tuple[MapKind, ...]:
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
