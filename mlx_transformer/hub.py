"""A model by any name: `resolve` is how every verb and `load` come to a model directory.

A directory of ours is taken as it is. Any other checkpoint on the disk is converted into our cache,
once; so is `org/name[@revision]`, which comes from the Hugging Face hub (its own cache, tokens,
mirrors and offline switch are `huggingface_hub`'s). What is in the cache needs no network.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mlx_transformer.errors import InputError, RunError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json
from mlx_transformer.storage import (
    built_aside,
    is_model_directory,
    nearest_model,
    shipped_models,
)
from mlx_transformer.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import mlx.core as mx
    from tqdm import tqdm

    from mlx_transformer.decoding.completer import Completer
    from mlx_transformer.decoding.text_encoder import TextEncoder

NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
FACTS = "facts.json"
SIDE_FILES = (".json", ".model", ".spm", ".txt", ".yml", ".yaml")  # configs and vocabularies
POOLING = "1_Pooling/config.json"  # of sentence-transformers
Tell = Callable[[str], None]
# Makes the progress bar of a download. Only then: tqdm takes 20 ms to import.
ShowDownload = Callable[[], "type[tqdm]"]


def silent(_: str) -> None:
    """Whoever wants to hear about downloads passes a function of their own."""


def no_bar() -> "type[tqdm]":
    from tqdm import tqdm

    class NoBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return NoBar


def resolve(
    model: str | Path, dtype: str | None = None, *, tell: Tell = silent, bar: ShowDownload = no_bar
) -> Path:
    """The model directory that `model` names; one that must be converted is, in this precision.

    A model that ships goes by its name alone, such as `de-en`, wherever it was installed to. `tell`
    hears what takes long, `bar` shows downloads.
    """
    path = _here(model)
    if path.exists():
        if is_ours(path) or not _holds_checkpoint(path):
            return path
        return _converted_file(path, dtype, tell)
    found = NAME.fullmatch(str(model))
    if found is None:
        return path  # whoever opens it says what is missing
    name, revision = found[1], found[2]
    place = cache_directory() / _key(name, revision, dtype)
    known = _entry(place)
    if known is not None:
        return known.model
    checkpoint = fetch(name, revision, tell=tell, bar=bar)
    facts = {"name": str(model), "commit": checkpoint.name}
    tell(f"converting {model}, this once")
    return _keep(place, checkpoint, name.partition("/")[2], facts, dtype)


def load_completer(model: str | Path, dtype: "mx.Dtype | None" = None) -> "Completer":
    """As `load`, for a decoder alone (a GPT): a completer."""
    from mlx_transformer.decoding import completer

    return completer.load_completer(resolve(model, _name_of(dtype)), dtype)


def load_text_encoder(model: str | Path, dtype: "mx.Dtype | None" = None) -> "TextEncoder":
    """As `load`, for an encoder alone (a BERT): vectors of texts, and words for gaps."""
    from mlx_transformer.decoding import text_encoder

    return text_encoder.load_text_encoder(resolve(model, _name_of(dtype)), dtype)


def _name_of(dtype: "mx.Dtype | None") -> str | None:
    return None if dtype is None else str(dtype).removeprefix("mlx.core.")


def checkpoint_of(model: str | Path, *, tell: Tell = silent, bar: ShowDownload = no_bar) -> Path:
    """What `model` names, as it was published: to be converted by hand."""
    path = _here(model)
    found = None if path.exists() else NAME.fullmatch(str(model))
    return path if found is None else fetch(found[1], found[2], tell=tell, bar=bar)


def _here(model: str | Path) -> Path:
    """A path, or where the model of that name lies that ships"""
    path = Path(model)
    if path.exists():
        return path
    return next((each for each in shipped_models() if each.name == str(model)), path)


def is_ours(directory: Path) -> bool:
    """Both we and transformers write config.json and model.safetensors; theirs has a model_type."""
    return is_model_directory(directory) and "model_type" not in read_json(
        directory / "config.json"
    )


def _holds_checkpoint(path: Path) -> bool:
    from mlx_transformer.convert.checkpoint import holds_weights

    return path.is_file() or holds_weights(path)


# Our cache: by model a folder that holds its model directory, and what is known of it


@dataclass(frozen=True)
class Entry:
    """A model in the cache, or one that ships."""

    directory: Path
    model: Path
    name: str
    family: str
    sources: Sequence[str]  # languages, by the model's own codes
    targets: Sequence[str]


def cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mlx-transformer" / "models"


def shipped() -> list[Entry]:
    """The models that ship."""
    return [Entry(path, path, path.name, "mlx", *languages_of(path)) for path in shipped_models()]


def cached() -> list[Entry]:
    """All models in the cache, by name."""
    found = [_entry(place) for place in sorted(cache_directory().glob("*"))]
    return [entry for entry in found if entry is not None]


def megabytes(model: Path) -> float:
    """What a model takes on the disk, a file or a folder"""
    files = [model] if model.is_file() else model.resolve().rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file()) / 1e6


def remove(name: str) -> list[Entry]:
    """Delete a model from the cache, in all its precisions; returns what that was."""
    entries = [entry for entry in cached() if name in (entry.name, entry.directory.name)]
    if not entries:
        known = ", ".join(entry.name for entry in cached()) or "nothing"
        raise InputError(f"the cache has no model {name!r}; it holds {known}")
    for entry in entries:
        shutil.rmtree(entry.directory)
    return entries


def _entry(place: Path) -> Entry | None:
    """None: there is none, or the hub's cache that it points into was emptied."""
    if place.name.startswith(".") or not (place / FACTS).is_file():
        return None
    facts = read_json(place / FACTS)
    model = place / facts["directory"]
    if not is_model_directory(model):
        return None
    return Entry(place, model, facts["name"], facts["family"], facts["sources"], facts["targets"])


