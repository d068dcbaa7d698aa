"""Files written by `torch.save`, read without PyTorch and without running anything of theirs.

Since 2019 such a file is a zip: `NAME/data.pkl` describes the objects and `NAME/data/KEY` holds the
bytes of each storage. Before that it was five pickles (a magic number, a version, facts about the
machine, the objects, the storage keys) with the storages behind them.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlx_transformer.convert.pickle_machine import (
    MAX_BYTES,
    Constructor,
    Foreign,
    Record,
    checked_key,
    load_pickle,
)
from mlx_transformer.convert.tensors import NUMPY_TYPES, LazyTensor, Storage, itemsize
from mlx_transformer.convert.zip_file import ZIP_MAGIC, zip_members
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# What other zips of PyTorch's have inside.
OTHER_ZIPS = {
    "/.data/extern_modules": "a torch.package",
    "/models/model.json": "a program of torch.export",
}
RE_SAVE = "load it where it was made and save only its state_dict()"


def read_torch(path: Path) -> object:
    """The object that was given to `torch.save`: tensors lazy, foreign classes as `Record`s."""
    with path.open("rb") as file:
        start = file.read(len(ZIP_MAGIC))
    if start == ZIP_MAGIC:
        return _read_zip(path)
    if start[:1] == b"\x80":
        return _read_legacy(path)
    raise InputError("this is not a file written by torch.save")


# The zip format


def _read_zip(path: Path) -> object:
    members = zip_members(path)
    for end, kind in OTHER_ZIPS.items():
        if any(name.endswith(end) for name in members):
            raise InputError(f"this is {kind}, not a file of torch.save; {RE_SAVE}")
    pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise InputError(f"a torch.save file holds one data.pkl, this zip holds {len(pickles)}")
    folder = pickles[0].removesuffix("data.pkl")
    order = _byteorder(members.get(f"{folder}byteorder"))
    for member in members.values():
        member.byteorder = order

    def persistent_load(reference: object) -> object:
        wanted = _StorageReference.parse(reference)
        storage = members.get(f"{folder}data/{wanted.key}")
        if storage is None:
            raise InputError(f"the storage {shown(wanted.key)} is missing from the zip")
        if wanted.nbytes > storage.nbytes:
            raise InputError(
                f"the storage {shown(wanted.key)} should hold {wanted.nbytes} bytes, "
                f"but holds {storage.nbytes}"
            )
        return _TypedStorage(storage, wanted.dtype)

    data = _member_bytes(members[pickles[0]], MAX_BYTES)
    return load_pickle(data, find_global, persistent_load)[0]


def _byteorder(member: Storage | None) -> str:
    word = b"little" if member is None else _member_bytes(member, 16)
    if word not in (b"little", b"big"):
        raise InputError(f"the byte order {shown(word)} is neither little nor big")
    return ">" if word == b"big" else "<"


def _member_bytes(member: Storage, limit: int) -> bytes:
    if member.nbytes > limit:
        raise InputError(f"a description of {member.nbytes} bytes is more than a checkpoint needs")
    return member.map(0, member.nbytes, "u1").tobytes()


# The format before 2019


def _read_legacy(path: Path) -> object:
    storages: dict[object, Storage] = {}
    item_sizes: dict[object, int] = {}

    def persistent_load(reference: object) -> object:
        match reference:
            case ("module", Foreign() as kind, _, _):  # and its source, which is not read
                return kind
        wanted = _StorageReference.parse(reference)
        storage = storages.setdefault(wanted.key, Storage(path, wanted.nbytes))
        item_sizes[wanted.key] = itemsize(wanted.dtype)
        if wanted.nbytes != storage.nbytes:
            raise InputError(f"the storage {shown(wanted.key)} is given two sizes")
        return _TypedStorage(storage, wanted.dtype, wanted.view_offset)

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic, position = load_pickle(data, find_global, persistent_load)
        if magic != LEGACY_MAGIC:
            raise InputError("this is a pickle, but not one written by torch.save")
        values = []
        for _ in ("version", "machine", "root", "keys"):
            value, position = load_pickle(data, find_global, persistent_load, position)
            values.append(value)
        _, _, root, keys = values
        if not isinstance(keys, list) or len(keys) != len(storages):
            raise InputError("the list of storages does not fit the tensors")
        for key in keys:
            storage = storages.get(checked_key(key))
            if storage is None or storage.start is not None:
                raise InputError(f"the storage {shown(key)} belongs to no tensor, or comes twice")
            count = data[position : position + 8]
            storage.start = position + 8
            position = storage.start + storage.nbytes
            if position > len(data):
                raise InputError(f"the file ends within the storage {shown(key)}")
            if count != struct.pack("<q", storage.nbytes // item_sizes[key]):
                raise InputError(f"the storage {shown(key)} is not of the size its tensors say")
    return root


# What the pickles of torch.save may name


@dataclass(frozen=True)
class _StorageType:
    dtype: str


@dataclass(frozen=True)
class _TypedStorage:
    storage: Storage
    dtype: str
    offset: int = 0


@dataclass(frozen=True)
class _StorageReference:
    """('storage', type, key, location, elements[, view]) as the pickle spells it."""

    dtype: str
    key: str | int
    nbytes: int
    view_offset: int

    @classmethod
    def parse(cls, reference: object) -> "_StorageReference":
        match reference:
            case ("storage", _StorageType(dtype), str() | int() as key, _, int(count), *view) if (
                count >= 0
            ):
                checked_key(key)
            case _:
                raise InputError("the pickle refers to something that is not a storage")
        match view:
            case [] | [None]:
                return cls(dtype, key, count * itemsize(dtype), 0)
            case [(_, int(offset), int())] if offset >= 0:
                return cls(dtype, key, count * itemsize(dtype), offset)
        raise InputError("the pickle describes a view of a storage wrongly")


def rebuild_tensor(
    storage: object,
    offset: object,
    shape: object,
    strides: object,
    requires_grad: object = None,
    hooks: object = None,
    metadata: object = None,
) -> LazyTensor:
    """torch._utils._rebuild_tensor and _rebuild_tensor_v2"""
    if not (
        isinstance(storage, _TypedStorage)
        and isinstance(offset, int)
        and isinstance(shape, tuple)
        and isinstance(strides, tuple)
    ):
        raise InputError("the pickle describes a tensor wrongly")
    if metadata:
        raise InputError("a tensor is a conjugate or negative view; save a clone() of it")
    return LazyTensor(storage.storage, storage.dtype, shape, strides, storage.offset + offset)


def rebuild_tensor_v3(
    storage: object,
    offset: object,
    shape: object,
    strides: object,
    requires_grad: object,
    hooks: object,
    dtype: object,
    metadata: object = None,
) -> LazyTensor:
    """torch._utils._rebuild_tensor_v3: the dtype is the tensor's, the storage is bytes."""
    if not (isinstance(storage, _TypedStorage) and isinstance(dtype, str)):
        raise InputError("the pickle describes a tensor wrongly")
    typed = _TypedStorage(storage.storage, dtype, storage.offset)
    return rebuild_tensor(typed, offset, shape, strides, metadata=metadata)


