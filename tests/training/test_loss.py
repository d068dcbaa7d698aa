"""The chunked loss against the plain one, in values, gradients and memory."""

import subprocess
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.training import loss as loss_module
from mlx_transformer.training.loss import OutputLoss

PAD = ModelConfig().pad_id


def problem(tokens=50, d_model=16, V=120, seed=0):
    rng = np.random.default_rng(seed)
    hidden, weight, bias = (
        mx.array(rng.normal(size=shape).astype(np.float32))
        for shape in ((tokens, d_model), (V, d_model), (V,))
    )
    targets = rng.integers(1, V, tokens)
    targets[::7] = PAD
    return hidden, weight, bias, mx.array(targets)


def plain(hidden, weight, bias, targets, smoothing):
    logits = hidden.astype(mx.float32) @ weight.T + bias
    losses = nn.losses.cross_entropy(logits, targets, label_smoothing=smoothing)
    return (losses * (targets != PAD)).sum()


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_plain_loss_and_its_gradients(monkeypatch, smoothing, compiled):
    monkeypatch.setattr(device, "loss_chunk", lambda: 0)
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", 8)  # seven chunks, the last one shorter
    hidden, weight, bias, targets = problem()
    measure = OutputLoss(ModelConfig(label_smoothing=smoothing))

    def chunked(h, w, b):
        return 3 * measure.differentiable(h, w, b, targets).smoothed

    def reference(h, w, b):
        return 3 * plain(h, w, b, targets, smoothing)

    differentiate = mx.value_and_grad(chunked, argnums=(0, 1, 2))
    found = (mx.compile(differentiate) if compiled else differentiate)(hidden, weight, bias)
    expected = mx.value_and_grad(reference, argnums=(0, 1, 2))(hidden, weight, bias)
    assert np.allclose(found[0], expected[0], rtol=1e-6)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert np.allclose(ours, theirs, atol=2e-5)


@pytest.mark.usefixtures("any_device")
def test_validation_sums_are_those_of_training():
    hidden, weight, bias, targets = problem()
    measure = OutputLoss(ModelConfig(label_smoothing=0.1, logit_scale=0.5))
    training = measure.differentiable(hidden, weight, bias, targets)
    validation = measure(hidden, weight, bias, targets)
    assert np.allclose(training, validation, rtol=1e-6)
    assert validation.tokens.item() == (np.array(targets) != PAD).sum()


def test_nll_is_the_unsmoothed_loss():
    hidden, weight, bias, targets = problem()
    smoothed = OutputLoss(ModelConfig(label_smoothing=0.3))(hidden, weight, bias, targets)
    sharp = OutputLoss(ModelConfig(label_smoothing=0.0))(hidden, weight, bias, targets)
    assert np.allclose(smoothed.nll, sharp.smoothed, rtol=1e-6)
    assert not np.allclose(smoothed.smoothed, sharp.smoothed, rtol=1e-3)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_logits_of_any_size_are_exponentiated_safely(size):
    hidden, weight, bias, targets = problem()
    found = OutputLoss(ModelConfig(label_smoothing=0.1))(hidden * size, weight, bias, targets)
    assert np.allclose(found.smoothed, plain(hidden * size, weight, bias, targets, 0.1), rtol=1e-5)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_products_keep_float32_sums_and_weight_gradients(dtype):
    hidden, weight, bias, targets = problem(tokens=400)

    def smoothed(h, w):
        return (
            OutputLoss(ModelConfig(label_smoothing=0.1))
            .differentiable(h, w, bias, targets)
            .smoothed
        )

    rounded = hidden.astype(dtype).astype(mx.float32), weight.astype(dtype).astype(mx.float32)
    exact, (_, d_weight) = mx.value_and_grad(smoothed, argnums=(0, 1))(*rounded)
    loss, (d_hidden, found) = mx.value_and_grad(smoothed, argnums=(0, 1))(
        hidden.astype(dtype), weight
    )
    assert loss.dtype == found.dtype == mx.float32 and d_hidden.dtype == dtype
    assert np.allclose(loss, exact, rtol=1e-3)
    assert np.abs(found - d_weight).max() < 0.01 * np.abs(d_weight).max()


MEASURE = """
import mlx_transformer, sys
import mlx.core as mx, mlx.nn as nn
from mlx_transformer.config import ModelConfig
from mlx_transformer.training.loss import OutputLoss

tokens, V, d_model = 8192, 32000, 64
hidden, weight = mx.random.normal((tokens, d_model)), mx.random.normal((V, d_model)) * 0.1
targets = mx.random.randint(1, V, (tokens,))
mx.eval(hidden, weight, targets)

def plain(h, w):
    return nn.losses.cross_entropy(h @ w.T, targets, label_smoothing=0.1, reduction="sum")

def chunked(h, w):
    return OutputLoss(ModelConfig(label_smoothing=0.1)).differentiable(h, w, None, targets).smoothed

mx.reset_peak_memory()
loss = {"plain": plain, "chunked": chunked}[sys.argv[1]]
mx.eval(mx.compile(mx.value_and_grad(loss, argnums=(0, 1)))(hidden, weight))
print(mx.get_peak_memory())
"""


@pytest.mark.slow
def test_peak_memory_at_8192_tokens_and_32000_words_is_under_a_third():
    plain_peak, chunked_peak = (
        int(subprocess.check_output([sys.executable, "-c", MEASURE, which], text=True))
        for which in ("plain", "chunked")
    )
    assert chunked_peak < plain_peak / 3, f"{chunked_peak:,} against {plain_peak:,} bytes"
