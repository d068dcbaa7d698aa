"""Model directories as the MLX world expects them; each is there as a whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map

from mlx_transformer import device
from mlx_transformer.blocks import Linear, lay_out_for_search
from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.inputs.checks import NEAR_PATH, nearest, nearest_path
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import FLOATS, Stored, read_header
from mlx_transformer.model import Transformer

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
SHORTLIST_FILE = "shortlist.safetensors"  # where a model has one
QUANTIZATION_GROUP = 64
WEIGHTS = Path(__file__).parent / "weights"  # in a checkout a link to its `weights`
SHIPPED = ("en-de", "de-en")


def shipped_models() -> list[Path]:
    """The models that ship, one a direction, the default first."""
    return [WEIGHTS / name for name in SHIPPED if is_model_directory(WEIGHTS / name)]


def default_model() -> Path:
    """The model that is used where none is named."""
    if not (models := shipped_models()):
        raise InputError("no model ships with this installation: name a model directory")
    return models[0]


@contextmanager
def built_aside(target: Path) -> Iterator[Path]:
    """A folder to fill that then takes the place of `target`; on an error nothing has changed.

    Renaming comes last, after all is on the disk: `target` is old or new, never half of either.
    """
    target = target.resolve()  # `.` has no name to put another beside
    aside, old = _beside(target)
    try:
        undo_unfinished(target)
        aside.mkdir(parents=True)
        yield aside
        for path in (*aside.rglob("*"), aside):
            _sync(path)
        if target.exists():
            target.rename(old)
        aside.rename(target)
        _sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if error.filename and not Path(error.filename).is_relative_to(target.parent):
            raise  # not ours: a file that the caller reads
        reason = error.strerror or str(error)
        raise RunError(f"could not save {target}: {reason}; what was saved is kept") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _beside(target: Path) -> tuple[Path, Path]:
    """Where the new one is built, and where the old one waits to be deleted."""
    return target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.old")


def undo_unfinished(target: Path) -> None:
    """Clear away what a process left that was killed in `built_aside`; nobody else may be there."""
    aside, old = _beside(target)
    if old.exists() and not target.exists():  # it was killed between the two renames
        old.rename(target)
    for rest in (aside, old):
        shutil.rmtree(rest, ignore_errors=True)


@contextmanager
def locked(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file, with the number of this process in it; the system lets go when it dies.

    `what` begins the sentence that another process gets.
    """
    while True:
        with lock.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{what} by {_holder(file)}: wait for it, or stop it") from None
            if not _is_at(file, lock):
                continue  # its last holder has just deleted it: take a new one
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _holder(file: TextIO) -> str:
    file.seek(0)
    number = file.read(20).strip()
    return f"process {number}" if number.isdecimal() else "another process"


