"""`mlx-transformer embed`: vectors of texts, by an encoder alone."""

import argparse
from pathlib import Path

import numpy as np

from mlx_transformer.cli.lines import STDIN, Lines, standard_input
from mlx_transformer.cli.opening import add_model_flags, open_text_encoder
from mlx_transformer.cli.output import show, to_json
from mlx_transformer.errors import InputError

EPILOG = """\
examples:
  mlx-transformer embed --model sentence-transformers/all-MiniLM-L6-v2 "A man plays a guitar."
  mlx-transformer embed --model MODEL --input sentences.txt --output vectors.npy
  mlx-transformer embed --model MODEL --compare "A man plays a guitar." "Someone makes music."

Every line gives a line of numbers, or with --output FILE.npy a row of a NumPy array.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "The vector of a text: what an encoder alone (a BERT) makes of it."
    parser.epilog = EPILOG
    parser.add_argument("text", nargs="*", metavar="TEXT", help="texts; - is stdin")
    parser.add_argument("--input", metavar="FILE", help="embed its lines; - is stdin")
    parser.add_argument("--output", metavar="FILE.npy", type=Path, help="write a NumPy array here")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="print the cosines between the first text and each other one instead",
    )
    parser.add_argument(
        "--pooling", choices=("mean", "cls", "max"), help="default: the model's own, else mean"
    )
    parser.add_argument("--json", action="store_true", help="one object a line")
    add_model_flags(parser, "sentence-transformers/all-MiniLM-L6-v2")


def run(args: argparse.Namespace) -> None:
    texts = texts_of(args)
    changes = {} if args.pooling is None else {"pooling": args.pooling}
    vectors = open_text_encoder(args).embed(texts, **changes)
    if args.compare:
        for text, cosine in zip(texts[1:], cosines(vectors), strict=True):
            show(
                to_json({"text": text, "cosine": cosine}) if args.json else f"{cosine:.4f}\t{text}"
            )
    elif args.output is not None:
        np.save(args.output, vectors)
    else:
        for text, vector in zip(texts, vectors, strict=True):
            numbers = [float(f"{x:.7g}") for x in vector]
            row = {"text": text, "vector": numbers}
            show(to_json(row) if args.json else " ".join(map(str, numbers)))


def texts_of(args: argparse.Namespace) -> list[str]:
    if args.text and args.input is not None:
        raise InputError("give texts or --input FILE, not both")
    if args.output is not None and args.output.suffix != ".npy":
        raise InputError(f"--output {args.output} must end in .npy")
    source = args.input or (STDIN if args.text in ([], [STDIN]) else None)
    if source == STDIN and standard_input().isatty():
        raise InputError("give a text, --input FILE or a pipe")
    texts = args.text if source is None else list(Lines(source))
    if len(texts) < (2 if args.compare else 1):
        raise InputError("--compare needs two texts" if args.compare else "there is no text")
    return texts


def cosines(vectors: np.ndarray) -> list[float]:
    """(n,d) -> n - 1"""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return (unit[1:] @ unit[0]).tolist()
