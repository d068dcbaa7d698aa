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


def load_translator(model: Path, dtype: str | None = None) -> "Translator":
    import mlx.core as mx

    from mlx_transformer.decoding.translator import load

    return load(model_directory(model, dtype), getattr(mx, dtype) if dtype else None)


def open_translator(args: argparse.Namespace, *, checked: bool = True) -> "Translator":
    """The translator that the flags ask for; `checked`: with the languages that it needs."""
    return open_model(args, checked=checked)[1]


def open_model(args: argparse.Namespace, *, checked: bool = True) -> tuple[Path, "Translator"]:
    """The model that the flags ask for, and its translator."""
    model, languages = args.model, (args.source_language, args.target_language)
    if args.reverse and any(languages):
        languages = languages[::-1]
    elif args.reverse:
        model = reverse_model(model or default_model())
    if model is None:
        model, languages = _found(*languages), (None, None)
    translator = load_translator(model, args.dtype)
    if any(languages):
        translator = translator.between(*languages)
    if checked:
        _ = translator.tokenizer.frame
    return model, translator


def _found(source: str | None, target: str | None) -> Path:
    """The model on this machine for these languages, where no other is named."""
    from mlx_transformer import hub

    if source is None and target is None:
        return default_model()
    path = hub.find(source, target)
    if path is None:
        wanted = " ".join(
            f"{word} {language}"
            for word, language in (("from", source), ("to", target))
            if language
        )
        raise InputError(
            f"no model on this machine translates {wanted}: name one", options=["model"]
        )
    if path.parent != default_model().parent:
        tell(f"translating with {path}")
    return path


def reverse_model(model: Path) -> Path:
    """The model of the other direction: beside this one, elsewhere on this machine, or of like name
    on the hub."""
    from mlx_transformer.hub import find
    from mlx_transformer.tokenizer.languages import pair_of

    name = model.resolve().name if model.exists() else model.name
    pair = pair_of(name)
    if pair is None:
        raise InputError(f"{name} does not say its languages, as en-de does: name the other model")
    swapped = name.replace("-".join(pair), "-".join(reversed(pair)), 1)
    beside = model.resolve().parent / swapped if model.exists() else model.with_name(swapped)
    if not model.exists() or beside.exists():
        return beside
    found = find(*reversed(pair))
    if found is None:
        raise InputError(f"there is no model {swapped} beside {model}, nor another on this machine")
    return found