def rebuild_parameter(data: object, *_: object) -> object:
    """torch._utils._rebuild_parameter: a parameter is its tensor."""
    return data


def ordered_dict(pairs: object = ()) -> dict[object, object]:
    """collections.OrderedDict; Python 2 passed its items as a list of pairs."""
    if not isinstance(pairs, list | tuple) or any(
        not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs
    ):
        raise InputError("the pickle describes an OrderedDict wrongly")
    return {checked_key(key): value for key, value in pairs}


def default_dict(factory: object = None) -> dict[object, object]:
    """collections.defaultdict: what it would make of a missing key does not matter here."""
    return {}


def itself(value: object) -> object:
    """A torch.Size of a tuple, a Counter of a dict, a set of a list: the data is enough."""
    return value


def tagged(value: object, _: object) -> object:
    """torch.jit._pickle.restore_type_tag: the type is for TorchScript."""
    return value


STORAGE_TYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}

CONSTRUCTORS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": rebuild_parameter,
    "torch.Size": itself,
    # TorchScript and other languages' bindings say of which type a list or dict is.
    **{
        f"torch.jit._pickle.build_{kind}list": itself
        for kind in ("int", "double", "bool", "tensor")
    },
    "torch.jit._pickle.restore_type_tag": tagged,
    "collections.OrderedDict": ordered_dict,
    "collections.defaultdict": default_dict,
    "collections.Counter": itself,
    "builtins.set": itself,
    "__builtin__.set": itself,
}

ALLOWED: dict[str, object] = {
    **{name: Constructor(name, build) for name, build in CONSTRUCTORS.items()},
    **{f"torch.{name}": _StorageType(dtype) for name, dtype in STORAGE_TYPES.items()},
    **{f"torch.cuda.{name}": _StorageType(dtype) for name, dtype in STORAGE_TYPES.items()},
    "torch.storage.UntypedStorage": _StorageType("uint8"),
    **{f"torch.{dtype}": dtype for dtype in NUMPY_TYPES},
}

# What training checkpoints carry beside their weights: only the data is kept, as a `Record`.
HARMLESS = {
    "argparse.Namespace", "functools.partial", "pathlib.PosixPath", "pathlib.WindowsPath",
    "builtins.int", "builtins.float", "builtins.str", "builtins.list", "builtins.dict",
    "__builtin__.int", "__builtin__.long", "__builtin__.float", "__builtin__.unicode",
    "__builtin__.list", "__builtin__.dict",
    "_codecs.encode", "torch.device", "numpy.dtype", "numpy.ndarray",
    "numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar", "numpy._core.multiarray._reconstruct",
    "fairseq.meters.AverageMeter", "fairseq.logging.meters.AverageMeter",
    "fairseq.meters.TimeMeter", "fairseq.logging.meters.TimeMeter",
    "fairseq.meters.StopwatchMeter", "fairseq.logging.meters.StopwatchMeter",
    "onmt.inputters.text_dataset.TextMultiField", "onmt.inputters.text_dataset._feature_tokenize",
    "onmt.inputters.inputter.make_src", "onmt.inputters.inputter.make_tgt",
    "torchtext.data.field.Field", "torchtext.legacy.data.field.Field",
    "torchtext.data.field.RawField", "torchtext.legacy.data.field.RawField",
    "torchtext.vocab.Vocab", "torchtext.legacy.vocab.Vocab",
    "torchtext.vocab._default_unk_index", "torchtext.legacy.vocab._default_unk_index",
}  # fmt: skip


# The modules of a TorchScript program: their code stays in the zip, unread.
TORCHSCRIPT = "__torch__."


def find_global(name: str) -> object:
    """What stands in for the class or function of that name."""
    if name in ALLOWED:
        return ALLOWED[name]
    if name in HARMLESS or name.startswith(TORCHSCRIPT):
        return Constructor(name, lambda *args: Record(name, args))
    return Foreign(name, RE_SAVE)