def _key(name: str, revision: str | None, dtype: str | None) -> str:
    key = name if revision is None else f"{name}@{revision}"
    return (key if dtype is None else f"{key}-{dtype}").replace("/", "--")


def _converted_file(path: Path, dtype: str | None, tell: Tell) -> Path:
    """A checkpoint on the disk; converted again when it changes."""
    path = path.resolve()
    title = path.name if path.is_dir() else path.stem
    place = cache_directory() / _key(f"{title}-{_stamp(path)}", None, dtype)
    known = _entry(place)
    if known is not None:
        return known.model
    tell(f"converting {path}, this once")
    made = _keep(place, path, title, {"name": str(path)}, dtype)
    for entry in cached():  # older conversions, from before the file changed
        if entry.name == str(path) and _stamp(path) not in entry.directory.name:
            shutil.rmtree(entry.directory)
    return made


def _stamp(path: Path) -> str:
    inside = [path, *path.glob("*"), *path.glob("*/*")]  # weights may lie in a folder of their own
    files = sorted(p for p in inside if p.is_file())
    stats = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]


def _keep(
    place: Path, checkpoint: Path, title: str, facts: dict[str, Any], dtype: str | None
) -> Path:
    """Convert into the cache; a repository that holds our format is only pointed to."""
    from mlx_transformer.convert.conversion import convert

    name = facts["name"]
    with built_aside(place) as aside:
        model, family = aside / title, "mlx"
        if is_ours(checkpoint):
            model.symlink_to(checkpoint, target_is_directory=True)
        else:
            with _called(checkpoint, name):
                family = convert(checkpoint, model, dtype=dtype, origin=name).family
        sources, targets = languages_of(model)
        known = {**facts, "directory": title, "family": family}
        known |= {"sources": sources, "targets": targets}
        (aside / FACTS).write_text(json.dumps(known, indent=2), encoding="utf-8")
    return place / title


@contextmanager
def _called(checkpoint: Path, name: str) -> Iterator[None]:
    """Say in each error the name that was typed, not the folder that the hub keeps it in, and where
    what a checkpoint leaves open can be said: whoever opens a model has no options for it."""
    try:
        yield
    except InputError as error:
        message = str(error).replace(str(checkpoint), name)
        if error.options:
            message += f". Convert it by itself, with options: mlx-transformer convert {name} ..."
        raise InputError(message) from error


