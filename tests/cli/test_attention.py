"""`mlx-transformer attention`, as a user types it."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.translator import load
from mlx_transformer.pictures.attention import KINDS
from mlx_transformer.storage import quantize, save_model
from tests.numpy_attention import attention_weights
from tests.tiny_directory import write_model

TEXT = "three hundred and twenty-two"


def command(*args: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_transformer", "attention", *map(str, args)],
        input=text,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), encoder_layers=2, norm="pre")


def data_of(page: str):
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.S)[1])


def test_a_page_of_the_models_own_translation_with_the_weights_of_numpy(model, tmp_path):
    done = command(TEXT, "--model", model, "--out", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'page.html'}\n"), done.stderr
    data = data_of((tmp_path / "page.html").read_text("utf-8"))
    translator = load(model)
    config, tokenizer = translator.model.config, translator.tokenizer
    source = [*tokenizer.encode_source(TEXT), config.eos_id]
    [[best]] = search(translator.model, [source])
    assert data["translation"] == tokenizer.decode(best.ids)
    written = [*best.ids, config.eos_id][: len(best.ids) + best.complete]
    expected = attention_weights(translator.model, source, [config.start_id, *written[:-1]])
    for kind, stored in zip(KINDS, data["kinds"], strict=True):
        assert np.allclose(stored["layers"], expected[kind], atol=1e-4)


def test_a_recurrent_decoder_has_no_self_attention(tmp_path):
    model = write_model(tmp_path, decoder_cell="ssru")
    page, picture = tmp_path / "page.html", tmp_path / "all.svg"
    done = command("seven. Eight!", "--model", model, "--out", page)
    assert done.returncode == 0, done.stderr
    assert [kind["name"] for kind in data_of(page.read_text("utf-8"))["kinds"]] == [
        "encoder", "cross",
    ]  # fmt: skip
    assert command("seven", "--model", model, "--kind", "all", "--out", picture).returncode == 0
    titles = picture.read_text("utf-8")
    assert "Cross-attention" in titles and "Decoder self-attention" not in titles
    done = command("seven", "--model", model, "--kind", "decoder", "--out", picture)
    assert done.returncode == 2
    assert "has no decoder self-attention: its decoder is recurrent" in done.stderr


def test_several_sentences_are_drawn_as_they_are_translated(model, tmp_path):
    text, page = "twenty-two. Three hundred!\n\nSeven? Eight.", tmp_path / "page.html"
    done = command(text, "--model", model, "--out", page)
    assert done.returncode == 0, done.stderr
    data, found = data_of(page.read_text("utf-8")), load(model).translate(text, attention=True)
    assert data["translation"] == found.text
    cross = next(kind for kind in data["kinds"] if kind["name"] == "cross")
    written = [i for i, token in enumerate(cross["queries"]) if token != "</s>"]
    read = [i for i, token in enumerate(cross["keys"]) if token != "</s>"]
    last = np.array(cross["layers"])[-2:].mean(axis=(0, 1))  # as `translate` averages
    assert np.allclose(last[np.ix_(written, read)], found.attention, atol=1e-4)


def test_a_forced_translation_and_text_from_a_pipe(model, tmp_path):
    page = tmp_path / "page.html"
    options = ["--target", "zweiundzwanzig", "--word", "zweiundzwanzig", "--head", "2,4"]
    done = command("-", "--model", model, "--out", page, *options, text="twenty-two\n")
    assert done.returncode == 0, done.stderr
    data = data_of(page.read_text("utf-8"))
    assert (data["text"], data["translation"]) == ("twenty-two", "zweiundzwanzig")
    places = list(range(len(data["kinds"][2]["queries"]) - 1))
    assert data["start"] == {
        "kind": "cross",
        "layer": 1,
        "heads": [1, 3],
        "word": {"side": "queries", "places": places},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maps.png", "maps.svg", "lines.svg"])
def test_pictures(model, tmp_path, name):
    options = ["--kind", "encoder,cross", "--layer", "all", "--head", "1"]
    lines = ["--lines"] if name == "lines.svg" else []
    done = command(TEXT, "--model", model, "--out", tmp_path / name, *options, *lines)
    assert done.returncode == 0, done.stderr
    content = (tmp_path / name).read_bytes()
    if name.endswith(".png"):
        assert content.startswith(b"\x89PNG")
        return
    for title in ("Encoder self-attention, layer 1 of 2", "Cross-attention, layer 2 of 2"):
        assert title.encode() in content


def test_a_half_precision_and_a_quantised_model_can_be_drawn(tmp_path):
    folder = write_model(tmp_path, d_model=64, d_ff=64)
    page = tmp_path / "page.html"
    done = command("two", "--model", folder, "--out", page, "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    model = load(folder).model
    quantize(model, 8)
    model.config = replace(model.config, quantization=8)
    save_model(model, folder)
    done = command("two", "--model", folder, "--out", page)
    assert done.returncode == 0, done.stderr
    for kind in data_of(page.read_text("utf-8"))["kinds"]:
        assert np.allclose(np.array(kind["layers"]).sum(-1), 1, atol=2e-3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["two", "--out", "a.gif"], "a.gif must end in .html, .png or .svg"),
        (["two", "--out", "a.html", "--layer", "9"], "no layer 9: the model has layers 1 to 2"),
        (["two", "--out", "a.html", "--layer", "x"], "neither numbers such as 1,3 nor all"),
        (["two", "--out", "a.html", "--kind", "x"], "'x' is none of encoder, decoder, cross, all"),
        (["two", "--out", "a.html", "--word", "cat"], "'cat' is not in the cross-attention"),
        ([" ", "--out", "a.html"], "there is no text to translate"),
        (["two", "--out", "a.html", "--target", "eins " * 99], "more than the model's 64"),
        (["two"], "required: --out"),
    ],
)
def test_a_wrong_call_is_a_sentence_and_exit_2(model, args, words):
    done = command(*args, "--model", model)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
