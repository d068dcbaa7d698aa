"""`mlx-transformer score`: how probable given translations, or texts, are."""

import argparse
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from mlx_transformer.cli.lines import Lines, parallel_lines
from mlx_transformer.cli.opening import (
    add_language_flags,
    add_model_flags,
    is_decoder_alone,
    open_completer,
    open_model,
)
from mlx_transformer.cli.output import show, to_json
from mlx_transformer.errors import InputError

if TYPE_CHECKING:
    from mlx_transformer.decoding.scoring import Score


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Log-probability (natural logarithm, the end of sentence included), number of tokens and "
        "perplexity of given translations: one line each, then the total. A decoder alone (a GPT) "
        "scores texts."
    )
    parser.epilog = (
        "examples:\n"
        '  mlx-transformer score "Good morning." "Guten Morgen."\n'
        "  mlx-transformer score --source test.en --target test.de --json\n"
        "  mlx-transformer score --model runs/gpt-mini/model --source test.txt"
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="a text")
    parser.add_argument("translation", nargs="?", metavar="TRANSLATION", help="its translation")
    parser.add_argument("--source", metavar="FILE", help="texts, one a line")
    parser.add_argument("--target", metavar="FILE", help="their translations, one a line")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_flags(parser)
    add_language_flags(parser)


def run(args: argparse.Namespace) -> None:
    if args.model is not None and is_decoder_alone(args.model):
        targets = texts(args)
        scores, kind = open_completer(args).score(targets), "texts"
    else:
        sources, targets = pairs(args)
        scores, kind = open_model(args).score(sources, targets), "pairs"
    total = reduce(add, scores)
    if args.json:
        show(to_json({kind: [*map(as_object, scores)], "total": as_object(total)}))
        return
    for score, target in zip(scores, targets, strict=True):
        show(f"{row(score)}\t{target}")
    show(f"{row(total)}\ttotal of {len(scores):,}")


def texts(args: argparse.Namespace) -> list[str]:
    if (args.text is None) == (args.source is None) or args.translation or args.target:
        raise InputError("a decoder alone scores texts: give one, or --source FILE")
    found = [args.text] if args.source is None else list(Lines(args.source))
    if not found:
        raise InputError(f"{args.source} is empty")
    return found


def pairs(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    if args.source and args.target and args.text is None:
        return parallel_lines(args.source, args.target)
    if args.translation is not None and not args.source and not args.target:
        return [args.text], [args.translation]
    raise InputError("give a text and its translation, or --source FILE and --target FILE")


def row(score: "Score") -> str:
    return f"{score.logp:.4f}\t{score.tokens}\t{score.perplexity:.4f}"


def as_object(score: "Score") -> dict[str, Any]:
    return {"logp": score.logp, "tokens": score.tokens, "perplexity": score.perplexity}
