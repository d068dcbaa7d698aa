"""`mlx-transformer export`: a model for transformers and CTranslate2."""

import argparse
import sys
from pathlib import Path

from mlx_transformer.convert.export_marian import export_marian, has_sentencepiece
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a model for other frameworks, in float32. marian: a directory that transformers "
        "(MarianMTModel, MarianTokenizer) and ct2-transformers-converter load."
    )
    parser.epilog = "example: mlx-transformer export weights/en-de exported --format marian"
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model directory")
    parser.add_argument("out", metavar="OUT", type=Path, help="a directory to make")
    parser.add_argument("--format", choices=["marian"], required=True)


def run(args: argparse.Namespace) -> None:
    model = load_model(args.model)
    if args.out.exists() and any(args.out.iterdir()):
        raise InputError(f"{args.out} is not empty: name a directory to make")
    args.out.mkdir(parents=True, exist_ok=True)
    export_marian(model, _sentencepiece_tokenizer(args.model), args.out)


def _sentencepiece_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer that goes along; without one the weights are worth having all the same."""
    try:
        tokenizer = load_tokenizer(directory)
    except InputError as error:
        print(f"mlx-transformer: {error}; exporting the weights alone", file=sys.stderr)
        return None
    if has_sentencepiece(tokenizer):
        return tokenizer
    print(
        f"mlx-transformer: the words of {directory} are cut beforehand, which MarianTokenizer "
        "cannot do; exporting the weights alone",
        file=sys.stderr,
    )
    return None
