"""mlx-transformer train: raw parallel text in, a trained translator out."""

import argparse
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mlx_transformer.cli.output import STDERR, show, tell
from mlx_transformer.errors import InputError

if TYPE_CHECKING:
    import mlx.core as mx

    from mlx_transformer.model import Transformer
    from mlx_transformer.recipes import Recipe
    from mlx_transformer.training.run import Run
    from mlx_transformer.training.validation import Translate

EPILOG = """\
examples:
  mlx-transformer train numbers --out runs/numbers
  mlx-transformer train my-recipe.toml --out runs/mine --set training.max_steps=5000
  mlx-transformer train --resume runs/mine
  mlx-transformer train --resume runs/mine --set training.max_steps=20000
  mlx-transformer train my-recipe.toml --start weights/en-de --out runs/tuned
  mlx-transformer train --list
  mlx-transformer train --show numbers
  mlx.launch -n 2 mlx-transformer train numbers --out runs/numbers    (two processes)

Ctrl-C, SIGTERM or a closed terminal saves and stops; a second Ctrl-C quits at once. The model, an
average of the last checkpoints, is RUN/model; the best one by validation is RUN/best.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a model from a recipe (a TOML file, or the name of one that is shipped): learn the "
        "tokenizer, prepare the text, train, validate, save."
    )
    parser.epilog = EPILOG
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a name or a .toml file")
    parser.add_argument("--out", type=Path, metavar="RUN", help="directory of the new run")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with this run")
    parser.add_argument(
        "--start",
        type=Path,
        metavar="MODEL",
        help="fine-tune this model (a directory, or a hub name), with its own tokenizer",
    )
    parser.add_argument("--from", dest="old_start", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="the recipes that are shipped")
    parser.add_argument(
        "--show", action="store_true", help="print the recipe with its defaults, and do nothing"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="replace a key of the recipe, as training.max_steps=500; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    if args.list:
        return _list()
    if args.old_start is not None:
        tell("--from is now --start: elsewhere --from and --to are languages")
        args.start = args.old_start
    recipe: Recipe | None = None
    hints: list[str] = []
    if args.resume is None:
        if args.recipe is None or (args.out is None and not args.show):
            raise InputError("give a recipe and --out RUN, or --resume RUN")
        recipe, hints = _recipe(args)
    elif args.recipe is not None or args.out is not None or args.start is not None:
        raise InputError("--resume RUN needs nothing else: the recipe is in RUN/run.toml")
    if args.show and recipe is not None:
        show(recipe.to_toml().rstrip())
        return 0
    return _train(args, recipe, hints)


def _list() -> int:
    from mlx_transformer.recipes import first_line, shipped_recipes

    for name in shipped_recipes():
        show(f"{name:18} {first_line(name)}")
    return 0


def _recipe(args: argparse.Namespace) -> tuple["Recipe", list[str]]:
    """The recipe, and what of it does not fit a model that is there already."""
    from mlx_transformer.cli.opening import model_directory
    from mlx_transformer.recipes import load_recipe

    recipe = load_recipe(args.recipe, args.overrides)
    start = model_directory(args.start) if args.start else recipe.model.start
    if start is None:
        return recipe, []
    hints = []
    if unused := recipe.unused_in_tuning():
        listed = ", ".join(unused)
        hints.append(f"the model brings its own tokenizer and sizes; not used: {listed}")
    return recipe.tuning(start), hints + _other_languages(recipe, start)


def _other_languages(recipe: "Recipe", start: Path) -> list[str]:
    """A hint, if the model translates in one direction, and the recipe in another."""
    from mlx_transformer.hub import languages_of
    from mlx_transformer.tokenizer.languages import language_name, pair_of

    data = recipe.data
    pair = data.source_language, data.target_language
    if data.is_plain_text or pair_of("-".join(pair)) is None:  # names of files, not of languages
        return []
    sources, targets = languages_of(start)
    if len(sources) != 1 or len(targets) != 1:
        return []
    known, wanted = (
        " to ".join(map(language_name, each)) for each in ((sources[0], targets[0]), pair)
    )
    if known == wanted:
        return []
    return [f"{start} translates {known}: from this recipe it learns {wanted} instead"]


def _train(args: argparse.Namespace, recipe: "Recipe | None", hints: list[str]) -> int:
    import mlx.core as mx

    from mlx_transformer.training.run import Run, held

    group = mx.distributed.init()
    first = group.rank() == 0
    path = args.resume if recipe is None else args.out
    if recipe is None:
        Run.open(path)  # before anything is made there
    with held(path) if first else nullcontext():
        return _train_held(args, recipe, hints, path, group)


def _train_held(
    args: argparse.Namespace,
    recipe: "Recipe | None",
    hints: list[str],
    path: Path,
    group: "mx.distributed.Group",
) -> int:
    import mlx.core as mx

    from mlx_transformer.cli.console import Console
    from mlx_transformer.training.run import Run, train

    first = group.rank() == 0
    console = Console(shown=first)
    if first:
        run = Run.open(path, args.overrides) if recipe is None else Run.create(path, recipe)
        for hint in hints:
            tell(hint)
        console.prepared(run.prepare(console.preparing))
    mx.eval(mx.distributed.all_sum(mx.zeros(1), group=group))  # the others wait for the data
    run = Run.open(path)
    signals = Signals()
    with console.training(path, run.recipe.training.max_steps):
        outcome = train(run, _translate(run), console, signals, group)
    if outcome == "interrupted":
        console.message(f"saved; go on with: mlx-transformer train --resume {path}")
        return 128 + signals.received
    if outcome == "stopped early":
        patience = run.recipe.validation.patience
        console.message(f"stopped early: {patience} validations without a lower loss")
    if first:
        show(run.files.model)
    return 0


def _translate(run: "Run") -> "Translate":
    """Translation as the recipe's [validation] asks for."""
    from mlx_transformer.decoding.options import SearchOptions
    from mlx_transformer.decoding.translator import Translator

    options = SearchOptions(beam=run.recipe.validation.beam, alpha=run.recipe.validation.alpha)
    tokenizer = run.tokenizer()

    def translate(model: "Transformer", texts: Sequence[str]) -> list[str]:
        return [found.text for found in Translator(model, tokenizer, options).translate(texts)]

    return translate


class Signals:
    """Remembers the first Ctrl-C, SIGTERM or hang-up; the second Ctrl-C interrupts as usual.

    Under nohup a hang-up goes on being ignored.
    """

    received = 0

    def __enter__(self) -> "Signals":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])
        STDERR.write("\nstopping after this step (Ctrl-C again: at once)\n")
