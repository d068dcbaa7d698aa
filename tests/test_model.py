"""Invariants of the model: padding, order, causality, checkpointing, dropout, attention maps."""

import math
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_transformer.blocks import dropout, norm
from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError
from mlx_transformer.model import Residual, SelfAttention, Transformer, sinusoids
from mlx_transformer.storage import dequantize, load_model, named_parameters, quantize, save_model

CONFIG = ModelConfig(
    vocab_size=61, encoder_layers=2, decoder_layers=2, d_model=32, d_ff=48, h=2, max_length=64
)
VARIANTS = {
    "paper": CONFIG,
    "pre-norm": replace(CONFIG, norm="pre", encoder_final_norm=True, decoder_final_norm=True),
    "d_k and d_v of their own": replace(CONFIG, d_k=24, d_v=8),
    "learned positions": replace(CONFIG, positions="learned", position_offset=2),
    "T5": replace(
        CONFIG,
        norm="pre",
        norm_kind="rms",
        encoder_final_norm=True,
        decoder_final_norm=True,
        positions="relative",
        relative_buckets=8,
        relative_distance=16,
        attention_bias=False,
        scale_attention=False,
        activation="gelu_tanh",
        gated_feed_forward=True,
        feed_forward_bias=False,
        d_k=24,
        d_v=24,
    ),
    "a bias for each layer": replace(CONFIG, positions="relative", relative_per_layer=True),
    "everything": replace(
        CONFIG,
        target_vocab_size=43,
        shared_embeddings=False,
        tied_output=False,
        embedding_norm=True,
        output_bias=True,
        attention_bias=False,
        logit_scale=0.5,
        activation="swish",
        position_layout="halves",
        position_divisor_minus_one=True,
        start_id=None,
    ),
}
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())


def make(config: ModelConfig, seed: int = 0) -> Transformer:
    mx.random.seed(seed)
    return Transformer(config)


def ids(config: ModelConfig, B: int, length: int, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(3, config.target_size, (B, length)))


