"""Model directories of strangers: what their files say is compared before anything is built."""

import json
import resource
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlx_transformer.decoding.translator import load
from mlx_transformer.errors import InputError
from mlx_transformer.model import Embedding
from mlx_transformer.storage import load_model, load_to_compute
from tests.tiny_directory import write_model


def change_config(directory: Path, **settings: object) -> Path:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | settings))
    return directory


def change_weights(directory: Path, **arrays: np.ndarray | None) -> Path:
    """Replace tensors, or leave out those that are None; dots in names are written `__`."""
    path = directory / "model.safetensors"
    weights = load_file(path)
    for name, array in arrays.items():
        weights.pop(name.replace("__", "."), None)
        if array is not None:
            weights[name.replace("__", ".")] = array
    save_file(weights, path)
    return directory


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"d_model": 10**9, "h": 2, "d_k": 1, "d_v": 1}, "d_model must be at most 1,048,576"),
        ({"d_model": 2**20}, r"source_words.weight should be \(\d+, 1048576\) by config.json"),
        ({"vocab_size": 2**24, "target_vocab_size": 2**24}, r"should be \(16777216, 32\)"),
        ({"d_ff": 2**20}, "feed_forward.w_1.weight should be"),
        ({"encoder_layers": 10**5}, "encoder_layers must be at most 1,024, not 100000"),
        ({"encoder_layers": 1000}, "promises 1,00. layers, the file has"),
        ({"positions": "learned", "max_length": 10**7}, "embedding.positions is missing"),
        ({"norm_eps": 10**400}, "norm_eps must be a number"),
        ({"norm_eps": 1e999}, "norm_eps must be in"),
        ({"h": 10**4000}, "h must be at most 1,024, not 1000"),
        ({"dropout": "\x1b[2J" * 9999}, r"dropout must be a number, not '\\x1b\[2J"),
        ({"\x1b]0;a\x07": 1}, r"unknown model setting '\\x1b"),
    ],
)
def test_a_config_that_does_not_fit_the_file_is_one_sentence(tmp_path, settings, sentence):
    before = peak()
    directory = change_config(write_model(tmp_path), **settings)
    with pytest.raises(InputError, match=sentence) as caught:
        load_model(directory)
    message = str(caught.value)
    assert str(directory) in message and len(message) < 400 + len(str(directory))
    assert message.isprintable()
    assert peak() - before < 200e6


@pytest.mark.parametrize(
    "text", ["[" * 10**5, '{"h": ' + "9" * 5000 + "}", '{"a": ' * 10**5, "[1]", "\x00", "", "\xff"]
)
def test_a_config_that_is_no_json_is_one_sentence(tmp_path, text):
    path = write_model(tmp_path) / "config.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"config\.json (is not valid JSON|must hold)") as caught:
        load_model(tmp_path)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


NAME = "encoder.layers.0.feed_forward.w_1.bias"
MATRIX = "encoder.layers.0.feed_forward.w_1.weight"


@pytest.mark.parametrize("load", [load_model, load_to_compute])
@pytest.mark.parametrize("name", [NAME, MATRIX])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_that_are_not_finite_are_refused(tmp_path, load, name, bad, dtype):
    directory = write_model(tmp_path)
    values = load_file(directory / "model.safetensors")[name].astype(dtype)
    values.flat[3] = bad
    change_weights(directory, **{name: values})
    sentence = f"model.safetensors does not fit: the weights of {name} are not finite"
    with pytest.raises(InputError, match=sentence):
        load(directory)


@pytest.mark.parametrize("load", [load_model, load_to_compute])
@pytest.mark.parametrize("name", [NAME, MATRIX])
def test_large_weights_whose_sum_is_not_finite_are_fine(tmp_path, load, name):
    directory = write_model(tmp_path)
    values = np.full_like(load_file(directory / "model.safetensors")[name], 3e38)
    load(change_weights(directory, **{name: values}))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float64, np.bool_])
def test_weights_that_are_no_floating_point_numbers_are_refused(tmp_path, dtype):
    directory = write_model(tmp_path)
    values = load_file(directory / "model.safetensors")[NAME].astype(dtype)
    change_weights(directory, **{NAME: values})
    with pytest.raises(InputError, match=f"{NAME} should be float32 or float16"):
        load_model(directory)


def test_a_tensor_too_many_or_too_few_is_named_without_its_control_codes(tmp_path):
    directory = write_model(tmp_path)
    change_weights(directory, **{NAME: None, "\x1b[2J": np.ones(2, np.float32)})
    with pytest.raises(InputError) as caught:
        load_model(directory)
    assert f"{NAME} is missing" in str(caught.value)
    assert r"no place for '\x1b[2J'" in str(caught.value)


@pytest.mark.filterwarnings("ignore:a translation reached its length limit")
def test_a_formula_for_millions_of_positions_takes_no_memory_until_they_are_used(tmp_path):
    before = peak()
    directory = change_config(write_model(tmp_path), max_length=3_000_000)
    assert load(directory).translate("seven").text is not None
    assert peak() - before < 200e6


@pytest.mark.parametrize("number", [120, 1_000_000, -1])
def test_a_word_beyond_the_embedding_is_refused(tmp_path, number):
    """Its row would be read from outside of the matrix."""
    directory = write_model(tmp_path)
    for name in ("source.spm", "target.spm"):
        (directory / name).write_bytes((directory / "tokenizer.model").read_bytes())
    ids = {"<pad>": 0, "</s>": 2, "<unk>": 3, "▁": 4, "s": number}
    (directory / "vocab.json").write_text(json.dumps(ids))
    with pytest.raises(InputError, match=r"has ids up to|must be a JSON object from pieces to ids"):
        load(directory).translate("seven")


def test_positions_do_not_depend_on_how_the_table_grew(tmp_path):
    config = load_model(write_model(tmp_path)).config
    words = mx.zeros((1, 3000, config.d_model))
    grown, at_once = Embedding(config), Embedding(config)
    parts = [grown(words[:, i : i + 500], i) for i in range(0, 3000, 500)]
    assert mx.array_equal(mx.concatenate(parts, axis=1), at_once(words))