def _is_at(file: TextIO, path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _sync(path: Path) -> None:
    """Have the system write a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a text file at once: readers find the old text or the new one."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        _sync(aside)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RunError(f"could not save {path}: {error.strerror}; the old one is kept") from error


def save_arrays(path: Path, arrays: Mapping[str, mx.array]) -> None:
    """Write a safetensors file. Sorted names: equal arrays give equal files."""
    try:
        mx.save_safetensors(str(path), dict(sorted(arrays.items())), metadata={"format": "mlx"})
    except RuntimeError as error:  # how MLX reports a full or read-only disk
        raise OSError(str(error)) from error


def is_model_directory(directory: Path) -> bool:
    return all((directory / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE))


def named_parameters(model: nn.Module) -> dict[str, mx.array]:
    """Every learned array under its path, such as `encoder.layers.0.self_attention.qkv.weight`."""
    return dict(tree_flatten(model.parameters()))


def count_parameters(config: ModelConfig) -> int:
    """Numbers the model learns. Nothing is computed for it: MLX arrays are lazy."""
    return sum(array.size for array in named_parameters(Transformer(config)).values())


def save_model(model: Transformer, directory: Path) -> None:
    """Write config.json and model.safetensors, as the MLX world expects them."""
    model.config.save(directory / CONFIG_FILE)
    save_arrays(directory / WEIGHTS_FILE, named_parameters(model))


def check_is_model_directory(directory: Path) -> None:
    if is_model_directory(directory):
        return
    for inner in ("model", "best"):  # of a training run
        if is_model_directory(directory / inner):
            raise InputError(f"{directory} is a training run: its model is {directory / inner}")
    remedy = "(train one, convert one, or name one of the hub: ORG/NAME)"
    if not directory.exists():
        raise InputError(f"there is no model {directory} here{nearest_model(directory)} {remedy}")
    lacking = next(n for n in (CONFIG_FILE, WEIGHTS_FILE) if not (directory / n).is_file())
    raise InputError(f"{directory} is not a model directory: it has no {lacking} {remedy}")


def nearest_model(path: Path) -> str:
    """`; did you mean weights/en-de?` where such a path, or a model that ships, is near"""
    shipped = [each.name for each in shipped_models()]
    return nearest_path(path) or nearest(path.name, shipped, NEAR_PATH)


def load_model(directory: Path, dtype: mx.Dtype | None = None) -> Transformer:
    """Read a model directory; `dtype` casts the floating-point weights, None keeps them.

    The directory may be a stranger's: what its files say is compared before anything is built.
    """
    with _opened(directory) as model:
        _check_finite(model)
    if dtype is not None:
        model.set_dtype(dtype)
    return model


@contextmanager
def _opened(directory: Path) -> Iterator[Transformer]:
    """The model of a directory. Its weights are read when they are first used: best in here, where
    what is wrong with them becomes a sentence about their file."""
    check_is_model_directory(directory)
    config = ModelConfig.load(directory / CONFIG_FILE)
    try:
        model = _fitting_model(config, read_header(directory / WEIGHTS_FILE))
        model.load_weights(str(directory / WEIGHTS_FILE), strict=True)
        yield model
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{directory / WEIGHTS_FILE} does not fit: {error}") from error


def _fitting_model(config: ModelConfig, stored: Mapping[str, Stored]) -> Transformer:
    """The model of a config whose parameters are just those of a file, by name, shape and type.

    Its random values are never computed: MLX arrays are lazy, and it costs what its layers cost.
    """
    layers = config.encoder_layers + config.decoder_layers
    if layers > len(stored):
        raise InputError(
            f"config.json promises {layers:,} layers, the file has {len(stored):,} tensors"
        )
    model = Transformer(config)
    if config.quantization is not None:
        quantize(model, config.quantization)
    parameters = named_parameters(model)
    problems = [f"{name} is missing" for name in parameters if name not in stored]
    problems += [
        f"there is no place for {shown(name)}" for name in stored if name not in parameters
    ]
    problems += [
        problem
        for name, array in parameters.items()
        if name in stored and (problem := _misfit(name, array, stored[name]))
    ]
    if problems:
        more = f"; and {len(problems) - 3:,} more" if len(problems) > 3 else ""
        raise InputError("; ".join(problems[:3]) + more)
    return model


def _misfit(name: str, array: mx.array, stored: Stored) -> str:
    if array.shape != stored.shape:
        return f"{name} should be {array.shape} by config.json, and is {shown(str(stored.shape))}"
    wanted = FLOATS if mx.issubdtype(array.dtype, mx.floating) else ("uint32",)
    if stored.dtype not in wanted:
        return f"{name} should be {' or '.join(wanted)}, and is {stored.dtype}"
    return ""


def _check_finite(model: Transformer) -> None:
    weights = {
        name: array
        for name, array in named_parameters(model).items()
        if mx.issubdtype(array.dtype, mx.floating)
    }
    sums = mx.stack([device.total(array).astype(mx.float32) for array in weights.values()])
    # The sum of an array with a number that is not finite is not finite. The sum of many large
    # numbers can overflow too, so such an array is looked at number by number.
    for (name, array), total in zip(weights.items(), np.array(sums), strict=True):
        if not np.isfinite(total) and not mx.isfinite(array).all().item():
            raise InputError(f"the weights of {name} are not finite")


def load_to_compute(directory: Path, dtype: mx.Dtype | None = None) -> Transformer:
    """As `load_model`, but None is plain float32 where the device prefers that."""
    plain = dtype is None and device.prefers_float32()
    with _opened(directory) as model:
        if plain or dtype is not None:
            model.set_dtype(dtype or mx.float32)
        if plain:
            dequantize(model)
        lay_out_for_search(model)
        _check_finite(model)  # last: until here no weight was in memory twice
    return model


def quantize(model: Transformer, bits: int) -> None:
    """Replace, in place, every matrix whose rows divide into groups by its quantised form."""

    def fits(_: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % QUANTIZATION_GROUP == 0

    nn.quantize(model, group_size=QUANTIZATION_GROUP, bits=bits, class_predicate=fits)


def dequantize(model: Transformer) -> None:
    """Replace, in place, every quantised matrix by the plain one it stands for."""

    def plain(layer: nn.Module) -> nn.Module:
        if not isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return layer
        weight = mx.dequantize(
            layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits
        )
        if isinstance(layer, nn.QuantizedEmbedding):
            made: nn.Module = nn.Embedding(1, 1)
        else:
            made = Linear(1, 1, bias="bias" in layer)
            if "bias" in layer:
                made.bias = layer.bias
        made.weight = weight
        return made

    leaves = tree_map(plain, model.leaf_modules(), is_leaf=nn.Module.is_module)
    model.update_modules(leaves)
    model.config = replace(model.config, quantization=None)
