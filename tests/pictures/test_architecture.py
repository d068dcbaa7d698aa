"""Figures 1 and 2, read back from the picture: they show the model that was given."""

import xml.etree.ElementTree as ElementTree

import pytest

from mlx_transformer.config import preset
from mlx_transformer.model import Transformer
from mlx_transformer.pictures.architecture import draw_architecture, towers

SVG = "{http://www.w3.org/2000/svg}"
OTHER = preset(
    "tiny",
    norm="pre",
    norm_kind="rms",
    encoder_layers=5,
    encoder_final_norm=True,
    decoder_final_norm=True,
    decoder_cell="ssru",
    positions="relative",
    shared_embeddings=False,
    gated_feed_forward=True,
    d_k=20,
    d_v=12,
)


def words(config, path) -> list[str]:
    draw_architecture(Transformer(config), "a title", path)
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text")]


@pytest.mark.parametrize("config", [preset("base"), OTHER], ids=["base", "other"])
def test_every_matrix_of_both_layers_is_there_with_its_size(config, tmp_path):
    shown = " ".join(words(config, tmp_path / "model.svg"))
    model = Transformer(config)
    for layer in (model.encoder.layers[0], model.decoder.layers[0]):
        for part in layer.children().values():
            for name, matrix in part.children().items():
                d_out, d_in = matrix.weight.shape
                assert f"{name} {d_in} → {d_out}" in shown
    assert f"{config.encoder_layers} ×" in shown and f"{config.decoder_layers} ×" in shown


def test_the_paper_s_base_model(tmp_path):
    shown = words(preset("base"), tmp_path / "base.svg")
    assert [shown.count(name) for name in ("Add & Norm", "Feed forward")] == [5, 2]
    assert {"Masked multi-head attention", "sinusoidal positions", "Softmax"} <= {*shown}
    assert "times 1 / √64 = 0.125" in shown
    assert any("63,082,496 parameters" in text for text in shown)  # counted in tests/test_config.py


def test_a_model_of_another_kind_looks_like_itself(tmp_path):
    shown = words(OTHER, tmp_path / "other.svg")
    # three sublayers and two, each with its own, and one on top of each stack
    assert shown.count("RMS norm") == 7
    assert {"SSRU", "Relative bias and mask", "Concat: 2 × 12 = 24"} <= {*shown}
    assert "sinusoidal positions" not in shown


def test_sublayers_are_in_the_order_in_which_they_run():
    encoder, decoder = towers(Transformer(preset("tiny")))
    assert [part.block.kind for part in encoder.sublayers] == ["attention", "feed_forward"]
    assert [part.reads_memory for part in decoder.sublayers] == [False, True, False]


def test_a_model_of_one_half(tmp_path):
    decoder = words(preset("tiny", encoder_layers=0), tmp_path / "gpt.svg")
    assert decoder.count("Add & Norm") == 2 and "probabilities (B, T, 1,000)" in decoder
    vectors = words(preset("tiny", decoder_layers=0, word_head="none"), tmp_path / "bert.svg")
    assert "vectors (B, S, 64)" in vectors and "Linear" not in vectors


def test_nothing_is_computed(tmp_path):
    """The drawing of a model that no machine could hold."""
    config = preset("big", d_model=1 << 16, vocab_size=1 << 24, h=1)
    assert "16,777,216 × 65536" in words(config, tmp_path / "huge.svg")
