"""Files made to do harm: nothing in them runs, nothing hangs, memory stays small, errors are clear.

Each file is read in a process with one gigabyte of address space and ten seconds of computing; what
a payload would run creates a file beside it, which must not exist in the end.
"""

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.convert.hostile_pickles import STORAGE, call, payloads, tensor, text
from tests.ctranslate2_models import WORDS, write_model
from tests.marian_models import YAML, student, write_bin, write_lex

RUNNER = Path(__file__).parent / "hostile_runner.py"
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."


def outcomes(paths: list[Path], *how: str) -> dict[str, tuple[str, str]]:
    """Read all files in one process; a file that takes it down has the outcome `died`."""
    left, found = [str(path) for path in paths], {}
    while left:
        run = subprocess.run(
            [sys.executable, RUNNER, *how],
            input="\n".join(left),
            capture_output=True,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MLX_TRANSFORMER_BLAS": "off"},
        )
        lines = [json.loads(line) for line in run.stdout.splitlines()]
        found |= {name: (outcome, message) for name, outcome, message in lines}
        left = left[len(lines) :]
        if left:
            found[left.pop(0)] = ("died", run.stderr[-300:])
    return found


def assert_all_refused(paths: list[Path]) -> None:
    for name, (outcome, message) in outcomes(paths).items():
        assert outcome == "refused", f"{Path(name).name}: {outcome} {message}"
        assert message.startswith(name), message  # which file, then one short sentence
        assert "\n" not in message and len(message) < 400 + len(name)
        assert message.isprintable(), message


# Pickles


class Reduces:
    def __init__(self, function: object, *args: object):
        self.reduced = (function, args)

    def __reduce__(self) -> object:
        return self.reduced


