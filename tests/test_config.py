import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.config import PRESETS, ModelConfig, preset
from mlx_transformer.errors import InputError
from mlx_transformer.storage import count_parameters

# Table 3 of the paper: millions of parameters, where it prints them.
TABLE_3 = {
    "base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80, "C-d256": 28,
    "C-d1024": 168, "C-dff1024": 53, "C-dff4096": 90, "big": 213,
}  # fmt: skip


def test_parameters_of_the_literal_specification():
    assert round(count_parameters(preset("base", vocab_size=37_000)) / 1e6, 2) == 63.08
    assert round(count_parameters(preset("big", vocab_size=37_000)) / 1e6, 2) == 214.25


@pytest.mark.parametrize(("name", "millions"), TABLE_3.items())
def test_parameters_of_table_3(name, millions):
    rest = count_parameters(preset("base", vocab_size=37_000)) - 37_000 * 512
    vocab_size = round((65e6 - rest) / 512)
    assert count_parameters(preset(name, vocab_size=vocab_size)) == pytest.approx(
        millions * 1e6, rel=0.04
    )


def test_table_3_varies_only_what_it_says():
    configs = {name: preset(name) for name in PRESETS}
    base = configs["base"].to_dict()
    changed = {
        name: {key for key, value in config.to_dict().items() if value != base[key]}
        for name, config in configs.items()
    }
    assert changed["A-h16"] == {"h", "d_k", "d_v"}
    assert changed["B-dk16"] == {"d_k"}
    assert changed["D-smoothing0.2"] == {"label_smoothing"}
    assert changed["E-learned"] == {"positions"}
    assert all(config.h * config.head_sizes[1] == config.d_model for config in configs.values())


@pytest.mark.parametrize("name", PRESETS)
def test_json_round_trip(name, tmp_path):
    path = tmp_path / "config.json"
    preset(name).save(path)
    assert ModelConfig.load(path) == preset(name)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"d_model": 511, "h": 7}, "d_model must be even, not 511"),
        ({"h": 0}, "h must be at least 1, not 0"),
        ({"encoder_layers": -2}, "encoder_layers must be at least 0, not -2"),
        ({"h": 7}, "d_model 512 is not a multiple of h 7: give d_k as well"),
        ({"d_model": "512"}, "d_model must be a whole number, not '512'"),
        ({"d_model": 512.0}, "d_model must be a whole number, not 512.0"),
        ({"h": True}, "h must be a whole number, not True"),
        ({"d_k": "x"}, "d_k must be a whole number, not 'x'"),
        ({"norm": "middle"}, "norm must be one of 'post', 'pre', not 'middle'"),
        ({"dropout": 1}, "dropout must be in [0, 1), not 1.0"),
        ({"dropout": float("nan")}, "dropout must be in [0, 1), not nan"),
        ({"d_modl": 512}, "unknown model setting 'd_modl'; did you mean 'd_model'?"),
        ({"xyz": 512}, "unknown model setting 'xyz'"),
        ({"eos_id": 40_000}, "eos_id must be an id below the vocabulary size 37000, not 40000"),
        (
            {"encoder_layers": 0, "decoder_layers": 0},
            "a model needs layers: encoder_layers and decoder_layers are both 0",
        ),
        (
            {"decoder_layers": 0, "shared_embeddings": False},
            "the encoder alone has one vocabulary: set shared_embeddings",
        ),
        (
            {"encoder_layers": 0, "start_id": None},
            "a decoder alone begins with a token: give start_id",
        ),
        (
            {"encoder_layers": 0, "decoder_cell": "ssru"},
            "a decoder alone has self-attention: leave decoder_cell out",
        ),
        ({"word_head": "transform"}, "word_head 'transform' is for an encoder alone"),
        ({"quantization": 3}, "quantization must be 4 or 8 bits, not 3"),
        (
            {"target_vocab_size": 50},
            "shared_embeddings needs one vocabulary, but vocab_size is 37000 and "
            "target_vocab_size is 50",
        ),
    ],
)
def test_a_wrong_config_is_one_sentence(values, sentence):
    with pytest.raises(ValueError) as error:
        ModelConfig.from_dict(values)
    assert str(error.value) == sentence


@pytest.mark.parametrize("text", ["{", "[1]", '{"h": null}', "\ufeff{}", ""])
def test_a_damaged_file_is_one_sentence_with_its_path(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json") as error:
        ModelConfig.load(path)
    assert "\n" not in str(error.value)


FIELDS = st.sampled_from(list(ModelConfig().to_dict()))
VALUES = st.none() | st.integers() | st.floats() | st.text() | st.booleans()


@given(st.dictionaries(FIELDS, VALUES))
def test_any_values_make_a_valid_config_or_a_sentence(values):
    try:
        config = ModelConfig.from_dict(values)
    except InputError:
        return
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_overrides_of_a_preset_carry_what_follows_from_them():
    config = preset("base", d_model=256, vocab_size=1000)
    assert config.head_sizes == (32, 32)
    assert config.target_size == 1000
    assert preset("base", d_k=16) == replace(preset("base"), d_k=16)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'base'"):
        preset("bas")
