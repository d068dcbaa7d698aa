"""CTranslate2 models: a folder around `model.bin`, as it is or in Argos Translate's zip.

`model.bin` is a list of variables with their data, then aliases: names that share a variable. A
matrix of int8 or int16 has its scale in a variable of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from mlx_transformer.convert.byte_reader import ByteReader
from mlx_transformer.convert.tensors import (
    LazyTensor,
    QuantizedTensor,
    Storage,
    Tensor,
    cast,
    itemsize,
)
from mlx_transformer.convert.zip_file import unpacked, zip_members
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import parse_json

Files = Mapping[str, Storage]  # by name, from the model's folder

MODEL = "model.bin"
ARGOS_METADATA = "metadata.json"
VERSIONS = range(2, 7)
DTYPES = {0: "float32", 1: "int8", 2: "int16", 3: "int32", 4: "float16", 5: "bfloat16"}
# Before version 4 a variable said how many bytes a number has, and not what it is.
DTYPES_BY_SIZE = {4: "float32", 2: "int16", 1: "int8"}
# What int16 weights were multiplied by before files had scales.
OLD_INT16_SCALE = 1000.0
MAX_TEXT_BYTES = 64 << 20
VOCABULARIES = {
    "source_words": ("shared_vocabulary", "source_vocabulary"),
    "target_words": ("shared_vocabulary", "target_vocabulary"),
}


def is_model_bin(start: bytes) -> bool:
    """By the first bytes: a version, and the name of a specification."""
    return int.from_bytes(start[:4], "little") in VERSIONS and start[6:7].isalpha()


def read_folder(model: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors of `model`, and what the files beside it say; Argos keeps some one floor up."""
    floors = [model.parent]
    if (model.parent.parent / ARGOS_METADATA).is_file():
        floors.append(model.parent.parent)
    found = (path for floor in floors for path in floor.iterdir() if path.is_file())
    return read_files({path.name: Storage(path, path.stat().st_size, 0) for path in found})


def is_argos(path: Path) -> bool:
    return path.suffix == ".argosmodel"


def read_argos(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """One folder in a zip, the model in a folder of it."""
    members = zip_members(path)
    found = [name for name in members if name.endswith(f"/model/{MODEL}")]
    if len(found) != 1:
        raise InputError(f"an Argos package holds one model/{MODEL}, this zip holds {len(found)}")
    top = found[0].removesuffix(f"model/{MODEL}")
    files = {
        name.removeprefix(folder): member
        for folder in (top, f"{top}model/")
        for name, member in members.items()
        if name.startswith(folder) and "/" not in name.removeprefix(folder)
    }
    return read_files(files)


def read_files(files: Files) -> tuple[dict[str, Tensor], dict[str, object]]:
    variables, spec = read_model_bin(unpacked(files[MODEL]))
    settings = {name: _value(v) for name, v in variables.items() if _is_setting(name, v)}
    tensors = {name: v for name, v in variables.items() if name not in settings}
    metadata: dict[str, object] = {"ctranslate2": _json(files, "config.json")}
    metadata["settings"] = {**settings, **spec}
    metadata |= {side: _words(files, *names) for side, names in VOCABULARIES.items()}
    metadata["argos"] = _json(files, ARGOS_METADATA)
    metadata["files"] = {name: file for name, file in files.items() if name != MODEL}
    return tensors, metadata


# model.bin


def read_model_bin(storage: Storage) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Every variable under all of its names, and the specification that they follow."""
    reader = ByteReader(storage)
    version = reader.number("I")
    if version not in VERSIONS:
        raise InputError(f"CTranslate2's format {version} is not supported, only 2 to 6")
    spec = {"spec": _string(reader), "revision": reader.number("I"), "version": version}
    variables = dict(_variable(reader, version) for _ in range(reader.number("I")))
    if version >= 3:
        for _ in range(reader.number("I")):
            alias, name = _string(reader), _string(reader)
            _add_alias(variables, alias, name)
    if reader.position != storage.nbytes:
        raise InputError("the file goes on after its last variable")
    return _with_scales(variables), spec


def _string(reader: ByteReader) -> str:
    """Its length with a zero at the end, the text, and that zero"""
    text = reader.read(reader.number("H"))
    return text[:-1].decode("utf-8", "replace")


def _variable(reader: ByteReader, version: int) -> tuple[str, LazyTensor]:
    name = _string(reader)
    shape = reader.numbers("I", reader.number("B"))
    kind, size = reader.number("B"), reader.number("I")
    dtype = (DTYPES if version >= 4 else DTYPES_BY_SIZE).get(kind)
    if dtype is None:
        raise InputError(f"the variable {shown(name)} is of kind {kind}, which is not known")
    data = reader.take(size if version >= 4 else size * kind)
    tensor = LazyTensor.contiguous(data, dtype, shape)
    if tensor.size * itemsize(dtype) != data.nbytes:
        raise InputError(f"the variable {shown(name)} of shape {shape} has {data.nbytes} bytes")
    return name, tensor


def _add_alias(variables: dict[str, LazyTensor], alias: str, name: str) -> None:
    if name not in variables:
        raise InputError(f"{shown(alias)} stands for {shown(name)}, which is not there")
    variables[alias] = variables[name]
    if f"{name}_scale" in variables:
        variables[f"{alias}_scale"] = variables[f"{name}_scale"]


def _with_scales(variables: Mapping[str, LazyTensor]) -> dict[str, Tensor]:
    """Quantised matrices together with their scales."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in variables.items():
        if name.endswith("weight_scale"):
            continue
        tensors[name] = tensor
        if name.endswith("weight") and tensor.dtype in ("int8", "int16"):
            scale = variables.get(f"{name}_scale", OLD_INT16_SCALE)
            if tensor.dtype == "int8" and scale is OLD_INT16_SCALE:
                raise InputError(f"{shown(name)} has no scale")
            tensors[name] = QuantizedTensor(tensor, scale)
    return tensors


# Variables that are settings: a number, or a token as its bytes


def _is_setting(name: str, variable: Tensor) -> bool:
    return variable.shape == () or name.endswith("_token")


def _value(variable: Tensor) -> int | float | str:
    values = variable.numpy()
    if variable.shape == ():
        return (
            cast(values, variable.dtype, "float32").item()
            if "float" in variable.dtype
            else int(values)
        )
    return values.tobytes().rstrip(b"\0").decode("utf-8", "replace")


# The files beside it


def _words(files: Files, *names: str) -> list[str]:
    """The first vocabulary of these names, in the order of its ids; older ones are plain text."""
    for name in names:
        if f"{name}.json" in files:
            return _listed(text_of(files, f"{name}.json"), name)
        if f"{name}.txt" in files:
            lines = text_of(files, f"{name}.txt").removesuffix("\n").split("\n")
            whole = all(line.endswith("\r") for line in lines)
            return [line[:-1] for line in lines] if whole else lines
    raise InputError(f"there is no {' or '.join(names)} (.json or .txt) beside {MODEL}")


def _listed(text: str, name: str) -> list[str]:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{name}.json is not a list of words")
    return words


def _json(files: Files, name: str) -> dict[str, object]:
    return parse_json(bytes_of(files[name], name), name) if name in files else {}


def text_of(files: Files, name: str) -> str:
    return bytes_of(files[name], name).decode("utf-8", "replace")


def bytes_of(file: Storage, name: str) -> bytes:
    if file.nbytes > MAX_TEXT_BYTES:
        raise InputError(f"{name} is larger than {MAX_TEXT_BYTES >> 20} MB")
    return file.map(0, file.nbytes, "u1").tobytes()
