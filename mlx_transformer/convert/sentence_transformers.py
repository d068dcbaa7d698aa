"""What sentence-transformers put beside an encoder: how its vectors become one."""

import json
from pathlib import Path
from typing import Any

from mlx_transformer.convert.family import Source
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json

MODULES = "modules.json"
POOLING_CONFIG = Path("1_Pooling") / "config.json"
# Their names, in files of today and of before, and ours.
POOLINGS = {"mean": "mean", "cls": "cls", "max": "max"}
FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


def embedding(source: Source) -> dict[str, Any]:
    """The fields of `EmbeddingOptions` that the files beside a checkpoint mean; none: no such
    files."""
    directory = source.checkpoint.directory
    if not (directory / MODULES).is_file():
        return {}
    kinds = _module_kinds(directory / MODULES)
    if odd := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise InputError(f"the vectors of this model go through {shown(odd[0])}: not supported")
    found: dict[str, Any] = {"normalize": "Normalize" in kinds}
    if "Pooling" in kinds:
        found["pooling"] = _pooling(directory / POOLING_CONFIG)
    settings = directory / "sentence_bert_config.json"
    longest = read_json(settings).get("max_seq_length") if settings.is_file() else None
    return found | ({"max_tokens": longest} if type(longest) is int else {})


def _module_kinds(path: Path) -> list[str]:
    """The last words of `sentence_transformers.models.Transformer` and so on, in their order"""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return [str(module["type"]).rpartition(".")[2] for module in modules]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is not a list of modules") from None


def _pooling(path: Path) -> str:
    values = read_json(path) if path.is_file() else {}
    asked = {ours for name, ours in FLAGS.items() if values.get(name) is True}
    others = [n for n, v in values.items() if n.startswith("pooling_mode_") and v is True]
    if isinstance(mode := values.get("pooling_mode"), str):
        asked, others = {POOLINGS.get(mode, mode)}, []
    if len(asked) != 1 or not asked <= set(POOLINGS.values()) or len(others) > 1:
        wanted = ", ".join(sorted({*asked, *others})) or "none"
        raise InputError(f"{path} asks for pooling by {shown(wanted)}: only mean, cls or max")
    return asked.pop()
