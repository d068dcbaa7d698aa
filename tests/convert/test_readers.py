"""Files as PyTorch, safetensors and NumPy write them, read without any of their loaders."""

import argparse
import collections
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.pickle_machine import Record
from mlx_transformer.convert.safetensors_file import NewTensor, write_safetensors
from mlx_transformer.convert.tensors import LazyTensor, cast
from mlx_transformer.convert.torch_file import read_torch
from mlx_transformer.errors import InputError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32,
]  # fmt: skip
FORMATS = {"zip": True, "legacy": False}


def assert_same(found: LazyTensor, expected: torch.Tensor) -> None:
    assert found.dtype == str(expected.dtype).removeprefix("torch.")
    if expected.dtype == torch.bfloat16:
        expected = expected.view(torch.uint16)
    values = found.numpy()
    assert values.shape == tuple(expected.shape)
    assert np.array_equal(values, expected.numpy())


def save(value: object, path: Path, form: str) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=FORMATS[form])
    return path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype, form: str) -> None:
    tensor = (torch.randn(3, 5) * 50).abs().to(dtype)
    root = read_torch(save({"a": tensor}, tmp_path / "a.pt", form))
    assert_same(root["a"], tensor)


@pytest.mark.parametrize("form", FORMATS)
def test_views_strides_and_shared_storages(tmp_path: Path, form: str) -> None:
    base = torch.arange(120.0).reshape(4, 5, 6)
    state = {
        "base": base,
        "transposed": base.permute(2, 0, 1),
        "slice": base[1:3, ::2, 3],
        "row": base[2, 4],
        "scalar": base[1, 1, 1],
        "empty": base[:0],
        "expanded": torch.zeros(1).expand(1, 1),
        "parameter": torch.nn.Parameter(base[0]),
    }
    root = read_torch(save(state, tmp_path / "a.pt", form))
    for name, tensor in state.items():
        assert_same(root[name], tensor.detach())
    assert root["base"].storage is root["slice"].storage


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol(tmp_path: Path, protocol: int, form: str) -> None:
    state = {
        "a": torch.ones(3),
        "b": {1, 2},
        "c": b"x" * 300,
        "d": (1, [2.5, None, True]),
        "e": -(1 << 70),
    }
    torch.save(
        state,
        tmp_path / "a.pt",
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=FORMATS[form],
    )
    root = read_torch(tmp_path / "a.pt")
    assert_same(root["a"], state["a"])
    assert sorted(root["b"]) == [1, 2]
    assert root["d"] == state["d"] and root["e"] == state["e"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_whole_training_checkpoint(tmp_path: Path, form: str) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    checkpoint = {
        "model_state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(
            heads=8, path=Path("x"), dtype=torch.float16, shape=torch.Size([2])
        ),
        "best": np.float64(0.5),
        "random": np.random.get_state(),
        "counts": collections.Counter("abca"),
        "table": collections.defaultdict(int, a=1),
        "device": torch.device("cpu"),
    }
    save(checkpoint, tmp_path / "a.pt", form)
    found = read_checkpoint(tmp_path / "a.pt")
    assert found.tensors.keys() == {"weight", "bias"}
    assert_same(found.tensors["weight"], model.weight.detach())
    args = found.fields("args")
    assert (args["heads"], args["dtype"], args["shape"]) == (8, "float16", (2,))
    assert isinstance(found.metadata["best"], Record)
    assert found.metadata["counts"] == {"a": 2, "b": 1, "c": 1}


def test_big_endian(tmp_path: Path) -> None:
    torch.save({"a": torch.tensor([1.0, 2.0, 3.0])}, tmp_path / "little.pt")
    with (
        zipfile.ZipFile(tmp_path / "little.pt") as little,
        zipfile.ZipFile(tmp_path / "big.pt", "w") as big,
    ):
        for name in little.namelist():
            content = little.read(name)
            if name.endswith("byteorder"):
                content = b"big"
            if name.endswith("data/0"):
                content = np.frombuffer(content, "<f4").astype(">f4").tobytes()
            big.writestr(name, content)
    assert read_torch(tmp_path / "big.pt")["a"].numpy().tolist() == [1, 2, 3]


