"""`mlx-transformer evaluate`: how good a model's translations are, or a file's."""

import argparse
from typing import Any

from mlx_transformer.cli.lines import parallel_lines
from mlx_transformer.cli.opening import add_language_flags, add_model_flags, open_translator
from mlx_transformer.cli.output import show, tell, to_json
from mlx_transformer.cli.searching import (
    Meter,
    ProgressBar,
    add_search_flags,
    notes,
    options_of,
)
from mlx_transformer.data.metrics import TITLES, measure
from mlx_transformer.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Translate a file and compare with reference translations, or compare translations that "
        "are there already: BLEU, chrF and TER by sacrebleu, with the signatures to quote, and the "
        "per cent that is exactly right."
    )
    parser.epilog = (
        "examples:\n"
        "  mlx-transformer evaluate --source test.en --reference test.de --model weights/en-de\n"
        "  mlx-transformer evaluate --hypothesis mine.de --reference test.de --json"
    )
    parser.add_argument("--reference", metavar="FILE", required=True, help="right translations")
    parser.add_argument("--source", metavar="FILE", help="what to translate")
    parser.add_argument("--hypothesis", metavar="FILE", help="translations instead of a model's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_flags(parser)
    add_language_flags(parser)
    add_search_flags(parser)


def run(args: argparse.Namespace) -> None:
    if (args.source is None) == (args.hypothesis is None):
        raise InputError("give either --source FILE to translate, or --hypothesis FILE to compare")
    lines, references = parallel_lines(args.source or args.hypothesis, args.reference)
    seconds = None
    if args.source is not None:
        lines, seconds = translate(args, lines)
    found = measure(TITLES, lines, references)
    if args.json:
        results: dict[str, Any] = {"sentences": len(lines), "seconds": seconds}
        for name, (score, signature) in found.items():
            results |= {name: score, f"{name}_signature": signature}
        show(to_json(results))
    else:
        for name, (score, signature) in found.items():
            show(f"{TITLES[name]:5} {score:6.2f}  {signature}")


def translate(args: argparse.Namespace, lines: list[str]) -> tuple[list[str], float]:
    """Translations, and the seconds they took with the model loaded"""
    translator = open_translator(args)
    options = options_of(args, translator.defaults)
    meter = Meter()
    translations = []
    with notes(), ProgressBar(meter, len(lines)) as progress:
        for translation in translator.each(lines, options, window=None):
            translations.append(translation.text)
            meter.add(translation)
            progress.update()
    seconds = meter.seconds
    tell(str(meter))
    return translations, seconds
