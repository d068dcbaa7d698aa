"""How the verbs open a model: a directory, a checkpoint or a hub name, between languages."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mlx_transformer.cli.output import tell
from mlx_transformer.errors import InputError
from mlx_transformer.storage import default_model

if TYPE_CHECKING:
    from mlx_transformer.decoding.translator import Translator

DTYPES = ("float32", "float16", "bfloat16")


class DownloadBar(tqdm):
    """On a terminal only, and on stderr."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": None, "file": sys.stderr, "leave": False})


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        type=Path,
        help="a model directory, a checkpoint that convert reads, or a name on the Hugging Face "
        "hub such as Helsinki-NLP/opus-mt-en-de[@revision] (default: the model that ships)",
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

    return resolve(model, dtype, tell=tell, bar=DownloadBar)


def load_translator(model: Path | None, dtype: str | None = None) -> "Translator":
    import mlx.core as mx

    from mlx_transformer.decoding.translator import load

    path = default_model() if model is None else model_directory(model, dtype)
    return load(path, getattr(mx, dtype) if dtype else None)


def open_translator(args: argparse.Namespace, *, checked: bool = True) -> "Translator":
    """The translator that the flags ask for; `checked`: with the languages that it needs."""
    model, languages = args.model, (args.source_language, args.target_language)
    if args.reverse:
        if any(languages):
            languages = languages[::-1]
        else:
            model = reverse_model(model or default_model())
    found = None if model is not None else _found(*languages)
    translator = load_translator(found or model, args.dtype)
    if any(languages) and found is None:
        translator = translator.between(*languages)
    if checked:
        _ = translator.tokenizer.frame
    return translator


def _found(source: str | None, target: str | None) -> Path | None:
    """The model on this machine for both languages, if no other is named."""
    from mlx_transformer import hub

    path = hub.find(source, target) if source and target else None
    if path is not None:
        tell(f"translating with {path}")
    return path


def reverse_model(model: Path) -> Path:
    """The model of the other direction: beside this one, or of like name on the hub."""
    from mlx_transformer.tokenizer.languages import pair_of

    name = model.resolve().name if model.exists() else model.name
    pair = pair_of(name)
    if pair is None:
        raise InputError(f"{name} does not say its languages, as en-de does: name the other model")
    swapped = name.replace("-".join(pair), "-".join(reversed(pair)), 1)
    beside = model.resolve().parent / swapped if model.exists() else model.with_name(swapped)
    if model.exists() and not beside.exists():
        raise InputError(f"there is no model {swapped} beside {model}")
    return beside
