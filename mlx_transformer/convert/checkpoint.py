"""One way into every kind of checkpoint: its tensors by name, and whatever else it says."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_transformer.convert import ctranslate2_file, marian_file
from mlx_transformer.convert.npz_file import read_npz
from mlx_transformer.convert.pickle_machine import Foreign, Record
from mlx_transformer.convert.safetensors_file import read_safetensors
from mlx_transformer.convert.tensors import LazyTensor, Storage, Tensor
from mlx_transformer.convert.torch_file import TORCHSCRIPT, read_torch
from mlx_transformer.errors import InputError, naming
from mlx_transformer.inputs.checks import nearest_path
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json

# Where in a directory the weights are; the first that exists is taken.
WEIGHT_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "checkpoint_best.pt",
    "model.pt",
    "model.npz",
    "model.bin",
    "model/model.bin",
    "checkpoints/checkpoint_best.pt",
)
# Where in a training checkpoint the state dict is.
STATE_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "net", "module", "weights")
# Else it is looked for inside, as deep as this and in at most so many places.
MAX_DEPTH, MAX_PLACES = 3, 1000
# Of a saved program or module; modules may share modules, so a small file can have any number.
MAX_ATTRIBUTES = 100_000
# What PyTorch's own modules keep of their settings, the activation apart.
MODULE_SETTINGS = ("num_heads", "norm_first", "padding_idx")
# State dicts of modules that OpenNMT-py keeps beside the model, under their own names.
EXTRA_STATE_KEYS = ("generator",)


def _node_value(node: object) -> object:
    state = node.state if isinstance(node, Record) else None
    return state["_val"] if isinstance(state, dict) and "_val" in state else node


class Fields(Mapping[str, object]):
    """Settings that a file brings along. A file may say anything: each is asked for by kind."""

    def __init__(self, values: object):
        said = [values.state, values.contents] if isinstance(values, Record) else [values]
        # Not one dict: many places in a small file can name the same large ones.
        found = ChainMap(*(part for part in said if isinstance(part, dict)))
        if isinstance(nodes := found.get("_content"), dict):  # OmegaConf's
            found = ChainMap({name: _node_value(node) for name, node in nodes.items()})
        self._values = found

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._values if isinstance(name, str))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def inner(self, *names: str) -> "Fields":
        """The settings under the first of `names` that holds any."""
        found = (Fields(self[name]) for name in names if name in self)
        return next((fields for fields in found if fields), Fields({}))

    def integer(self, *names: str, default: int | None = None) -> int:
        return self._ask(names, default, int, "a whole number")

    def number(self, *names: str, default: float | None = None) -> float:
        return float(self._ask(names, default, int | float, "a number"))

    def flag(self, *names: str, default: bool | None = None) -> bool:
        return bool(self._ask(names, default, bool | int, "true or false"))

    def text(self, *names: str, default: str | None = None) -> str:
        return self._ask(names, default, str, "a word")

    def _ask(self, names: tuple[str, ...], default: Any, kind: Any, meaning: str) -> Any:
        """The one value of these settings; encoder and decoder must not differ."""
        values = {name: self[name] for name in names if self.get(name) is not None}
        for name, value in values.items():
            if not isinstance(value, kind):
                raise InputError(f"the checkpoint's setting {name} is not {meaning}")
        if len(set(values.values())) > 1:
            listed = " and ".join(f"{name} {shown(value)}" for name, value in values.items())
            raise InputError(f"the model has one value for both, but the checkpoint has {listed}")
        if not values and default is None:
            raise InputError(f"the checkpoint's settings have no {names[0]}")
        return next(iter(values.values()), default)


@dataclass
class Checkpoint:
    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, object] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def fields(self, *names: str) -> Fields:
        """Settings out of the metadata: the first of `names` that holds any."""
        return Fields(self.metadata).inner(*names)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file, an index of shards, or a directory that holds one of them."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}{nearest_path(path)}")
    with naming(path):
        file = _weights_in(path) if path.is_dir() else path
        tensors, metadata = _read_file(file)
        described = file.parent / "config.json"
        if described.is_file() and "model_type" in (config := read_json(described)):
            metadata["config.json"] = config  # transformers' description of the model
            generation = file.parent / "generation_config.json"
            if generation.is_file():
                metadata["generation_config.json"] = read_json(generation)
    return Checkpoint(path, tensors, metadata)


def holds_weights(directory: Path) -> bool:
    """Packed ones count: what to do about them is said when they are read."""
    try:
        return _weights_in(directory).is_file()
    except InputError:
        return False


def _weights_in(directory: Path) -> Path:
    for name in WEIGHT_FILES:
        if (directory / name).is_file():
            return directory / name
    suffixes = (".pt", ".pth", ".bin", ".npz", ".safetensors", ".gz")
    candidates = sorted(p for p in directory.iterdir() if p.suffix in suffixes)
    named = [p for p in candidates if p.name.startswith("model")]  # as all of Firefox's are
    if len(found := named or candidates) == 1:
        return found[0]
    if not candidates:
        raise InputError("no weights are in this folder: name another, or the file that holds them")
    listed = ", ".join(p.name for p in candidates[:5])
    raise InputError(f"which file holds the weights? Name one (found here: {listed})")


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    if path.suffix == ".gz":
        beside = path.with_name("*.gz")
        raise InputError(f"it is packed: unpack it and what lies beside it (gunzip {beside})")
    if path.name.endswith(".index.json"):
        return _read_shards(path), {}
    if path.suffix == ".safetensors":
        return read_safetensors(path), {}
    if path.suffix == ".npz":
        return read_npz(path), {}
    if ctranslate2_file.is_argos(path):
        return ctranslate2_file.read_argos(path)
    with path.open("rb") as file:
        start = file.read(16)
    if ctranslate2_file.is_model_bin(start):
        return ctranslate2_file.read_folder(path)
    if marian_file.is_marian(start):
        return marian_file.read_marian(Storage(path, path.stat().st_size, 0)), {}
    return _state_dict(read_torch(path))


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError("the index has no weight_map")
    tensors: dict[str, Tensor] = {}
    for name in dict.fromkeys(weight_map.values()):
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"the index names {shown(name)}, which is not a file beside it")
        tensors |= _read_file(index.parent / name)[0]
    if tensors.keys() != weight_map.keys():
        odd = sorted(tensors.keys() ^ weight_map.keys())[0]
        raise InputError(f"{shown(odd)} is in the index or in a shard, but not in both")
    return tensors


def _state_dict(root: object) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors of what was saved, and the rest of it."""
    root = _plain(root)
    saved = _parts(root)
    if isinstance(root, Record):
        tensors, metadata = _tensors(root), dict[str, object]()
    else:
        key = next((key for key in STATE_KEYS if _tensors(saved.get(key))), None)
        tensors = _tensors(saved if key is None else saved[key])
        metadata = {name: value for name, value in saved.items() if name not in tensors}
        if key is not None:
            root = metadata.pop(key)
    named = any("weight" in name for name in tensors)
    if not named and (parts := _parts_saved_apart(saved)):
        tensors = parts | {name: t for name, t in tensors.items() if t.shape}  # no loss or step
    elif not named and (elsewhere := _deeper_states(saved)):
        if len(elsewhere) > 1:
            listed = ", ".join(map(shown, list(elsewhere)[:10]))
            raise InputError(f"it holds several models, {listed}: save the one you mean alone")
        (root,) = elsewhere.values()
        tensors = _tensors(root)
    if not tensors:
        listed = ", ".join(map(shown, list(saved)[:10]))
        among = f" among its entries {listed}" if listed else ""
        raise InputError(f"no dictionary of tensors found{among}: save a model's state_dict()")
    for key in EXTRA_STATE_KEYS:
        extra = _tensors(metadata.get(key))
        tensors |= {f"{key}.{name}": tensor for name, tensor in extra.items()}
    if isinstance(root, Record):
        metadata["module_settings"] = _module_settings(root)
    return tensors, metadata


