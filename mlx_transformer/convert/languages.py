"""The languages of other programs' models, as far as their files say them."""

from collections.abc import Mapping
from pathlib import Path

from mlx_transformer.convert import marian_npz
from mlx_transformer.convert.ctranslate2_file import ARGOS_METADATA, bytes_of, is_argos
from mlx_transformer.convert.zip_file import zip_members
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.untrusted import parse_json, read_json


def said_languages(path: Path) -> tuple[str, str] | None:
    """From which language to which an Argos package, its folder or one of Firefox's translates;
    None: it does not say, or cannot be read."""
    try:
        if is_argos(path):
            return _argos(_metadata_in_zip(path))
        if (path / ARGOS_METADATA).is_file() and (pair := _argos(read_json(path / ARGOS_METADATA))):
            return pair
        said = marian_npz.languages_of(path)
    except (InputError, OSError):
        return None
    return _pair(said.get("source_lang"), said.get("target_lang"))


def _metadata_in_zip(path: Path) -> Mapping[str, object]:
    found = [m for name, m in zip_members(path).items() if name.endswith(f"/{ARGOS_METADATA}")]
    return parse_json(bytes_of(found[0], ARGOS_METADATA), ARGOS_METADATA) if found else {}


def _argos(said: Mapping[str, object]) -> tuple[str, str] | None:
    return _pair(said.get("from_code"), said.get("to_code"))


def _pair(source: object, target: object) -> tuple[str, str] | None:
    both = isinstance(source, str) and isinstance(target, str)
    return (str(source), str(target)) if both else None