def close(a: mx.array, b: mx.array, tolerance: float = 1e-5) -> bool:
    return np.allclose(np.array(a), np.array(b), atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("any_device")
@every_variant
def test_padding_changes_nothing_at_real_positions(config):
    model = make(config)
    source, target = ids(config, 2, 5), ids(config, 2, 4, seed=2)
    wider = mx.pad(source, [(0, 0), (0, 7)], constant_values=config.pad_id)
    longer = mx.pad(target, [(0, 0), (0, 3)], constant_values=config.pad_id)
    assert close(model(source, target), model(wider, longer)[:, :4])


@pytest.mark.usefixtures("any_device")
def test_a_row_of_padding_alone_stays_finite_and_gives_finite_gradients():
    model = make(CONFIG)
    source = mx.array([[5, 6, 2], [0, 0, 0]])

    def loss(model):
        return model(source, mx.array([[1, 4], [0, 0]])).sum()

    value, gradients = nn.value_and_grad(model, loss)(model)
    assert math.isfinite(value.item())
    assert all(mx.isfinite(g).all().item() for _, g in tree_flatten(gradients))


@pytest.mark.usefixtures("any_device")
@every_variant
def test_the_order_of_a_batch_changes_nothing(config):
    model = make(config)
    source, target = ids(config, 4, 6), ids(config, 4, 5, seed=2)
    order = mx.array([2, 0, 3, 1])
    assert close(model(source, target)[order], model(source[order], target[order]))


@pytest.mark.usefixtures("any_device")
@every_variant
def test_the_future_changes_nothing_and_the_past_does(config):
    model = make(config)
    source, target = ids(config, 1, 6), ids(config, 1, 8, seed=2)
    before = model(source, target)
    for position in range(1, 8):
        changed = mx.array(target)
        changed[0, position] = 3 + (target[0, position].item() - 2) % 40
        after = model(source, changed)
        assert close(before[:, :position], after[:, :position], 1e-6)
        assert not close(before[:, position], after[:, position], 1e-3)


@pytest.mark.usefixtures("any_device")
def test_every_source_word_reaches_every_target_position():
    model = make(CONFIG)
    source, target = ids(CONFIG, 1, 6), ids(CONFIG, 1, 4, seed=2)
    before = model(source, target)
    for position in range(6):
        changed = mx.array(source)
        changed[0, position] = 3 + (source[0, position].item() - 2) % 40
        difference = mx.abs(model(changed, target) - before).max(axis=-1)
        assert (difference > 1e-4).all().item()


@pytest.mark.usefixtures("any_device")
@every_variant
def test_gradients_with_checkpointing_equal_those_without_dropout_on(config):
    model = make(replace(config, dropout=0.3))
    source, target = ids(config, 3, 5), ids(config, 3, 4, seed=2)

    def gradients(checkpointing):
        def loss(model):
            hidden = model.hidden(source, target, mx.random.key(7), checkpointing=checkpointing)
            return mx.square(model.logits(hidden)).mean()

        return dict(tree_flatten(nn.value_and_grad(model, loss)(model)[1]))

    kept, recomputed = gradients(False), gradients(True)
    assert kept.keys() == recomputed.keys()
    for name, gradient in kept.items():
        assert mx.array_equal(gradient, recomputed[name]), name


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate):
    n = 400_001
    x = np.array(dropout(mx.ones((n,)), rate, mx.random.key(0)))
    neighbours = np.corrcoef(x[1:], x[:-1])[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(n), (
        "units of one word of random bits must be independent"
    )
    sigma = math.sqrt(rate * (1 - rate) / n)
    assert abs((x == 0).mean() - rate) < 5 * sigma
    assert np.allclose(x[x != 0], 1 / (1 - rate), rtol=1e-4)


def test_dropout_is_at_the_papers_places(monkeypatch):
    """On the sum of embedding and position, and on the output of every sublayer; nowhere else."""
    rate, sites = 0.25, []

    def spy(x, site_rate, key):
        out = dropout(x, site_rate, key)
        if key is not None:
            dropped = ((out == 0) & (x != 0)).astype(mx.float32).mean().item()
            sites.append((x.shape, dropped, tuple(key.tolist())))
        return out

    monkeypatch.setattr("mlx_transformer.model.dropout", spy)
    config = replace(CONFIG, dropout=rate, encoder_layers=2, decoder_layers=3)
    model = make(config)
    source, target = ids(config, 16, 20), ids(config, 16, 30, seed=2)
    mx.eval(model(source, target, mx.random.key(1)))
    encoder_sites = [s for s in sites if s[0] == (16, 20, 32)]
    decoder_sites = [s for s in sites if s[0] == (16, 30, 32)]
    assert len(encoder_sites) == 1 + 2 * config.encoder_layers
    assert len(decoder_sites) == 1 + 3 * config.decoder_layers
    assert len(sites) == len(encoder_sites) + len(decoder_sites)
    assert all(abs(dropped - rate) < 0.025 for _, dropped, _ in sites)
    assert len({key for _, _, key in sites}) == len(sites), "two places share a mask"


@pytest.mark.usefixtures("any_device")
def test_the_output_is_random_with_a_key_and_only_with_a_key():
    model = make(CONFIG)
    source, target = ids(CONFIG, 2, 5), ids(CONFIG, 2, 4, seed=2)
    plain = model(source, target)
    assert mx.array_equal(plain, model(source, target))
    one, again, other = (model(source, target, mx.random.key(k)) for k in (1, 1, 2))
    assert mx.array_equal(one, again)
    assert not close(one, other, 1e-2)
    assert not close(one, plain, 1e-2)


def test_the_mean_over_dropout_masks_of_one_residual_is_the_value_without():
    """Inverted dropout is unbiased: 4,000 masks of one sublayer average to no dropout."""
    config = replace(CONFIG, dropout=0.3, norm="pre")
    residual = Residual(config)
    x = mx.random.normal((1, 3, 32))
    normed = mx.fast.layer_norm(x, None, None, CONFIG.norm_eps)
    keys = mx.random.split(mx.random.key(3), 4000)
    drawn = mx.stack([residual(norm(config), x, mx.sin, key) for key in keys])
    assert close(drawn.mean(axis=0), x + mx.sin(normed), 0.06)


def test_a_model_without_scaled_attention_begins_as_one_with_it():
    """What the scale would do, the first weights of the queries do, as in T5."""
    outputs = []
    for scale_attention in (True, False):
        config = replace(CONFIG, scale_attention=scale_attention)
        mx.random.seed(5)
        model = Transformer(config)
        outputs.append(model(ids(config, 2, 6), ids(config, 2, 5, seed=2)))
    assert close(*outputs, 1e-5)


@pytest.mark.usefixtures("any_device")
@every_variant
def test_attention_maps_equal_a_plain_softmax_and_the_fused_pass(config):
    model = make(config)
    source, target = ids(config, 2, 6), ids(config, 2, 5, seed=2)
    source[1, 4:] = config.pad_id
    maps = model.attention_maps(source, target)
    assert [len(maps.encoder), len(maps.decoder), len(maps.cross)] == [2, 2, 2]
    for weights in maps.encoder + maps.decoder + maps.cross:
        assert close(weights.sum(axis=-1), mx.ones(weights.shape[:-1]))
    for weights in maps.encoder + maps.cross:
        assert mx.all(weights[1, :, :, 4:] == 0).item()
    for weights in maps.decoder:
        assert mx.all(mx.triu(weights, 1) == 0).item()


@pytest.mark.usefixtures("any_device")
def test_self_attention_equals_numpy():
    """Section 3.2 written out head by head."""
    config = replace(CONFIG, d_k=24, d_v=8)
    attention = SelfAttention(config)
    x = mx.random.normal((1, 5, config.d_model))
    maps: list[mx.array] = []
    fused = attention(x, "causal")
    explicit = attention(x, "causal", maps=maps)

    W, b = np.array(attention.qkv.weight), np.array(attention.qkv.bias)
    projected = np.array(x[0]) @ W.T + b
    joined = []
    for head in range(config.h):
        q = projected[:, head * 24 : (head + 1) * 24]
        k = projected[:, 48 + head * 24 : 48 + (head + 1) * 24]
        v = projected[:, 96 + head * 8 : 96 + (head + 1) * 8]
        scores = np.where(np.tri(5) == 1, q @ k.T / np.sqrt(24), -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert close(maps[0][0, head], weights)
        joined.append(weights @ v)
    expected = np.concatenate(joined, axis=1) @ np.array(attention.out.weight).T
    assert close(fused[0], expected)
    assert close(explicit[0], expected)


def test_a_model_without_start_token_begins_from_a_zero_vector():
    model = make(replace(CONFIG, start_id=None))
    source = ids(CONFIG, 1, 4)
    a, b = (model(source, mx.array([[first, 9]])) for first in (5, 17))
    assert close(a, b, 1e-6)


def test_the_first_position_and_the_offset():
    config = replace(CONFIG, position_offset=2)
    table, plain = sinusoids(config, 64), sinusoids(CONFIG, 64)
    assert table.shape == (66, 32)
    assert np.array_equal(table[:64], plain)
    assert np.allclose(plain[0], [0, 1] * 16)


@pytest.mark.parametrize(
    "config", [*VARIANTS.values(), replace(CONFIG, d_model=64, quantization=8)]
)
def test_a_saved_model_loads_bit_for_bit(config, tmp_path):
    model = make(config)
    if config.quantization:
        quantize(model, config.quantization)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == config
    for name, array in named_parameters(model).items():
        assert mx.array_equal(array, named_parameters(loaded)[name]), name
    assert mx.load(str(tmp_path / "model.safetensors"), return_metadata=True)[1] == {
        "format": "mlx"
    }


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("bits", [4, 8])
def test_dequantised_matrices_compute_what_the_quantised_ones_do(bits):
    config = replace(CONFIG, d_model=64, quantization=bits)
    model = make(config)
    quantize(model, bits)
    source, target = mx.array([[5, 6, 7, 2]]), mx.array([[1, 8, 9]])
    expected = np.array(model(source, target))  # by MLX's quantised products
    dequantize(model)
    assert model.config == replace(config, quantization=None)
    assert named_parameters(model).keys() == named_parameters(make(model.config)).keys()
    assert np.allclose(model(source, target), expected, atol=1e-5)


def test_a_model_directory_that_is_none_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(tmp_path)
    CONFIG.save(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        load_model(tmp_path)


def test_weights_that_do_not_fit_the_config_are_named(tmp_path):
    save_model(make(CONFIG), tmp_path)
    replace(CONFIG, encoder_layers=3).save(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"encoder\.layers\.2"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load_model(tmp_path)


@pytest.mark.slow
def test_a_traced_step_draws_a_new_mask_each_call():
    model = make(replace(CONFIG, dropout=0.5))
    source, target = ids(CONFIG, 2, 5), ids(CONFIG, 2, 4, seed=2)
    compiled = mx.compile(lambda key: model(source, target, key))
    one, two = compiled(mx.random.key(1)), compiled(mx.random.key(2))
    assert not close(one, two, 1e-2)
    assert close(one, model(source, target, mx.random.key(1)), 1e-5)
