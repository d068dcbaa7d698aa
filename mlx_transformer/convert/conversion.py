"""Convert a checkpoint: plan it, then write the model directory tensor by tensor."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.families import find_family
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.mapping import make, stored_dtype
from mlx_transformer.convert.plan import ConversionPlan, make_plan, uses
from mlx_transformer.convert.quantize import quantize_directory
from mlx_transformer.convert.safetensors_file import NewTensor, write_safetensors
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.untrusted import FLOATS
from mlx_transformer.storage import built_aside, is_model_directory
from mlx_transformer.tokenizer import check_belongs, load_tokenizer
from mlx_transformer.tokenizer.transformers_files import SETTINGS

CARD = """\
---
library_name: mlx
tags: [mlx, {task}]
---

# {name}

Converted by mlx-transformer from {title}, `{checkpoint}`.

{c.encoder_layers} encoder and {c.decoder_layers} decoder layers, {c.h} heads, d_model {c.d_model},
d_ff {c.d_ff}, {c.vocab_size} source and {c.target_vocab_size} target words.

    mlx-transformer {verb} --model {name}{languages} "..."
"""
# What a card says of a model of both stacks, or of one: its task on the hub, and our verb.
TASKS = {
    None: ("translation", "translate"),
    "encoder": ("sentence-similarity", "embed"),
    "decoder": ("text-generation", "complete"),
}


@dataclass(frozen=True)
class Report:
    """What a conversion did."""

    directory: Path
    family: str
    config: ModelConfig
    dtypes: tuple[str, ...]
    parameters: int
    ignored: tuple[str, ...]
    tokenizer_files: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """The keys of a checkpoint. `problem` is None where it is complete."""

    keys: list["ListedKey"]
    family: str | None  # its title, if it is known
    problem: InputError | None


@dataclass(frozen=True)
class ListedKey:
    """A tensor of a checkpoint, and what becomes of it; an empty use means that nothing does."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    use: str


def convert(
    checkpoint_path: Path,
    directory: Path,
    options: Options | None = None,
    *,
    family: str | None = None,
    dtype: str | None = None,
    bits: int | None = None,
    force: bool = False,
    card_name: str | None = None,
    origin: str | None = None,
) -> Report:
    """Turn a checkpoint into a model directory. `dtype` None keeps the checkpoint's precision,
    `bits` quantises the matrices. Its card calls it `card_name` (None: as the directory), and the
    checkpoint `origin` (None: as its file)."""
    if dtype is not None and dtype not in FLOATS:
        raise InputError(f"the dtype must be one of {', '.join(FLOATS)}, not {dtype!r}")
    _check_free(directory, force)
    plan = make_plan(*find_family(read_checkpoint(checkpoint_path), options or Options(), family))
    entries = _entries(plan, dtype)
    tokenizer_files = _tokenizer_files(plan)
    used_with = {
        "generation.json": plan.family.generation(plan.source),
        "embedding.json": plan.family.embedding(plan.source),
    }
    with built_aside(directory) as aside:
        plan.config.save(aside / "config.json")
        write_safetensors(aside / "model.safetensors", entries)
        for name, content in tokenizer_files.items():
            _put(content, aside / name)
        _check_tokenizer(aside, plan)
        for name, wishes in used_with.items():
            if wishes:
                _put(json.dumps(wishes, indent=2).encode(), aside / name)
        (aside / "README.md").write_text(
            _card(plan, card_name or directory.name, origin or checkpoint_path.name, aside),
            encoding="utf-8",
        )
        if bits is not None:
            quantize_directory(aside, bits)
    return _report(plan, directory, entries, tuple(tokenizer_files), bits)


def list_keys(
    checkpoint_path: Path, options: Options | None = None, *, family: str | None = None
) -> Listing:
    """Every key with its use, and what is wrong with the whole."""
    options = options or Options()
    checkpoint = read_checkpoint(checkpoint_path)
    use: Mapping[str, str] = {}
    title, problem = None, None
    try:
        found, source = find_family(checkpoint, options, family)
        use = {source.original[key]: what for key, what in uses(found, source).items()}
        title = found.title
        make_plan(found, source)
    except InputError as error:
        problem = error
    tensors = checkpoint.tensors.items()
    keys = [ListedKey(name, t.shape, t.dtype, use.get(name, "")) for name, t in tensors]
    return Listing(keys, title, problem)


