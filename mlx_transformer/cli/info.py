"""`mlx-transformer info`: the configuration and size of a preset, a recipe or a model."""

import argparse
from pathlib import Path
from typing import Any

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import show, to_json
from mlx_transformer.config import PRESETS, preset
from mlx_transformer.decoding.options import differing, model_options
from mlx_transformer.errors import InputError
from mlx_transformer.hub import languages_of
from mlx_transformer.inputs.checks import nearest
from mlx_transformer.recipes import SUFFIX, load_recipe, shipped_recipes
from mlx_transformer.storage import count_parameters, load_model, named_parameters, nearest_model
from mlx_transformer.tokenizer.languages import language_name


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the configuration and size of a preset, a recipe or a model, or what memory the "
        "training of a recipe takes."
    )
    parser.epilog = (
        "examples:\n"
        "  mlx-transformer info base --vocab-size 37000 --json\n"
        "  mlx-transformer info wmt14-en-de-base --memory\n"
        f"presets: {', '.join(PRESETS)}"
    )
    parser.add_argument(
        "model", metavar="PRESET|MODEL|RECIPE", help="a preset, a model by any name, or a recipe"
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="how a recipe's batches are cut on Macs of 8 to 64 GB, for sentences of 32 tokens",
    )
    parser.add_argument("--vocab-size", type=int, metavar="N", help="a preset's vocabulary size")
    parser.add_argument("--languages", action="store_true", help="list the languages of a model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    if args.languages:
        return _show_languages(model_directory(Path(args.model)), args.json)
    if args.memory:
        return _show_memory(args.model, as_json=args.json)
    facts = _facts(args.model, args.vocab_size)
    if args.json:
        show(to_json(facts, indent=2))
        return None
    for name, value in facts["config"].items():
        show(f"{name:28} {'-' if value is None else value}")
    for name, value in facts.get("generation", {}).items():
        show(f"generation {name:17} {value}")
    show(f"\n{'parameters':28} {facts['parameters']:,}")
    if "megabytes" in facts:
        show(f"{'dtype':28} {facts['dtype']}\n{'megabytes':28} {facts['megabytes']}")
    return None


def _show_languages(directory: Path, as_json: bool) -> None:
    """code, name and where it can stand, one a line"""
    sources, targets = languages_of(directory)
    if as_json:
        show(to_json({"sources": sources, "targets": targets}))
        return
    if not targets:
        raise InputError(f"{directory} does not say its languages")
    for code in dict.fromkeys([*sources, *targets]):
        where = [word for word, codes in (("from", sources), ("to", targets)) if code in codes]
        show(f"{code:12} {language_name(code):32} {' '.join(where)}")


def _facts(name: str, vocab_size: int | None) -> dict[str, Any]:
    if name in PRESETS:
        config = preset(name, **({} if vocab_size is None else {"vocab_size": vocab_size}))
    elif name in shipped_recipes() or name.endswith(SUFFIX):
        recipe = load_recipe(name)
        if recipe.model.start is not None:  # it brings its own sizes
            return _facts(str(recipe.model.start), vocab_size)
        size = vocab_size or recipe.tokenizer.vocab_size
        config = recipe.model_config(size, size)
    else:
        return _facts_of_directory(_existing(name, vocab_size))
    return {"config": config.to_dict(), "parameters": count_parameters(config)}


def _existing(name: str, vocab_size: int | None) -> Path:
    """The directory of a model, whose vocabulary nobody can change"""
    directory = model_directory(Path(name))
    if not directory.exists():
        near = nearest(name, [*PRESETS, *shipped_recipes()]) or nearest_model(Path(name)) or ";"
        raise InputError(f"there is no preset, recipe or model {name}{near} --help lists presets")
    if vocab_size is not None:
        raise InputError(f"--vocab-size is for presets; the vocabulary of {name} is fixed")
    return directory


def _facts_of_directory(directory: Path) -> dict[str, Any]:
    model = load_model(directory)
    arrays = list(named_parameters(model).values())
    bits = model.config.quantization
    return {
        "config": model.config.to_dict(),
        "generation": differing(model_options(directory)),
        "parameters": count_parameters(model.config),
        "dtype": f"{bits}-bit" if bits else str(arrays[0].dtype).removeprefix("mlx.core."),
        "megabytes": round(sum(array.nbytes for array in arrays) / 1e6, 2),
    }


def _show_memory(recipe_name: str, *, as_json: bool) -> None:
    """How the recipe's training fits into the memory that Macs have."""
    from mlx_transformer.training.memory import plans_for_macs

    recipe = load_recipe(recipe_name)
    size = recipe.tokenizer.vocab_size
    rows = plans_for_macs(recipe.model_config(size, size), recipe.training)
    if as_json:
        show(to_json(rows, indent=2))
        return
    show(f"{'memory':>8} {'micro-batches':>14} {'tokens each':>12} {'an update takes':>16}")
    for row in rows:
        if row["bytes"] is None:
            show(f"{row['memory']:>5} GB {'does not fit':>14}")
        else:
            taken = f"{row['micro_batches']:>14} {row['tokens']:>12,} {row['bytes'] / 1e9:>13.1f}"
            show(f"{row['memory']:>5} GB {taken} GB")