def test_python_2_ordered_dicts_and_strings(tmp_path: Path) -> None:
    """Python 2 wrote an OrderedDict as a call with a list of pairs, and strings as bytes."""
    pairs = b"\x80\x02ccollections\nOrderedDict\n](](U\x01kK\x07e](U\x01lK\x08ee\x85R."
    with zipfile.ZipFile(tmp_path / "old.pt", "w") as file:
        file.writestr("old/data.pkl", pairs)
    assert read_torch(tmp_path / "old.pt") == pickle.loads(pairs) == {"k": 7, "l": 8}


def test_safetensors(tmp_path: Path) -> None:
    state = {str(d): (torch.randn(3, 4) * 9).to(d) for d in DTYPES if d is not torch.uint32}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    found = read_checkpoint(tmp_path).tensors
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert_same(found[name], tensor)


def test_safetensors_are_written_for_everyone(tmp_path: Path) -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    entries = {
        "a": NewTensor("float32", (4, 3), lambda: a.T),
        "b": NewTensor("bfloat16", (3, 4), lambda: cast(a, "float32", "bfloat16")),
        "c": NewTensor("float16", (3, 4), lambda: a.astype(">f2")),
    }
    write_safetensors(tmp_path / "x.safetensors", entries)
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "mlx"}
        assert torch.equal(file.get_tensor("a"), torch.tensor(a.T))
        assert torch.equal(file.get_tensor("b"), torch.tensor(a).bfloat16())
        assert torch.equal(file.get_tensor("c"), torch.tensor(a).half())


def test_npz(tmp_path: Path) -> None:
    arrays = {
        "c": np.arange(6, dtype=np.float32).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        "big": np.arange(3, dtype=">f4"),
        "text": np.frombuffer(b"a: b", np.int8),
        "flags": np.array([True, False]),
    }
    np.savez(tmp_path / "model.npz", **arrays)
    found = read_checkpoint(tmp_path).tensors
    assert found.keys() == arrays.keys()
    for name, values in arrays.items():
        assert np.array_equal(found[name].numpy(), values)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards(tmp_path: Path, kind: str) -> None:
    state = {"a": torch.ones(2), "b": torch.zeros(3)}
    index = {"weight_map": {}}
    for i, (name, tensor) in enumerate(state.items()):
        shard = f"part-{i}.{kind}"
        index["weight_map"][name] = shard
        if kind == "bin":
            torch.save({name: tensor}, tmp_path / shard)
        else:
            safetensors.torch.save_file({name: tensor}, tmp_path / shard)
    base = "pytorch_model.bin" if kind == "bin" else "model.safetensors"
    path = tmp_path / f"{base}.index.json"
    path.write_text(json.dumps(index))
    found = read_checkpoint(tmp_path).tensors
    assert_same(found["a"], state["a"])
    assert_same(found["b"], state["b"])
    index["weight_map"]["c"] = "part-0." + kind
    path.write_text(json.dumps(index))
    with pytest.raises(InputError, match="'c' is in the index or in a shard, but not in both"):
        read_checkpoint(tmp_path)
    path.write_text(json.dumps({"weight_map": {"a": "../part-0.bin"}}))
    with pytest.raises(InputError, match="not a file beside it"):
        read_checkpoint(tmp_path)


@given(st.lists(st.floats(width=32), min_size=1))
def test_bfloat16_rounds_as_pytorch_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    ours = cast(array, "float32", "bfloat16")
    theirs = torch.tensor(array).bfloat16()
    expected = theirs.view(torch.uint16).numpy()
    numbers = ~np.isnan(array)
    assert np.array_equal(ours[numbers], expected[numbers])
    back = cast(ours, "bfloat16", "float32")
    assert np.array_equal(back, theirs.float().numpy(), equal_nan=True)


