"""One way into every kind of checkpoint: its tensors by name, and whatever else it says."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mlx_transformer.convert.npz_file import read_npz
from mlx_transformer.convert.pickle_machine import Record
from mlx_transformer.convert.safetensors_file import read_safetensors
from mlx_transformer.convert.tensors import LazyTensor, shown
from mlx_transformer.convert.torch_file import read_torch
from mlx_transformer.errors import InputError

# Where in a directory the weights are; the first that exists is taken.
WEIGHT_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "checkpoint_best.pt",
    "model.pt",
    "model.npz",
)
# Where in a training checkpoint the state dict is.
STATE_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "net", "module", "weights")
# State dicts of modules that OpenNMT-py keeps beside the model, under their own names.
EXTRA_STATE_KEYS = ("generator",)
MAX_JSON_BYTES = 64 << 20


@dataclass
class Checkpoint:
    path: Path
    tensors: dict[str, LazyTensor]
    metadata: dict[str, object] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def fields(self, *names: str) -> dict[str, object]:
        """Named settings out of the metadata: the first of `names` that holds any."""
        for name in names:
            value = self.metadata.get(name)
            value = value.state if isinstance(value, Record) else value
            if isinstance(value, dict):
                return {str(key): item for key, item in value.items()}
        return {}


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file, an index of shards, or a directory that holds one of them."""
    with _naming(path):
        file = _weights_in(path) if path.is_dir() else path
        tensors, metadata = _read_file(file)
        hf_config = file.parent / "config.json"
        if hf_config.is_file():
            metadata["config.json"] = read_json(hf_config)
    return Checkpoint(path, tensors, metadata)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say in each error which file it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _weights_in(directory: Path) -> Path:
    for name in WEIGHT_FILES:
        if (directory / name).is_file():
            return directory / name
    suffixes = (".pt", ".pth", ".bin", ".npz", ".safetensors")
    candidates = sorted(p for p in directory.iterdir() if p.suffix in suffixes)
    if len(candidates) == 1:
        return candidates[0]
    listed = ", ".join(p.name for p in candidates[:5]) or "none"
    raise InputError(f"which file holds the weights? Name one (found here: {listed})")


def _read_file(path: Path) -> tuple[dict[str, LazyTensor], dict[str, object]]:
    if path.name.endswith(".index.json"):
        return _read_shards(path), {}
    if path.suffix == ".safetensors":
        return read_safetensors(path), {}
    if path.suffix == ".npz":
        return read_npz(path), {}
    return _state_dict(read_torch(path))


def _read_shards(index: Path) -> dict[str, LazyTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError("the index has no weight_map")
    tensors: dict[str, LazyTensor] = {}
    for name in dict.fromkeys(weight_map.values()):
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"the index names {shown(name)}, which is not a file beside it")
        tensors |= _read_file(index.parent / name)[0]
    if tensors.keys() != weight_map.keys():
        odd = sorted(tensors.keys() ^ weight_map.keys())[0]
        raise InputError(f"{shown(odd)} is in the index or in a shard, but not in both")
    return tensors


def _state_dict(root: object) -> tuple[dict[str, LazyTensor], dict[str, object]]:
    """The tensors of what was saved, and the rest of it."""
    if not isinstance(root, dict):
        raise InputError("the file holds no dictionary of tensors; save a model's state_dict()")
    tensors = _tensors(root)
    metadata = {str(key): value for key, value in root.items() if key not in tensors}
    if not tensors:
        key = next((key for key in STATE_KEYS if _tensors(root.get(key))), None)
        if key is None:
            listed = ", ".join(map(shown, list(metadata)[:10]))
            raise InputError(f"no dictionary of tensors found among its entries {listed}")
        tensors = _tensors(metadata.pop(key))
    for key in EXTRA_STATE_KEYS:
        extra = _tensors(metadata.get(key))
        tensors |= {f"{key}.{name}": tensor for name, tensor in extra.items()}
    return tensors, metadata


def _tensors(value: object) -> dict[str, LazyTensor]:
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(item, LazyTensor)}


def read_json(path: Path) -> dict[str, object]:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path.name} is larger than {MAX_JSON_BYTES >> 20} MB")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not valid JSON") from error
    if not isinstance(value, dict):
        raise InputError(f"{path.name} does not hold a JSON object")
    return value