def write_zip(path: Path, pickled: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", b"\x80\x02" + pickled + b".")
        for name, content in ({"data/0": bytes(16), "version": b"3"} | members).items():
            file.writestr(f"a/{name}", content)
    return path


def write_legacy(path: Path, pickled: bytes) -> Path:
    storage = b"\x80\x02]" + text("0") + b"a." + struct.pack("<q", 4) + bytes(16)
    pickled = pickled.replace(STORAGE, STORAGE.replace(b"tQ", b"NtQ"))  # no view of it
    path.write_bytes(MAGIC + b"\x80\x02" + pickled + b"." + storage)
    return path


def test_the_harness_reads_what_is_harmless(tmp_path: Path) -> None:
    """Otherwise every refusal below could be an accident."""
    good = tensor(b"K\x02K\x02\x86", b"K\x02K\x01\x86")
    paths = [write_zip(tmp_path / "z.pt", good), write_legacy(tmp_path / "l.pt", good)]
    assert {outcome for outcome, _ in outcomes(paths).values()} == {"read"}
    assert torch.load(paths[0])["a"].shape == (2, 2) == torch.load(paths[1])["a"].shape


def test_the_payloads_are_real(tmp_path: Path) -> None:
    """Python's own unpickler runs them."""
    sentinel = tmp_path / "sentinel"
    pickle.loads(b"\x80\x02" + payloads(f"touch {sentinel}")["os.system"] + b".")
    assert sentinel.exists()


@pytest.mark.slow
def test_pickles(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    paths = []
    for i, (_, pickled) in enumerate(payloads(f"touch {sentinel}").items()):
        paths.append(write_zip(tmp_path / f"{i}-zip.pt", pickled))
        paths.append(write_legacy(tmp_path / f"{i}-legacy.pt", pickled))
    for i, function in enumerate([os.system, eval, exec, __import__, subprocess.check_output]):
        value = {"model": OrderedDict(a=torch.ones(2), b=Reduces(function, f"touch {sentinel}"))}
        for form in (True, False):
            paths.append(tmp_path / f"reduce-{i}-{form}.pt")
            torch.save(value, paths[-1], _use_new_zipfile_serialization=form)
    assert_all_refused(paths)
    assert not sentinel.exists()


def test_calls_are_refused_by_name(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", call("os", "system", "true"))
    message = outcomes([path])[str(path)][1]
    assert "'os.system'" in message and "state_dict()" in message


# Containers


def good_bytes(form: str) -> bytes:
    state = {"layer.weight": torch.randn(4, 3), "layer.bias": torch.ones(4).half()}
    buffer = io.BytesIO()
    if form == "safetensors":
        return safetensors.numpy.save({name: values.numpy() for name, values in state.items()})
    if form == "argos":
        return argos_bytes()
    if form == "marian":
        return marian_bytes()
    if form == "codes":
        return b"#version: 0.2\nt r\ne e</w>\ntr ee</w>\ne s</w>\ntr e\n"
    if form == "lex":
        with tempfile.TemporaryDirectory() as folder:
            lists = [[i, (i + 7) % 40] for i in range(40)]
            return write_lex(Path(folder) / "lex.bin", lists, 6).read_bytes()
    if form == "ctranslate2":
        with zipfile.ZipFile(io.BytesIO(argos_bytes())) as file:
            return file.read("a/model/model.bin")
    if form == "torchscript":
        torch.jit.save(torch.jit.script(torch.nn.Linear(4, 3)), buffer)
        return buffer.getvalue()
    if form == "marian npz":
        config = np.frombuffer(YAML.encode() + b"\0", np.int8)
        np.savez(buffer, **student(), **{"special:model.yml": config})
        return buffer.getvalue()
    if form in ("npz", "compressed npz"):
        save = np.savez if form == "npz" else np.savez_compressed
        save(buffer, **{name: values.numpy() for name, values in state.items()})
    else:
        torch.save(
            {"model": state, "epoch": 3}, buffer, _use_new_zipfile_serialization=form == "zip"
        )
    return buffer.getvalue()


@cache
def argos_bytes() -> bytes:
    """A package whose members are not compressed, so that damage reaches them."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(buffer, "w") as file:
        model = write_model(Path(folder) / "model", quantization="int8")
        file.writestr("a/metadata.json", b"{}")
        for path in model.iterdir():
            file.write(path, f"a/model/{path.name}")
    return buffer.getvalue()


@cache
def marian_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_bin(Path(folder) / "model.bin", student(), "intgemm8").read_bytes()


SUFFIXES = {
    "zip": ".pt",
    "legacy": ".pt",
    "safetensors": ".safetensors",
    "npz": ".npz",
    "compressed npz": ".npz",
    "argos": ".argosmodel",
    "marian": ".bin",
    "marian npz": ".npz",
    "ctranslate2": "/model.bin",
    "torchscript": ".pt",
}
OTHERS = {"codes": ".codes", "lex": ".lex"}  # files beside checkpoints


@pytest.mark.parametrize("form", SUFFIXES)
def test_cut_short(tmp_path: Path, form: str) -> None:
    content = good_bytes(form)
    paths = []
    for end in range(0, len(content) - 1, max(10, len(content) // 200)):
        paths.append(put(tmp_path / f"{end}{SUFFIXES[form]}", content[:end]))
    assert_all_refused(paths)


def put(path: Path, content: bytes) -> Path:
    """CTranslate2's models are all called model.bin, and are nothing without their words."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    if path.name == "model.bin":
        (path.parent / "shared_vocabulary.json").write_text(json.dumps(WORDS))
    return path


def deflated(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, content)
    return path


def patched(path: Path, content: bytes, old: bytes, new: bytes, count: int = -1) -> Path:
    assert old in content and len(old) == len(new)
    path.write_bytes(content.replace(old, new, count))
    return path


def test_zips(tmp_path: Path) -> None:
    good = tensor(b"K\x04\x85", b"K\x01\x85")
    content = write_zip(tmp_path / "good.pt", good).read_bytes()
    # The end record: entries, entries, size and start of the table of contents.
    end = content.rindex(b"PK\x05\x06")
    entries, _, size, start = struct.unpack("<HHII", content[end + 8 : end + 20])

    def with_end(name: str, *values: int) -> Path:
        path = tmp_path / name
        path.write_bytes(content[: end + 8] + struct.pack("<HHII", *values) + content[end + 20 :])
        return path

    huge = tmp_path / "huge.pt"
    with huge.open("wb") as file:  # a hole of 8 GB said to be the table of contents
        file.write(b"PK\x03\x04")
        file.seek(8 << 30)
        file.write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 0xFFFFFF00, 0, 0))
    central = content.index(b"PK\x01\x02")
    data = content.index(b"a/data/0")
    paths = [
        write_zip(tmp_path / "up.pt", good, **{"../../evil": b"x"}),
        write_zip(tmp_path / "backslash.pt", good, **{"..\\evil": b"x"}),
        patched(tmp_path / "absolute.pt", content, b"a/data/0", b"/etc/pwd"),
        write_zip(tmp_path / "twice.pt", good, **{"b/data.pkl": b"x"}),
        deflated(tmp_path / "bomb.pt", "a/data.pkl", bytes(40 << 20)),
        deflated(tmp_path / "bomb.npz", "a.npy", bytes(40 << 20)),
        deflated(tmp_path / "nothing.pt", "a/other", b""),
        with_end("large.pt", entries, entries, 0xFFFFFFF0, start),
        with_end("away.pt", entries, entries, size, 0xFFFFFFF0),
        huge,
        # The table of contents and the local header disagree.
        patched(tmp_path / "renamed.pt", content, b"a/data/0", b"a/data/1", 1),
    ]
    encrypted = bytearray(content)
    encrypted[central + 8] |= 1
    large = bytearray(content)  # the size of a member, in both places of the table of contents
    entry = content.index(b"a/data/0", data + 1) - 46
    large[entry + 20 : entry + 28] = struct.pack("<II", 1 << 31, 1 << 31)
    overlapping = bytearray(content)
    overlapping[entry + 42 : entry + 46] = bytes(4)
    overlapping[entry + 46 : entry + 54] = b"a/data.p"
    for name, changed in {"e.pt": encrypted, "l.pt": large, "o.pt": overlapping}.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(changed)
    assert_all_refused(paths)


def test_a_member_cannot_be_listed_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = write_zip(tmp_path / "a.pt", b"}")
        with zipfile.ZipFile(path, "a") as file:
            file.writestr("a/data.pkl", b"\x80\x02}.")
    assert_all_refused([path])


def safetensors_file(path: Path, header: object, data: bytes = bytes(16)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_safetensors(tmp_path: Path) -> None:
    def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> object:
        return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}

    headers = [
        entry(dtype="F31"), entry(dtype=["F32"]), entry(shape=(5,)), entry(shape=(-4,)),
        entry(shape=("4",)), entry(shape=[1] * 100), entry(shape=(1 << 40, 1 << 40)),
        entry(shape="4"), entry(offsets=(0, 17)), entry(offsets=(16, 0)), entry(offsets=(-16, 0)),
        entry(offsets=(0,)), entry(offsets=("0", "16")), {"a": 1}, [1], b"{", b"[" * 100_000,
        b'{"a":' * 100_000, b"\xff\xfe", b'{"a": ' + b"9" * 10_000 + b"}",
    ]  # fmt: skip
    paths = [safetensors_file(tmp_path / f"{i}.safetensors", h) for i, h in enumerate(headers)]
    huge = tmp_path / "huge.safetensors"
    huge.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert_all_refused([*paths, huge])


def test_npz(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    harmful = np.array([Reduces(os.system, f"touch {sentinel}")], dtype=object)
    np.savez(tmp_path / "object.npz", a=harmful)
    np.savez_compressed(tmp_path / "compressed.npz", a=np.zeros(1 << 20))
    paths = [tmp_path / "object.npz", tmp_path / "compressed.npz"]
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"
    shapes = [b"1 << 40,", b"4000000000,", b"-4,", b"'4',", b"__import__('os'),", b"1," * 3000]
    for i, shape in enumerate(shapes):
        text = header % shape + b"\n"
        npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(16)
        paths.append(tmp_path / f"{i}.npz")
        with zipfile.ZipFile(paths[-1], "w") as file:
            file.writestr("a.npy", npy)
    assert_all_refused(paths)
    assert not sentinel.exists()


# Random damage


def mutations(content: bytes, source: random.Random) -> bytes:
    """A few bytes changed, cut out, repeated or replaced by what parsers stumble over."""
    data = bytearray(content)
    for _ in range(source.randint(1, 6)):
        at = source.randrange(len(data) or 1)
        kind = source.randrange(5)
        if kind == 0:
            data[at : at + 1] = bytes([source.randrange(256)])
        elif kind == 1:
            data[at : at + 1] = bytes([(data[at] if data else 0) ^ 1 << source.randrange(8)])
        elif kind == 2:
            del data[at : at + source.randint(1, 20)]
        elif kind == 3:
            data[at:at] = data[at : at + source.randint(1, 40)]
        else:
            data[at : at + 4] = source.choice([b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff"])
    return bytes(data)


def fuzz(
    folder: Path, rounds: int, seed: int, forms: Iterable[str] = (*SUFFIXES, *OTHERS), *how: str
) -> int:
    """Read damaged files of these forms; each is read or refused. Returns how many were refused."""
    source = random.Random(seed)
    goods = [(good_bytes(form), (SUFFIXES | OTHERS)[form]) for form in forms]
    paths = []
    for i in range(rounds):
        content, suffix = goods[i % len(goods)]
        paths.append(put(folder / f"{i}{suffix}", mutations(content, source)))
    found = outcomes(paths, *how)
    for name, (outcome, message) in found.items():
        assert outcome in ("read", "refused"), f"seed {seed}, {name}: {outcome} {message}"
    return sum(outcome == "refused" for outcome, _ in found.values())


def test_damaged_files(tmp_path: Path) -> None:
    assert fuzz(tmp_path, rounds=1200, seed=0) > 500


if __name__ == "__main__":
    # python -m tests.convert.test_hostile SECONDS [FORM...]: a longer run, which also converts
    import time

    end, seed, refused = time.time() + float(sys.argv[1]), 1, 0
    while time.time() < end:
        with tempfile.TemporaryDirectory() as name:
            forms = sys.argv[2:] or [*SUFFIXES, *OTHERS]
            refused += fuzz(Path(name), 400, seed, forms, "convert")
        seed += 1
    print(f"{400 * (seed - 1)} damaged files, {refused} refused, the others converted")
