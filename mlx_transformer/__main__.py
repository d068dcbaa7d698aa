"""The `mlx-transformer` command: finds the verb and runs the file of that name in `cli`."""

import argparse
import sys
from importlib import import_module
from types import ModuleType

from mlx_transformer import __version__
from mlx_transformer.cli.sentences import sentence
from mlx_transformer.errors import InputError

VERBS = {
    "translate": "translate text, a file or a pipe; on a terminal, a prompt to type into",
    "train": "train a model from a recipe, or resume a run",
    "prepare": "turn the text of a recipe into a tokenizer and memory-mapped ids",
    "convert": "turn a PyTorch checkpoint into a model directory",
    "export": "write a model for PyTorch, transformers and CTranslate2",
    "average": "average the last checkpoints of a run into one model",
    "evaluate": "BLEU, chrF, TER and exact matches of a model or of a file of translations",
    "score": "log-probability and perplexity of given translations",
    "attention": "draw what a model attends to",
    "plot": "draw training curves, schedules and the position table",
    "info": "show the configuration and size of a preset or a model",
    "bench": "measure training and translation speed on this machine",
}

DESCRIPTION = """\
The Transformer of "Attention Is All You Need" on MLX.

verbs:
"""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; 0 done, 1 it failed, 2 the call was wrong."""
    args = sys.argv[1:] if argv is None else argv
    verb = next((arg for arg in args if not arg.startswith("-")), None)
    if verb is None or not args or args[0] != verb:
        return _without_verb(args)
    if verb not in VERBS:
        return _say(_unknown(verb), 2)
    module = import_module(f"mlx_transformer.cli.{verb}")
    parser = _parser_of(verb, module)
    return _run(module, _parse(parser, args[1:]))


def _unknown(verb: str) -> str:
    from mlx_transformer.checks import nearest  # only here: `--help` has no time for it

    hint = nearest(verb, list(VERBS)) or "; mlx-transformer --help lists them"
    return f"unknown verb {verb!r}{hint}"


def _without_verb(args: list[str]) -> int:
    listing = "\n".join(f"  {verb:10} {what}" for verb, what in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="mlx-transformer",
        usage="mlx-transformer VERB [options]   (mlx-transformer VERB --help explains one)",
        description=DESCRIPTION + listing,
        epilog='example: mlx-transformer translate "Good morning."',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mlx-transformer {__version__}")
    parser.parse_args(args)
    parser.print_help(sys.stderr)
    return 2


def _parser_of(verb: str, module: ModuleType) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"mlx-transformer {verb}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.configure(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _parse(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Options may stand anywhere; but argparse does not mix them with texts after a `--`."""
    return parser.parse_args(args) if "--" in args else parser.parse_intermixed_args(args)


def _run(module: ModuleType, args: argparse.Namespace) -> int:
    try:
        return module.run(args) or 0
    except BrokenPipeError:
        # The reader (`| head`) has enough. Point stdout elsewhere so that exit stays silent.
        sys.stdout = None
        return 1
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except Exception as error:
        if args.debug:
            sys.excepthook(type(error), error, error.__traceback__)
        return _say(sentence(error, module), 2 if isinstance(error, InputError) else 1)


def _say(message: str, status: int) -> int:
    print(f"mlx-transformer: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
