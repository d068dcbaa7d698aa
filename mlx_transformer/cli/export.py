"""`mlx-transformer export`: a model for PyTorch, transformers and CTranslate2."""

import argparse
from pathlib import Path

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import show, tell
from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.export_ctranslate2 import export_ctranslate2, is_of_transformers
from mlx_transformer.convert.export_marian import (
    export_marian,
    export_pegasus,
    has_sentencepiece,
)
from mlx_transformer.convert.export_torch import export_torch
from mlx_transformer.errors import InputError
from mlx_transformer.storage import built_aside, load_model
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer

DESCRIPTION = """\
Write a model for other frameworks, in float32.

  ctranslate2  a directory that ctranslate2.Translator loads
  marian       a directory that transformers (MarianMTModel, MarianTokenizer) loads
  pegasus      the same for pre-norm models (PegasusForConditionalGeneration)
  torch        a state dict for torch.nn.Transformer, and load_in_torch.py, which loads it
"""


WRITERS = {"ctranslate2": export_ctranslate2, "marian": export_marian, "pegasus": export_pegasus}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = "example: mlx-transformer export weights/en-de exported --format marian"
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model, by any name")
    parser.add_argument("out", metavar="OUT", type=Path, help="a directory to make")
    parser.add_argument("--format", choices=[*WRITERS, "torch"], required=True)


def run(args: argparse.Namespace) -> None:
    if args.out.exists():
        raise InputError(f"{args.out} exists: name a directory to make")
    directory = model_directory(args.model)
    model = load_model(directory)
    with built_aside(args.out) as aside:
        if args.format == "torch":
            export_torch(model, aside)
        else:
            tokenizer = _tokenizer_for(args.format, directory, model.config)
            WRITERS[args.format](model, tokenizer, aside)
    show(args.out)


def _tokenizer_for(target: str, directory: Path, config: ModelConfig) -> Tokenizer | None:
    """The tokenizer that goes along; without one the weights are worth having all the same."""
    try:
        tokenizer = load_tokenizer(directory, config)
    except InputError as error:
        tell(f"{error}; exporting the weights alone")
        return None
    if has_sentencepiece(tokenizer) or (target == "ctranslate2" and is_of_transformers(tokenizer)):
        return tokenizer
    tell(f"the words of {directory} are not cut by SentencePiece: exporting the weights alone")
    return None