def _entries(plan: ConversionPlan, dtype: str | None) -> dict[str, NewTensor]:
    tensors = plan.source.tensors
    entries: dict[str, NewTensor] = {}
    for name, rule in plan.rules.items():
        stored, shape = stored_dtype(rule, tensors, dtype), plan.shapes[name]
        entries[name] = NewTensor(stored, shape, partial(make, rule, tensors, shape, stored))
    return entries


def _tokenizer_files(plan: ConversionPlan) -> dict[str, Path | bytes]:
    """Content by name in the model directory, with what sources begin with, if that was said"""
    files = _vocabulary_files(plan)
    if not plan.source.options.source_start:
        return files
    if not files:
        raise InputError(
            "what sources begin with is kept beside their vocabulary: name a vocabulary",
            options=["source_vocab"],
        )
    if plan.config.start_id is None:
        raise InputError("this model starts from no id: sources cannot begin with it")
    said = files.get(SETTINGS, b"{}")
    settings = json.loads(said if isinstance(said, bytes) else said.read_bytes())
    frame = {**settings.get("frame", {}), "before": [plan.config.start_id]}
    return {**files, SETTINGS: json.dumps({**settings, "frame": frame}).encode()}


def _vocabulary_files(plan: ConversionPlan) -> dict[str, Path | bytes]:
    """What the user names, or what the family knows"""
    given = [plan.source.options.source_vocab, plan.source.options.target_vocab]
    paths = [path for path in given if path is not None]
    for path in paths:
        if not path.is_file():
            raise InputError(f"there is no vocabulary file {path}")
    known = plan.family.vocabulary(plan.source)
    files = {n: c for n, c in known.items() if isinstance(c, bytes) or c.is_file()}
    if not paths or paths[0] in files.values():
        return files
    if paths[0].suffix == ".txt":  # a word list like fairseq's
        names = ("dict.txt",) if len(paths) == 1 else ("dict.source.txt", "dict.target.txt")
        return dict(zip(names, paths, strict=True))
    if "vocab.json" in files:  # SentencePiece cuts, the checkpoint's vocabulary numbers
        return files | {"source.spm": paths[0], "target.spm": paths[-1]}
    names = ("tokenizer.model",) if len(paths) == 1 else ("source.model", "target.model")
    return dict(zip(names, paths, strict=True))


def _check_tokenizer(directory: Path, plan: ConversionPlan) -> None:
    """Files that make no tokenizer are kept as they are, unless the user named them; one that does
    has to fit."""
    named = plan.source.options.source_vocab
    try:
        tokenizer = load_tokenizer(directory)
    except InputError as error:
        if named is None:
            return
        raise InputError(
            f"{named} is no vocabulary that we read: a SentencePiece model, a .json list of words, "
            "or a .txt file as fairseq's dict.txt",
            options=["source_vocab"],
        ) from error
    check_belongs(tokenizer, plan.config, plan.source.checkpoint.path)


def _put(content: Path | bytes, place: Path) -> None:
    if isinstance(content, bytes):
        place.write_bytes(content)
    else:
        shutil.copyfile(content, place)


def _card(plan: ConversionPlan, name: str, origin: str, directory: Path) -> str:
    task, verb = TASKS[plan.config.alone]
    return CARD.format(
        name=name,
        task=task,
        verb=verb,
        title=plan.family.title,
        checkpoint=origin,
        languages=_languages_needed(directory),
        c=plan.config,
    )


def _languages_needed(directory: Path) -> str:
    """The flag without which a model of several languages does not translate."""
    try:
        tokenizer = load_tokenizer(directory)
    except InputError:
        return ""
    try:
        _ = tokenizer.frame
    except InputError:
        return f" --to {tokenizer.tags.targets[0]}"
    return ""


def _report(
    plan: ConversionPlan,
    directory: Path,
    entries: Mapping[str, NewTensor],
    files: tuple[str, ...],
    bits: int | None,
) -> Report:
    use = uses(plan.family, plan.source)
    return Report(
        directory=directory,
        family=plan.family.name,
        config=replace(plan.config, quantization=bits),
        dtypes=tuple(sorted({entry.dtype for entry in entries.values()})),
        parameters=sum(math.prod(entry.shape) for entry in entries.values()),
        ignored=tuple(
            plan.source.original[key] for key, what in use.items() if what == "(ignored)"
        ),
        tokenizer_files=files,
    )


def _check_free(directory: Path, force: bool) -> None:
    if not directory.exists():
        return
    if not force:
        raise InputError(
            f"{directory} exists: give another name, or have it replaced", options=["force"]
        )
    empty = directory.is_dir() and not any(directory.iterdir())
    if not (empty or is_model_directory(directory)):
        raise InputError(f"{directory} exists and is not a model directory: give another name")