def test_the_directory_must_tell_which_file_it_means(tmp_path: Path) -> None:
    for name in ("one.pt", "two.pt"):
        torch.save({"a": torch.ones(1)}, tmp_path / name)
    with pytest.raises(InputError, match=r"Name one \(found here: one\.pt, two\.pt\)"):
        read_checkpoint(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no weights are in this folder"):
        read_checkpoint(tmp_path / "empty")


WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "safetensors"):
    sys.modules[name] = None
from pathlib import Path
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
options = Options(settings={"h": 2, "pad_id": 0, "start_id": 1, "eos_id": 2})
print(convert(Path(sys.argv[1]), Path(sys.argv[2]), options).family)
"""


def test_converting_needs_no_pytorch(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict(
        {"net": torch.nn.Transformer(8, 2, 1, 1, 16), "embedding": torch.nn.Embedding(10, 8)}
    )
    torch.save(model.state_dict(), tmp_path / "a.pt")
    command = [sys.executable, "-c", WITHOUT_TORCH, tmp_path / "a.pt", tmp_path / "out"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "torch\n"
    assert (tmp_path / "out" / "model.safetensors").is_file()


class Scripted(torch.nn.Module):
    """What TorchScript says of types: a list of numbers and a dict beside parameters."""

    sizes: list[int]
    names: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 2), torch.nn.Linear(2, 4)])
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.sizes, self.names = [3, 2], {"a": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x + self.sizes[0] + self.names["a"]


def test_torchscript_programs_give_their_tensors(tmp_path: Path) -> None:
    module = Scripted()
    torch.jit.save(torch.jit.script(module), tmp_path / "scripted.pt")
    found = read_checkpoint(tmp_path / "scripted.pt").tensors
    expected = module.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_same(found[name], tensor)


@pytest.mark.parametrize("form", FORMATS)
def test_a_whole_module_gives_its_tensors(tmp_path: Path, form: str) -> None:
    """`torch.save(model)`: the file names classes, which stay unknown."""
    module = Scripted()
    save(module, tmp_path / "module.pt", form)
    found = read_checkpoint(tmp_path / "module.pt").tensors
    expected = module.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_same(found[name], tensor)


STATE = {"layer.weight": torch.ones(2, 3), "layer.bias": torch.zeros(2)}
MOMENTS = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, 3)}}}


@pytest.mark.parametrize(
    "saved",
    [
        {"model_state_dict": STATE, "loss": torch.tensor(1.5), "optimizer": MOMENTS},
        {"ema": STATE, "model": STATE, "step": torch.tensor(3)},
        {"net_state": STATE, "epoch": 1, "optimizer": MOMENTS},
        {"checkpoint": {"generator": STATE}},
        (STATE, MOMENTS),
        {"epoch": 3, "network": torch.nn.ModuleDict({"layer": torch.nn.Linear(3, 2)})},
    ],
)
def test_weights_among_other_things(tmp_path: Path, saved: object) -> None:
    torch.save(saved, tmp_path / "a.pt")
    assert read_checkpoint(tmp_path / "a.pt").tensors.keys() == STATE.keys()


class KindOfList(list):
    """With attributes of its own"""


class KindOfDict(dict):
    """With attributes of its own"""


def test_kinds_of_lists_and_dicts_keep_what_they_hold(tmp_path: Path) -> None:
    listed, state = KindOfList([3, 4]), KindOfDict(STATE)
    listed.note, state.note = "a", "b"
    options = KindOfDict(heads=8)
    for saved in (
        {"model": state, "listed": listed, "options": options},
        KindOfDict({"net": KindOfList([state]), "listed": listed, "options": options}),
    ):
        torch.save(saved, tmp_path / "a.pt")
        found = read_checkpoint(tmp_path / "a.pt")
        assert found.tensors.keys() == STATE.keys()
        kept = found.metadata["listed"]
        assert isinstance(kept, Record) and kept.contents == [3, 4] and kept.state == {"note": "a"}
        assert found.fields("options").integer("heads") == 8


@pytest.mark.parametrize("inside", [False, True])
def test_an_encoder_and_a_decoder_saved_apart_are_one_model(tmp_path: Path, inside: bool) -> None:
    modules = torch.nn.ModuleDict({name: torch.nn.Linear(3, 2) for name in ("encoder", "decoder")})
    modules["head"] = torch.nn.Linear(2, 1)
    states: dict[str, object] = {name: module.state_dict() for name, module in modules.items()}
    beside = {"optimizer": MOMENTS, "loss": torch.tensor(1.5)}
    torch.save({"model": states, **beside} if inside else states | beside, tmp_path / "a.pt")
    found = read_checkpoint(tmp_path / "a.pt").tensors
    assert found.keys() == modules.state_dict().keys()
    for name, tensor in modules.state_dict().items():
        assert_same(found[name], tensor)


def test_one_of_several_models_is_not_guessed(tmp_path: Path) -> None:
    torch.save({"generator": STATE, "critic": STATE}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="several models, 'generator', 'critic'"):
        read_checkpoint(tmp_path / "a.pt")


def test_compressed_npz(tmp_path: Path) -> None:
    arrays = {"a": np.random.default_rng(0).normal(size=(30, 20)), "b": np.zeros(5, np.int16)}
    np.savez_compressed(tmp_path / "model.npz", **arrays)
    found = read_checkpoint(tmp_path).tensors
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(found[name].numpy(), array)


def test_lightning_hyper_parameters_are_a_dict(tmp_path: Path) -> None:
    """As Lightning pickles them: a dict of its own kind."""
    path = tmp_path / "epoch=3.ckpt"
    torch.save({"state_dict": {"a.weight": torch.ones(2, 2)}, "hyper_parameters": Hyper(h=4)}, path)
    name = b"tests.convert.test_readers\nHyper"
    content = path.read_bytes()
    assert name in content
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new.ckpt", "w") as new:
        for entry in old.namelist():
            data = old.read(entry)
            theirs = b"lightning_fabric.utilities.data\nAttributeDict"
            new.writestr(entry, data.replace(name, theirs))
    checkpoint = read_checkpoint(tmp_path / "new.ckpt")
    assert checkpoint.tensors["a.weight"].shape == (2, 2)
    assert checkpoint.fields("hyper_parameters").integer("h") == 4


class Hyper(dict[str, int]):
    pass


class Node:
    """As OmegaConf's are pickled: a setting is a `_val`, a group is a `_content` of nodes."""

    def __init__(self, **state: object) -> None:
        self.__dict__.update(state)


def test_settings_of_omegaconf(tmp_path: Path) -> None:
    group = Node(
        _metadata=Node(key="model"), _content={"nhead": Node(_val=4), "x": Node(_val=None)}
    )
    config = Node(_content={"model": group, "pad_idx": Node(_val=1)}, _parent=None)
    torch.save({"state_dict": STATE, "hyper_parameters": config}, tmp_path / "a.ckpt")
    said = read_checkpoint(tmp_path / "a.ckpt").fields("hyper_parameters")
    assert said.integer("pad_idx") == 1
    assert said.inner("model").integer("nhead") == 4


def test_other_zips_of_pytorch_are_named(tmp_path: Path) -> None:
    for inside, kind in (
        ("a/.data/extern_modules", "torch.package"),
        ("a/models/model.json", "exp"),
    ):
        with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
            file.writestr(inside, "")
        with pytest.raises(InputError, match=rf"{kind}.*save only its state_dict"):
            read_checkpoint(tmp_path / "a.pt")
