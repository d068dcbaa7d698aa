"""Models of our own in another precision: what stays, what shrinks, how far the logits move."""

import io
import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
import sentencepiece

from mlx_transformer.__main__ import main
from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.export import float32_weights
from mlx_transformer.convert.export_torch import export_torch
from mlx_transformer.decoding.translator import load
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model, named_parameters, save_model
from mlx_transformer.tokenizer import sentencepiece_tokenizer

CONFIG = ModelConfig(
    vocab_size=60, encoder_layers=2, decoder_layers=2, d_model=128, d_ff=256, h=4, max_length=40
)
# The largest difference of logits that quantising may make, relative to the largest logit.
TOLERANCES = {8: 0.02, 4: 0.3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A model directory in float32, with a tokenizer."""
    place = tmp_path_factory.mktemp("model")
    mx.random.seed(0)
    save_model(Transformer(CONFIG), place)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a man runs over the green grass", "two dogs play near a house"]),
        model_writer=model,
        vocab_size=CONFIG.vocab_size,
        hard_vocab_limit=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    sentencepiece_tokenizer(model.getvalue()).save(place)
    return place


def ids(length: int) -> mx.array:
    return mx.random.randint(4, CONFIG.vocab_size, (30, length), key=mx.random.key(length))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_another_precision(dtype, directory, tmp_path):
    report = convert(directory, tmp_path / "out", dtype=dtype)
    assert (report.family, report.dtypes) == ("mlx", (dtype,))
    back = load_model(tmp_path / "out")
    assert back.config == CONFIG
    original = named_parameters(load_model(directory))
    assert named_parameters(back).keys() == original.keys()
    for name, array in named_parameters(back).items():
        assert mx.array_equal(array, original[name].astype(getattr(mx, dtype))), name
    tokenizer = (directory / "tokenizer.model").read_bytes()
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == tokenizer


@pytest.mark.usefixtures("any_device_uncompiled")
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_model(bits, directory, tmp_path):
    convert(directory, tmp_path / "out", bits=bits)
    original, quantised = load_model(directory), load_model(tmp_path / "out")
    assert quantised.config == replace(CONFIG, quantization=bits)

    plain, weights = named_parameters(original), float32_weights(quantised)
    for path, module in quantised.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            raise AssertionError(f"{path} is not quantised")
        if hasattr(module, "scales"):  # every weight is within a step of what it was
            step = mx.repeat(mx.abs(module.scales), 64, axis=1)
            assert mx.all(mx.abs(weights[f"{path}.weight"] - plain[f"{path}.weight"]) <= step)

    logits = quantised(ids(9), ids(7))
    rounded = Transformer(CONFIG)
    rounded.load_weights(list(weights.items()))
    assert mx.allclose(rounded(ids(9), ids(7)), logits, atol=1e-4)  # computed as stored
    expected = original(ids(9), ids(7))
    assert mx.abs(logits - expected).max() < TOLERANCES[bits] * mx.abs(expected).max()
    assert mx.abs(logits - expected).max() > 1e-4  # it is another model


@pytest.mark.parametrize(
    ("bits", "dtype", "each"), [(8, "float32", 9), (8, "float16", 8.5), (4, "float16", 4.5)]
)
def test_the_size(bits, dtype, each, directory, tmp_path):
    """A matrix takes `each` bits a weight: the weight's own, a scale and an offset for 64."""
    convert(directory, tmp_path / "out", dtype=dtype, bits=bits)
    model = load_model(tmp_path / "out")
    words = model.source_words
    stored = words.weight.nbytes + words.scales.nbytes + words.biases.nbytes
    assert stored * 8 == CONFIG.vocab_size * CONFIG.d_model * each
    assert words.scales.dtype == getattr(mx, dtype)


def test_a_quantised_model_loads_as_it_was_saved_and_cannot_be_quantised_again(directory, tmp_path):
    convert(directory, tmp_path / "a", bits=8)
    (tmp_path / "b").mkdir()
    save_model(load_model(tmp_path / "a"), tmp_path / "b")
    first, second = (named_parameters(load_model(tmp_path / name)) for name in "ab")
    assert first.keys() == second.keys()
    assert all(mx.array_equal(first[name], second[name]) for name in first)
    with pytest.raises(InputError, match="quantised already"):
        convert(tmp_path / "a", tmp_path / "c", bits=4)
    assert not (tmp_path / "c").exists()


@pytest.mark.usefixtures("any_device_uncompiled")
def test_a_quantised_model_translates(directory, tmp_path):
    convert(directory, tmp_path / "out", bits=8)
    texts = ["a man runs", "two dogs", ""]
    assert len(load(tmp_path / "out").translate(texts)) == 3


def test_the_commands(directory, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["convert", str(directory), str(out), "--quantize", "8"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(out)
    assert "matrices in 8 bits, the rest in float32" in said.err
    assert main(["info", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["dtype"], facts["config"]["quantization"]) == ("8-bit", 8)
    assert facts["megabytes"] == pytest.approx(
        (out / "model.safetensors").stat().st_size / 1e6, 0.1
    )
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(directory), str(out), "--quantize", "3"])
    assert stop.value.code == 2


def test_a_foreign_checkpoint_is_quantised_on_the_way(directory, tmp_path):
    (tmp_path / "torch").mkdir()
    export_torch(load_model(directory), tmp_path / "torch")
    options = ["--heads", "4", "--pad-id", "0", "--start-id", "1", "--eos-id", "2"]
    checkpoint, out = str(tmp_path / "torch" / "model.pt"), str(tmp_path / "out")
    assert main(["convert", checkpoint, out, "--quantize", "4", *options]) == 0
    convert(directory, tmp_path / "expected", bits=4)
    ours, expected = (named_parameters(load_model(tmp_path / n)) for n in ("out", "expected"))
    assert ours.keys() == expected.keys()
    assert all(mx.array_equal(ours[name], expected[name]) for name in ours)


def test_a_model_too_narrow_for_groups_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    save_model(Transformer(replace(CONFIG, d_model=32, d_k=8, d_v=8, d_ff=48)), tmp_path / "model")
    with pytest.raises(InputError, match="multiple of 64 columns"):
        convert(tmp_path / "model", tmp_path / "out", bits=8)
    assert not (tmp_path / "out").exists()
