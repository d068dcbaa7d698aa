"""Marian's binary files and SSRU decoders, beside a forward pass in plain NumPy."""

import gzip
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.marian_npz import listed, plain_lines
from mlx_transformer.convert.verify import verify
from mlx_transformer.decoding.options import model_options
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model
from tests.marian_models import YAML, V, logits, quantized, student, write_bin

SOURCE, TARGET = [5, 9, 2, 17, 0], [3, 8, 8, 21, 4, 11, 6]


@pytest.mark.parametrize("kind", ["float32", "float16", "intgemm8", "intgemm16"])
def test_logits_are_those_of_numpy(tmp_path: Path, kind: str) -> None:
    weights = student()
    path = write_bin(tmp_path / "model.enpt.bin", weights, kind)
    expected = dict(weights)
    for name, array in weights.items():
        if kind.startswith("intgemm") and len(array) > 1:
            whole, scale = quantized(array, int(kind.removeprefix("intgemm")))
            expected[name] = whole / scale
        elif kind == "float16":
            expected[name] = array.astype(kind)
    (tmp_path / "vocab.enpt.spm").write_bytes(b"pieces")
    (tmp_path / "lex.50.50.enpt.s2t.bin").write_bytes(b"not a model")
    for checkpoint, out in ((path, "file"), (tmp_path, "folder")):
        convert(checkpoint, tmp_path / out)
    model = load_model(tmp_path / "folder", mx.float32)
    found = np.array(model(mx.array([SOURCE]), mx.array([TARGET])))[0, :, :V]
    np.testing.assert_allclose(found, logits(expected, SOURCE, TARGET), atol=2e-4)
    assert (tmp_path / "file" / "tokenizer.model").read_bytes() == b"pieces"
    languages = json.loads((tmp_path / "file" / "tokenizer_config.json").read_text())
    assert languages == {"source_lang": "en", "target_lang": "pt"}


@pytest.mark.slow
def test_it_verifies(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "model.bin", student())
    convert(path, tmp_path / "ours")
    assert verify(path, tmp_path / "ours", Options()).holds


@pytest.mark.parametrize("spelled", ["\n  - 1\n  - 1\n", " [1, 1]\n"], ids=["lines", "brackets"])
def test_tied_layers_of_the_decoder_are_used_again(tmp_path: Path, spelled: str) -> None:
    weights = student()
    stored = {name: array for name, array in weights.items() if "decoder_l2" not in name}
    for name in weights.keys() - stored.keys():
        weights[name] = weights[name.replace("l2", "l1")]
    yaml = YAML.replace("\n  []\n", spelled)
    path = write_bin(tmp_path / "model.bin", stored, yaml=yaml)
    convert(path, tmp_path / "ours")
    model = load_model(tmp_path / "ours", mx.float32)
    found = np.array(model(mx.array([SOURCE]), mx.array([TARGET])))[0, :, :V]
    np.testing.assert_allclose(found, logits(weights, SOURCE, TARGET), atol=2e-4)


def test_layers_that_are_missing_are_said(tmp_path: Path) -> None:
    stored = {name: array for name, array in student().items() if "encoder_l2" not in name}
    with pytest.raises(InputError, match="enc-depth is 2, but the file has 1 layers"):
        convert(write_bin(tmp_path / "model.bin", stored), tmp_path / "ours")


def test_the_decoders_config_names_vocabularies_and_search(tmp_path: Path) -> None:
    """As Marian's training leaves it: two vocabularies whose names say nothing of their side."""
    write_bin(tmp_path / "model.bin", student())
    (tmp_path / "vocab.b.spm").write_bytes(b"source pieces")
    (tmp_path / "vocab.a.spm").write_bytes(b"target pieces")
    config = "models:\n  - model.bin\nvocabs:\n  - vocab.b.spm\n  - 'vocab.a.spm'\nbeam-size: 6\n"
    (tmp_path / "model.bin.decoder.yml").write_text(config + "normalize: 0.6\n")
    convert(tmp_path, tmp_path / "ours")
    assert (tmp_path / "ours" / "source.model").read_bytes() == b"source pieces"
    assert (tmp_path / "ours" / "target.model").read_bytes() == b"target pieces"
    options = model_options(tmp_path / "ours")
    assert (options.beam, options.alpha, options.length_penalty) == (6, 0.6, "plain")
    (tmp_path / "model.bin.decoder.yml").unlink()
    convert(tmp_path, tmp_path / "greedy")
    assert model_options(tmp_path / "greedy").beam == 1  # how students are run
    assert 1 in model_options(tmp_path / "greedy").banned  # the unknown word


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("said", "items"),
    [
        ("names: [a.spm, 'b.spm']", ["a.spm", "b.spm"]),
        ("names:|  - a.spm|  - 'b.spm'", ["a.spm", "b.spm"]),
        ("names: []", []),
        ("names:|  []", []),
        ("other: [a.spm]", []),
    ],
)
def test_lists_in_yaml(said: str, items: list[str], end: str) -> None:
    text = f"first: 1|{said}|last: 2|".replace("|", end)
    assert listed(text, "names") == items


def test_packed_files_are_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "model.enpt.intgemm.alphas.bin.gz").write_bytes(gzip.compress(b"model"))
    (tmp_path / "vocab.enpt.spm.gz").write_bytes(gzip.compress(b"pieces"))
    with pytest.raises(InputError, match="gunzip"):
        convert(tmp_path, tmp_path / "ours")


def test_a_long_line_is_soon_read() -> None:
    """A hostile config may be of any size: no line is looked at again and again."""
    long = "a" + " " * (1 << 20) + "b"
    assert plain_lines(f"x: {long}\ndec-cell: ssru") == {"x": long, "dec-cell": "ssru"}


def test_what_we_do_not_do_is_said(tmp_path: Path) -> None:
    content = write_bin(tmp_path / "model.bin", student()).read_bytes()
    for old, new in (
        (b"dec-cell: ssru", b"dec-cell: gruu"),
        (b"-autoreg: rnn", b"-autoreg: aan"),
        (b"postprocess: dan", b"postprocess: dhn"),
    ):
        (tmp_path / "model.bin").write_bytes(content.replace(old, new))
        with pytest.raises(InputError, match="is not supported"):
            convert(tmp_path / "model.bin", tmp_path / "out")


def test_matrices_packed_for_one_processor_are_refused(tmp_path: Path) -> None:
    content = write_bin(tmp_path / "model.bin", student(), "intgemm8").read_bytes()
    (tmp_path / "model.bin").write_bytes(content.replace(b"\x01\x41", b"\x01\x18"))
    with pytest.raises(InputError, match="packed for one kind of processor"):
        read_checkpoint(tmp_path / "model.bin")
