"""`mlx-transformer models`: the models that ship, and those in the cache of converted ones."""

import argparse
from typing import Any

from mlx_transformer import hub
from mlx_transformer.cli.output import show, tell, to_json
from mlx_transformer.errors import InputError

EPILOG = """\
examples:
  mlx-transformer models
  mlx-transformer models remove Helsinki-NLP/opus-mt-en-de

The cache is ~/.cache/mlx-transformer (or in $XDG_CACHE_HOME). A model comes there when it is first
used by a name of the hub, or as a checkpoint of another program.
"""
SHOWN = 4  # languages of a model; info --languages lists them all


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the models that ship and those in the cache, or remove one."
    parser.epilog = EPILOG
    parser.add_argument("action", nargs="?", choices=["list", "remove"], default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the model to remove")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(args: argparse.Namespace) -> None:
    if args.action == "remove":
        return _remove(args.name)
    if args.name is not None:
        raise InputError("a name goes with remove: mlx-transformer models remove NAME")
    entries = [*hub.shipped(), *hub.cached()]
    if args.json:
        for entry in entries:
            show(to_json(_facts(entry)))
        return None
    if not entries:
        tell(f"no models in {hub.cache_directory()}")
    rows = [(e.name, f"{e.megabytes:,.1f} MB", e.family, _languages(e)) for e in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    for name, size, family, languages in rows:
        show(f"{name:{widths[0]}}  {size:>{widths[1]}}  {family:{widths[2]}}  {languages}".rstrip())
    return None


def _remove(name: str | None) -> None:
    if name is None:
        raise InputError("which one? mlx-transformer models lists them")
    for entry in hub.remove(name):
        show(entry.directory)
    tell("what was downloaded stays in the hub's own cache (`hf cache ls` shows it)")


def _facts(entry: hub.Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "directory": str(entry.model),
        "megabytes": round(entry.megabytes, 2),
        "family": entry.family,
        "sources": list(entry.sources),
        "targets": list(entry.targets),
    }


def _languages(entry: hub.Entry) -> str:
    sources, targets = (_some(codes) for codes in (entry.sources, entry.targets))
    return f"{sources} to {targets}" if sources and targets else targets


def _some(codes: Any) -> str:
    return ", ".join(codes) if len(codes) <= SHOWN else f"{len(codes)} languages"
