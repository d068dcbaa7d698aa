"""How the verbs open a model: a directory, a checkpoint or a hub name, between languages."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_transformer.cli.output import tell
from mlx_transformer.errors import InputError
from mlx_transformer.storage import CONFIG_FILE, default_model

if TYPE_CHECKING:
    from tqdm import tqdm

    from mlx_transformer.decoding.completer import Completer
    from mlx_transformer.decoding.pivot import Pivot
    from mlx_transformer.decoding.text_encoder import TextEncoder
    from mlx_transformer.decoding.translator import Translator

Opened = tuple[Path | None, "Translator | Pivot"]  # the model, or None for two in a row
DTYPES = ("float32", "float16", "bfloat16")


def download_bar() -> "type[tqdm]":
    """On a terminal only, and on stderr."""
    from tqdm import tqdm

    class DownloadBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Theirs is the address of the file, or its end.
            name = str(kwargs.get("desc") or "").rpartition("/")[2]
            shown = {"disable": None, "file": sys.stderr, "leave": False, "desc": name}
            super().__init__(*args, **{**kwargs, **shown})

    return DownloadBar


def add_model_flags(parser: argparse.ArgumentParser, example: str | None = None) -> None:
    """`example` is given where no model that ships will do: then one must be named."""
    default = "" if example else " (default: the model that ships)"
    parser.add_argument(
        "--model",
        metavar="MODEL",
        type=Path,
        required=example is not None,
        help="a model directory, a checkpoint that convert reads, or a name on the Hugging Face "
        f"hub such as {example or 'Helsinki-NLP/opus-mt-en-de'}[@revision]{default}",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="compute in this type (default: as stored; on a CPU float32)",
    )


def add_language_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("languages", "for models of several: codes or names")
    group.add_argument("--from", dest="source_language", metavar="LANGUAGE", help="of the text")
    group.add_argument("--to", dest="target_language", metavar="LANGUAGE", help="to translate into")
    group.add_argument("--reverse", action="store_true", help="the other direction")


def model_directory(model: Path, dtype: str | None = None) -> Path:
    """The directory of a model by any name; what takes long is told."""
    from mlx_transformer.hub import resolve

    return resolve(model, dtype, tell=tell, bar=download_bar)


def load_translator(model: Path, dtype: str | None = None) -> "Translator":
    import mlx.core as mx

    from mlx_transformer.decoding.translator import load

    return load(model_directory(model, dtype), getattr(mx, dtype) if dtype else None)


def is_decoder_alone(model: Path) -> bool:
    from mlx_transformer.config import ModelConfig

    path = model_directory(model) / CONFIG_FILE
    return path.is_file() and ModelConfig.load(path).alone == "decoder"


def open_completer(args: argparse.Namespace) -> "Completer":
    import mlx.core as mx

    from mlx_transformer.decoding.completer import load_completer

    directory = model_directory(args.model, args.dtype)
    return load_completer(directory, getattr(mx, args.dtype) if args.dtype else None)


def open_text_encoder(args: argparse.Namespace) -> "TextEncoder":
    import mlx.core as mx

    from mlx_transformer.decoding.text_encoder import load_text_encoder

    directory = model_directory(args.model, args.dtype)
    return load_text_encoder(directory, getattr(mx, args.dtype) if args.dtype else None)


def open_translator(args: argparse.Namespace) -> "Translator | Pivot":
    """The translator that the flags ask for, with the languages that it needs."""
    return open_named(args)[1]


def open_model(args: argparse.Namespace) -> "Translator":
    """As `open_translator`, for what only a single model can do"""
    from mlx_transformer.decoding.translator import Translator

    translator = open_translator(args)
    if not isinstance(translator, Translator):
        raise InputError("these languages take two models in a row: name one of them with --model")
    return translator


def open_named(args: argparse.Namespace, *, checked: bool = True) -> Opened:
    """`checked`: the languages that a model needs are there."""
    model, languages = args.model, (args.source_language, args.target_language)
    if args.reverse and any(languages):
        languages = languages[::-1]
    elif args.reverse:
        model = reverse_model(model or default_model())
    if model is None and any(languages):
        return find_translator(*languages, args.dtype)
    model = model or default_model()
    translator = load_translator(model, args.dtype)
    if any(languages):
        translator = translator.between(*languages)
    if checked and not translator.tokenizer.tags.spelled:
        _ = translator.tokenizer.frame
    return model, translator


def find_translator(source: str | None, target: str | None, dtype: str | None) -> Opened:
    """What this machine has for these languages; models that do not ship are told."""
    import mlx.core as mx

    from mlx_transformer import installed

    legs = installed.route(source, target)
    if not legs:
        raise installed.no_way(source, target)
    if any(leg.model.owner != installed.SHIPPED for leg in legs):
        tell(installed.described(legs))
    translator = installed.open_route(legs, getattr(mx, dtype) if dtype else None, tell)
    return legs[0].model.path if len(legs) == 1 else None, translator


def reverse_model(model: Path) -> Path:
    """The model of the other direction: beside this one, elsewhere on this machine, or of like name
    on the hub."""
    from mlx_transformer.installed import route
    from mlx_transformer.tokenizer.languages import pair_of

    name = model.resolve().name if model.exists() else model.name
    pair = pair_of(name)
    if pair is None:
        raise InputError(f"{name} does not say its languages, as en-de does: name the other model")
    swapped = name.replace("-".join(pair), "-".join(reversed(pair)), 1)
    beside = model.resolve().parent / swapped if model.exists() else model.with_name(swapped)
    if not model.exists() or beside.exists():
        return beside
    legs = route(*reversed(pair))
    if len(legs) != 1:
        raise InputError(f"there is no model {swapped} beside {model}, nor another on this machine")
    return legs[0].model.path
