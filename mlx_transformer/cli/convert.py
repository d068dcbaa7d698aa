"""`mlx-transformer convert`: a checkpoint of another framework becomes a model directory."""

import argparse
import sys
from pathlib import Path
from typing import Any, get_args

from mlx_transformer.cli.failures import sentence
from mlx_transformer.cli.opening import download_bar
from mlx_transformer.cli.output import note, show, tell
from mlx_transformer.cli.searching import notes
from mlx_transformer.config import Activation
from mlx_transformer.convert.conversion import Listing, Report, convert, list_keys
from mlx_transformer.convert.families import FAMILIES
from mlx_transformer.convert.family import Options
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.hub import check_name, checkpoint_of, upload
from mlx_transformer.inputs.printable import printable
from mlx_transformer.inputs.untrusted import FLOATS

EPILOG = """\
examples:
  mlx-transformer convert opus-mt-en-de weights/opus-mt-en-de --verify
  mlx-transformer convert checkpoint_best.pt weights/mine --dtype float16
  mlx-transformer convert weights/en-de weights/en-de-8bit --quantize 8
  mlx-transformer convert Helsinki-NLP/opus-mt-en-de weights/opus-8bit --quantize 8
  mlx-transformer convert Helsinki-NLP/opus-mt-en-de opus-4bit --quantize 4 --upload ME/opus-4bit
  mlx-transformer convert mine.pt weights/mine --heads 8 --pad-id 1 --start-id 2 --eos-id 3
  mlx-transformer convert mine.pt --list --rename '^net\\.enc\\.=encoder.'

families:
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Turn a PyTorch checkpoint into a model directory. PyTorch is not needed, and nothing in "
        "the file is run."
    )
    parser.epilog = EPILOG + "\n".join(f"  {f.name:11} {f.title}" for f in FAMILIES.values())
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="a .pt, .pth, .bin, .safetensors or .npz file, its folder, or a name on the hub",
    )
    parser.add_argument("out", type=Path, nargs="?", help="the model directory to make")
    parser.add_argument(
        "--list", action="store_true", help="show the keys and what becomes of them"
    )
    parser.add_argument("--family", choices=FAMILIES, help="what it is, if that is not recognised")
    parser.add_argument(
        "--rename",
        metavar="PATTERN=NAME",
        action="append",
        default=[],
        type=_rename,
        help="replace what the regular expression matches in every key; may be repeated",
    )
    parser.add_argument("--dtype", choices=FLOATS, help="precision (default: the checkpoint's)")
    parser.add_argument(
        "--quantize", type=int, choices=(4, 8), metavar="BITS", help="4 or 8 bits for each weight"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run the original in PyTorch, too; print and keep how far they are apart (PARITY.md)",
    )
    parser.add_argument(
        "--upload", metavar="ORG/NAME", help="put the result on the Hugging Face hub, too"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing model directory")

    own = parser.add_argument_group("your own modules", "where a checkpoint leaves it open")
    for name in ("source-embedding", "target-embedding", "output", "positions"):
        own.add_argument(
            f"--{name}", metavar="KEY", help=f"the key of the {name.replace('-', ' ')}"
        )
    for side in ("source", "target"):
        own.add_argument(f"--{side}-vocab", type=Path, metavar="FILE", help=f"the {side} tokenizer")

    own.add_argument("--heads", dest="h", type=int, metavar="N", help="number of attention heads")
    own.add_argument("--norm", choices=("pre", "post"), help="norms before or after each sublayer")
    own.add_argument("--norm-eps", type=float, metavar="X", help="epsilon of the norms")
    own.add_argument("--activation", choices=get_args(Activation))
    own.add_argument(
        "--no-embedding-scale",
        dest="scale_embedding",
        action="store_const",
        const=False,
        help="word vectors are not multiplied by sqrt(d_model)",
    )
    for name, meaning in (("pad", "padding"), ("start", "the start"), ("eos", "the end")):
        own.add_argument(f"--{name}-id", type=int, metavar="N", help=f"the id of {meaning}")
    own.add_argument(
        "--source-start",
        action="store_true",
        help="sources, too, begin with the start id, as in PyTorch's tutorial",
    )


FLAGS = {"h": "--heads"}  # parameters that are not named as their flags
SETTINGS = (
    "h",
    "norm",
    "norm_eps",
    "activation",
    "scale_embedding",
    "pad_id",
    "start_id",
    "eos_id",
)


def run(args: argparse.Namespace) -> None:
    options = _options(args)
    checkpoint = checkpoint_of(args.checkpoint, tell=tell, bar=download_bar)
    if args.list:
        _print_listing(list_keys(checkpoint, options, family=args.family))
        return
    if args.out is None:
        raise InputError("where to? Name the model directory to make, or give --list")
    if args.verify and args.out.resolve() == checkpoint.resolve():
        raise InputError("--verify compares with the original: do not replace it")
    if args.upload is not None:
        check_name(args.upload)  # before the work
    with notes():
        report = convert(
            checkpoint,
            args.out,
            options,
            family=args.family,
            dtype=args.dtype,
            bits=args.quantize,
            force=args.force,
            card_name=args.upload,
            origin=str(args.checkpoint) if checkpoint != args.checkpoint else None,
        )
    _print_report(report)
    if args.verify:
        _verify(checkpoint, args, options)
    if args.upload is not None:
        show(upload(args.out, args.upload, tell=tell))


def _verify(checkpoint: Path, args: argparse.Namespace, options: Options) -> None:
    from mlx_transformer.convert.verify import verify  # slow to import, and seldom asked for

    certificate = verify(checkpoint, args.out, options, family=args.family)
    show(certificate.text(args.out.name))
    if not certificate.holds:
        raise RunError(f"the converted model differs from the original: see {args.out}/PARITY.md")


def _rename(text: str) -> tuple[str, str]:
    pattern, equals, replacement = text.partition("=")
    if not (pattern and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not PATTERN=NAME")
    return pattern, replacement


def _options(args: argparse.Namespace) -> Options:
    settings: dict[str, Any] = {
        name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None
    }
    return Options(
        renames=tuple(args.rename),
        source_embedding=args.source_embedding,
        target_embedding=args.target_embedding,
        output=args.output,
        positions=args.positions,
        source_vocab=args.source_vocab,
        target_vocab=args.target_vocab,
        source_start=args.source_start,
        settings=settings,
    )


def _print_listing(listing: Listing) -> None:
    """name, dtype, shape and use, one a line; a key without use is marked."""
    rows = [
        (printable(k.name), k.dtype, "x".join(map(str, k.shape)), printable(k.use or "UNMAPPED"))
        for k in listing.keys
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        show("  ".join([*cells, row[3]]))
    verdict = f"This is {listing.family}, and complete."
    if listing.problem is not None:
        verdict = sentence(listing.problem, sys.modules[__name__])
    note(verdict)


def _print_report(report: Report) -> None:
    size, files = report.parameters / 1e6, ", ".join(report.tokenizer_files)
    bits, precision = report.config.quantization, " and ".join(report.dtypes)
    show(report.directory)
    note(
        f"{report.family}: {size:.2f} million parameters, "
        f"{f'matrices in {bits} bits, the rest in {precision}' if bits else precision}; "
        f"{'with ' + files if files else 'without a tokenizer'}"
    )
    if report.ignored:
        note(f"left out, as they mean nothing: {', '.join(report.ignored)}")
