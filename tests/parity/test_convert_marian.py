"""Marian's binary files and SSRU decoders, beside a forward pass in plain NumPy."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.verify import verify
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model
from tests.marian_models import V, logits, quantized, student, write_bin

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
