"""`mlx-transformer models`: which models are on this machine."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

from mlx_transformer import hub
from mlx_transformer.cli.output import show, tell, to_json
from mlx_transformer.errors import InputError
from mlx_transformer.installed import installed

EPILOG = """\
examples:
  mlx-transformer models
  mlx-transformer models remove Helsinki-NLP/opus-mt-en-de

Listed are the models that ship; those in the cache, ~/.cache/mlx-transformer (or in
$XDG_CACHE_HOME), where a model comes when it is first used by a name of the hub, or as a checkpoint
of another program; and others that are found by their languages (translate --from pt --to en): in
the folder $MLX_TRANSFORMER_MODELS, and where Argos Translate and fxtranslate keep theirs.
"""
SHOWN = 4  # languages of a model; info --languages lists them all


class ModelRow(NamedTuple):
    """A model as it is listed."""

    name: str
    directory: Path
    megabytes: float
    owner: str
    family: str  # of models in the cache: what they were converted from
    sources: Sequence[str]
    targets: Sequence[str]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the models on this machine, or remove one from the cache."
    parser.epilog = EPILOG
    parser.add_argument("action", nargs="?", choices=["list", "remove"], default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the model to remove")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(args: argparse.Namespace) -> None:
    if args.action == "remove":
        return _remove(args.name)
    if args.name is not None:
        raise InputError("a name goes with remove: mlx-transformer models remove NAME")
    rows = list(_rows())
    if args.json:
        for row in rows:
            facts = {**row._asdict(), "directory": str(row.directory)}
            show(to_json({**facts, "megabytes": round(row.megabytes, 2)}))
        return None
    cells = [(r.name, f"{r.megabytes:,.1f} MB", r.family or r.owner, _languages(r)) for r in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)] if rows else []
    for name, size, owner, languages in cells:
        show(f"{name:{widths[0]}}  {size:>{widths[1]}}  {owner:{widths[2]}}  {languages}".rstrip())
    return None


def _rows() -> Iterator[ModelRow]:
    """What ships and the cache first; nothing is listed a second time."""
    entries = [*hub.shipped(), *hub.cached()]
    for e in entries:
        size = hub.megabytes(e.model)
        yield ModelRow(e.name, e.model, size, "mlx-transformer", e.family, e.sources, e.targets)
    listed = {e.name for e in entries} | {str(e.model) for e in entries}
    for path, owner, sources, targets in map(astuple, installed()):
        if not {str(path), str(path.resolve())} & listed:
            yield ModelRow(str(path), path, hub.megabytes(path), owner, "", sources, targets)


def _remove(name: str | None) -> None:
    if name is None:
        raise InputError("which one? mlx-transformer models lists them")
    for entry in hub.remove(name):
        show(entry.directory)
    tell("what was downloaded stays in the hub's own cache (`hf cache ls` shows it)")


def _languages(row: ModelRow) -> str:
    sources, targets = (_some(codes) for codes in (row.sources, row.targets))
    return f"{sources} to {targets}" if sources and targets else targets


def _some(codes: Sequence[str]) -> str:
    return ", ".join(codes) if len(codes) <= SHOWN else f"{len(codes)} languages"
