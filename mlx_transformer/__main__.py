"""The `mlx-transformer` command: finds the verb and runs the file of that name in `cli`."""

import argparse
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from mlx_transformer import __version__
from mlx_transformer.cli.failures import naming_output, sentence
from mlx_transformer.errors import InputError

VERBS = {
    "translate": "translate text, a file or a pipe; on a terminal, a prompt to type into",
    "complete": "go on with a text: what a decoder alone does",
    "embed": "vectors of texts, by an encoder alone",
    "fill": "words for the gaps of a text, by an encoder alone",
    "serve": "a translation page and LibreTranslate's API on this machine",
    "train": "train a model from a recipe, or resume a run",
    "prepare": "turn the text of a recipe into a tokenizer and files of ids",
    "convert": "turn a PyTorch checkpoint into a model directory",
    "export": "write a model for PyTorch, transformers and CTranslate2",
    "average": "average the last checkpoints of a run into one model",
    "evaluate": "BLEU, chrF, TER and exact matches of a model or of a file of translations",
    "score": "log-probability and perplexity of given translations",
    "attention": "draw what a model attends to",
    "plot": "draw training curves, schedules and the position table",
    "models": "list the models on this machine, or remove one from the cache",
    "info": "show the configuration and size of a preset or a model",
    "selfcheck": "whether this machine's GPU computes what its CPU does",
    "bench": "measure training and translation speed on this machine",
}

DESCRIPTION = """\
The Transformer of "Attention Is All You Need" on MLX.

verbs:
"""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; 0 done, 1 it failed, 2 the call was wrong."""
    args = sys.argv[1:] if argv is None else argv
    _occupy_standard_streams()
    if sys.stdout is None:
        return _say("standard output is closed: open it, or send it to a file", 1)
    verb = next((arg for arg in args if not arg.startswith("-")), None)
    if verb is None or args[0] != verb:
        return _without_verb(args)
    if verb not in VERBS:
        return _say(_unknown(verb), 2)
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        module = import_module(f"mlx_transformer.cli.{verb}")
        parser = _parser_of(verb, module)
        return _run(module, _parse(parser, args[1:]))


def _occupy_standard_streams() -> None:
    """Open closed ones as /dev/null. Otherwise the next file would get their number, and what
    libraries print would be written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (it is open for as long as we live)


def _unknown(verb: str) -> str:
    from mlx_transformer.inputs.checks import nearest  # only here: `--help` has no time for it

    hint = nearest(verb, list(VERBS)) or "; mlx-transformer --help lists them"
    return f"unknown verb {verb!r}{hint}"


def _without_verb(args: list[str]) -> int:
    listing = "\n".join(f"  {verb:10} {what}" for verb, what in VERBS.items())
    parser = Parser(
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


class Parser(argparse.ArgumentParser):
    """A wrong call is one sentence, as is everything else that goes wrong."""

    def error(self, message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        option = next((word for word in unknown.split() if word.startswith("-")), None)
        if option is not None:
            from mlx_transformer.inputs.checks import nearest

            option = option.partition("=")[0]
            message = f"unknown option {option}{nearest(option, [*self._option_string_actions])}"
        elif unknown:
            message = f"what is {unknown!r}? Several words that belong together go in quotes"
        sys.exit(_say(f"{message} ({self.prog} --help explains the options)", 2))


def _parser_of(verb: str, module: ModuleType) -> argparse.ArgumentParser:
    parser = Parser(
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
        status = module.run(args) or 0
        with naming_output("standard output"):
            sys.stdout.flush()  # here its failure is a sentence
        return status
    except BrokenPipeError:
        # The reader (`| head`) has enough. Forget stdout, so that Python does not flush it at exit.
        sys.stdout = None
        return 1
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except Exception as error:
        if args.debug:
            sys.excepthook(type(error), error, error.__traceback__)
        _abandon_broken_stdout()
        return _say(sentence(error, module), 2 if isinstance(error, InputError) else 1)


def _abandon_broken_stdout() -> None:
    """Otherwise Python would write what is left at exit, and fail with a message of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = None


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """In one line, as all that is said"""
    _say(str(message), 0)


def _say(message: str, status: int) -> int:
    from mlx_transformer.cli.output import tell  # only here: `--help` has no time for it

    tell(message)
    return status


if __name__ == "__main__":
    sys.exit(main())