def languages_of(model: Path) -> tuple[list[str], list[str]]:
    """Codes of the source and target languages of a model directory, as far as it says them."""
    try:
        tags = load_tokenizer(model).tags
    except InputError:  # a model without a tokenizer is a model all the same
        return [], []
    return list(tags.sources), list(tags.targets)


# The hub


def fetch(
    name: str, revision: str | None = None, *, tell: Tell = silent, bar: ShowDownload = no_bar
) -> Path:
    """Download what it takes to convert this model; returns the folder of it in the hub's cache."""
    from huggingface_hub import HfApi, hf_hub_download

    with _explained(name, revision):
        info = HfApi().model_info(name, revision=revision)
    files = needed([file.rfilename for file in info.siblings or ()], name)
    tell(f"downloading {name}: {len(files)} files")
    for file in files:
        with _explained(name, revision):
            path = hf_hub_download(name, file, revision=info.sha, tqdm_class=bar())
        _check_hash(Path(path), name)
    return Path(path).parent


def check_name(name: str) -> None:
    if NAME.fullmatch(name) is None or "@" in name:
        raise InputError(f"a model on the hub is called ORG/NAME, not {shown(name)}")


def upload(directory: Path, name: str, *, tell: Tell = silent) -> str:
    """Put a model directory on the hub under this name; returns its address."""
    from huggingface_hub import HfApi

    check_name(name)
    tell(f"uploading {directory} as {name}")
    try:
        api = HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=directory)
    except Exception as error:
        raise RunError(
            f"{name} was not uploaded ({_reason(error)}); {directory} is complete: log in with "
            f"`hf auth login` or set HF_TOKEN, then `hf upload {name} {directory}`"
        ) from error
    return str(address)


def needed(names: Sequence[str], repository: str) -> list[str]:
    """Of the files of a repository, the ones to convert: one kind of weights, and small things."""
    from mlx_transformer.convert.checkpoint import WEIGHT_FILES

    for name in names:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if name.startswith("/") or ".." in parts or ":" in name:
            raise InputError(
                f"{repository} lists a file {shown(name)}, which would lie outside its folder: "
                "nothing was fetched"
            )
    weights = next((name for name in WEIGHT_FILES if name in names), None)
    if weights is None:
        raise InputError(f"{repository} holds no weights that we read ({', '.join(WEIGHT_FILES)})")
    stem, _, kind = weights.removesuffix(".index.json").partition(".")
    shard = re.compile(re.escape(stem) + r"-\d+-of-\d+\." + re.escape(kind))
    indexed = weights.endswith(".index.json")
    side = [n for n in names if "/" not in n and n.endswith(SIDE_FILES) and ".index." not in n]
    side += [n for n in names if n == POOLING]
    return [*side, *(n for n in names if indexed and shard.fullmatch(n)), weights]


def _check_hash(path: Path, repository: str) -> None:
    """The hub's cache names a file by its hash: SHA-256 of large files, git's of small ones."""
    blob = path.resolve()
    with blob.open("rb") as file:
        if re.fullmatch("[0-9a-f]{64}", blob.name):
            digest = hashlib.file_digest(file, "sha256")
        elif re.fullmatch("[0-9a-f]{40}", blob.name):
            digest = hashlib.sha1(b"blob %d\0" % blob.stat().st_size + file.read())
        else:
            return
    if digest.hexdigest() != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        raise RunError(
            f"{path.name} of {repository} arrived damaged (its hash is wrong) and was deleted: "
            "try again"
        )


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """What can go wrong between here and the hub, a sentence each."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name}, then log in "
            "with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{name} has no revision {revision!r} on the hub") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise InputError(
            f"there is no directory {name} here, and no such model on the hub (a private one "
            f"needs `hf auth login` or HF_TOKEN){nearest_model(Path(name))}"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise RunError(f"no space left on the disk for {name}: free some, try again") from error
        raise RunError(
            f"the hub cannot be reached for {name} ({_reason(error)}), and no such directory is "
            f"here: check the name, or try again (what was done is kept){nearest_model(Path(name))}"
        ) from error


def _reason(error: Exception) -> str:
    """The first line of what a library says."""
    return str(error).partition("\n")[0] or type(error).__name__