def _plain(value: object) -> object:
    """What an object of somebody's kind of list or dict holds, or the value itself"""
    return value if not isinstance(value, Record) or value.contents is None else value.contents


def _parts(value: object) -> dict[str, object]:
    """What a dict, a list or a tuple holds, by key or by number"""
    value = _plain(value)
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _parts_saved_apart(saved: Mapping[str, object]) -> dict[str, Tensor]:
    """Of {"encoder": state_dict, "decoder": state_dict, ...}, as if one module had had them all"""
    for place in (saved, *(_parts(saved.get(key)) for key in STATE_KEYS)):
        states = {part: _tensors(value) for part, value in place.items()}
        if states.get("encoder") and states.get("decoder"):
            return {
                f"{part}.{name}": t for part, state in states.items() for name, t in state.items()
            }
    return {}


def _deeper_states(saved: Mapping[str, object]) -> dict[str, object]:
    """State dicts and modules further inside, by their path: those that have weights"""
    found: dict[str, object] = {}
    waiting = [(key, value, 1) for key, value in saved.items()]
    for _ in range(MAX_PLACES):
        if not waiting:
            break
        path, value, depth = waiting.pop(0)
        if any(name.endswith(".weight") for name in _tensors(value)):
            found[path] = value
        elif depth < MAX_DEPTH:
            waiting += [(f"{path}.{key}", item, depth + 1) for key, item in _parts(value).items()]
    return found


def _inside(module: Record) -> dict[str, object]:
    """The tensors and modules of a module: a TorchScript program has them among its attributes, one
    of Python's in three dicts."""
    state = Fields(module)
    if "_modules" in state:
        kept = ("_parameters", "_buffers", "_modules")
        return {name: value for kind in kept for name, value in _parts(state.get(kind)).items()}
    return dict(state) if module.name.startswith(TORCHSCRIPT) else {}


def _walk(module: Record) -> Iterator[tuple[str, object]]:
    """All that is in a module, under its path"""
    waiting: list[tuple[str, object]] = [("", module)]
    for _ in range(MAX_ATTRIBUTES):
        if not waiting:
            return
        path, value = waiting.pop()
        yield path, value
        if isinstance(value, Record):
            inner = reversed(_inside(value).items())
            waiting += [(f"{path}.{name}" if path else str(name), item) for name, item in inner]
    raise InputError(f"the module has more than {MAX_ATTRIBUTES:,} attributes")


def _module_settings(module: Record) -> dict[str, object]:
    """What the modules inside say of themselves; the first that says it counts"""
    said: dict[str, object] = {}
    for _, value in _walk(module):
        state = Fields(value) if isinstance(value, Record) else Fields({})
        for name in MODULE_SETTINGS:
            if state.get(name) is not None:
                said.setdefault(name, state[name])
        match state.get("activation"):
            case Foreign(name):
                said.setdefault("activation", name.rpartition(".")[2])
    return said


def _tensors(value: object) -> dict[str, Tensor]:
    """Of a dict, or of a module, in whose paths tch writes `|` for dots"""
    value = _plain(value)
    if isinstance(value, Record):
        walked = _walk(value)
        return {p.replace("|", "."): item for p, item in walked if isinstance(item, LazyTensor)}
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(item, LazyTensor)}
