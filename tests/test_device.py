"""What differs between devices, with the GPU's branches run on the CPU."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten, tree_map

from mlx_transformer import device
from mlx_transformer.config import preset
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search, search
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.training.memory import memory_limit
from mlx_transformer.training.step import TrainStep, initial_state
from tests.decoding.random_models import random_model, random_source

CONFIG = preset("tiny", vocab_size=50, dropout=0.0)
# At most 12 tokens: every length beyond 16 is one more to compile.
GREEDY, BEAM = (SearchOptions(beam=beam, max_tokens=12) for beam in (1, 4))
SAMPLES = SearchOptions(sample=True, nbest=2, seed=1, max_tokens=12)


def gradients(config, T: int) -> tuple[mx.array, dict]:
    """Loss and gradients of a model of these sizes, whose weights are always the same."""
    mx.random.seed(0)
    model = Transformer(config)
    ids = mx.array(np.random.default_rng(T).integers(3, 50, (5, T)))

    def loss(parameters: dict) -> mx.array:
        model.update(parameters)
        return mx.logsumexp(model(ids, ids))

    return mx.value_and_grad(loss)(model.parameters())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("T", [1, 4, 8, 9, 32])
def test_metals_fused_attention_never_gets_causal_for_few_queries_under_gradients(T: int) -> None:
    """It would throw: its kernel for up to 8 queries has no backward pass."""
    seen = []
    fused = mx.fast.scaled_dot_product_attention

    def spy(q, k, v, *, scale, mask):
        seen.append((q.shape[2], mask))
        return fused(q, k, v, scale=scale, mask=mask)

    with patch.object(mx.fast, "scaled_dot_product_attention", spy):
        mx.eval(gradients(CONFIG, T))
    assert len(seen) == CONFIG.encoder_layers + 2 * CONFIG.decoder_layers
    causal = [queries for queries, mask in seen if isinstance(mask, str)]
    assert causal == ([] if T <= 8 else [T] * CONFIG.decoder_layers)


@pytest.mark.parametrize("T", [4, 12])
def test_a_gpu_and_a_cpu_compute_the_same_loss_and_gradients(T: int) -> None:
    loss, found = gradients(CONFIG, T)
    with device.as_gpu():
        same, also = gradients(CONFIG, T)
    assert loss.item() == pytest.approx(same.item(), rel=1e-5)
    for (name, one), (_, other) in zip(tree_flatten(found), tree_flatten(also), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "prefixes"),
    [(GREEDY, None), (BEAM, None), (SAMPLES, None), (BEAM, [[5], [6, 7], []])],
)
def test_a_gpu_and_a_cpu_find_the_same_translations(
    options: SearchOptions, prefixes: list[list[int]] | None
) -> None:
    """On a GPU the step is compiled, lengths are rounded up, and there is one lane."""
    model = random_model(3, eos_bias=1.0, vocab_size=30)
    r = np.random.default_rng(3)
    sources = [random_source(r, model, int(r.integers(0, 12))) for _ in range(3)]
    expected = search(model, sources, options, prefixes)
    with device.as_gpu():
        found = search(model, sources, options, prefixes)
    assert [[h.ids for h in hs] for hs in found] == [[h.ids for h in hs] for hs in expected]


@pytest.mark.parametrize("on", [nullcontext, device.as_gpu])
def test_a_search_leaves_the_model_as_it_was(on: Callable[[], AbstractContextManager]) -> None:
    with on():
        model = random_model(3, vocab_size=30)
        before = [(name, id(array)) for name, array in tree_flatten(model.state)]
        Search(model, BEAM)
        assert [(name, id(array)) for name, array in tree_flatten(model.state)] == before


def test_a_state_to_train_from_stays_as_it_was() -> None:
    mx.random.seed(0)
    training = TrainingConfig(warmup=10)
    state = initial_state(Transformer(CONFIG), training)
    before = tree_map(np.array, state)
    step = TrainStep(CONFIG, training)
    ids = mx.array(np.random.default_rng(1).integers(3, 50, (3, 4, 6)))
    mx.eval(step(step.pack(state), [tuple(ids)]))
    assert tree_flatten(state)
    for (name, found), (_, expected) in zip(tree_flatten(state), tree_flatten(before), strict=True):
        assert np.array_equal(found, expected), name


@pytest.mark.parametrize("on", [nullcontext, device.as_gpu])
@pytest.mark.parametrize("sentences", [1, 5])  # few rows and more of them
@pytest.mark.parametrize("shared", [True, False])
def test_attention_with_a_bias_is_the_formula_and_has_its_gradients(
    on: Callable[[], AbstractContextManager], sentences: int, shared: bool
) -> None:
    """As PyTorch computes them"""
    rng = np.random.default_rng(0)
    shapes = [(sentences, 2, 9, 8), (sentences, 2, 12, 8), (sentences, 2, 12, 4)]
    shapes.append((1 if shared else sentences, 2, 9, 12))
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    cotangent = rng.standard_normal((sentences, 2, 9, 4), np.float32)
    visible = np.tri(9, 12, k=3, dtype=bool)

    q, k, v, bias = (torch.tensor(array, requires_grad=True) for array in arrays)
    scores = (0.7 * q @ k.mT + bias).masked_fill(~torch.tensor(visible), -torch.inf)
    expected = scores.softmax(-1) @ v
    expected.backward(torch.tensor(cotangent))

    def ours(q: mx.array, k: mx.array, v: mx.array, bias: mx.array) -> mx.array:
        return device.attention(q, k, v, device.masked(bias, "causal"), 0.7)

    with on():
        found, derived = mx.vjp(ours, [mx.array(x) for x in arrays], [mx.array(cotangent)])
    np.testing.assert_allclose(found[0], expected.detach(), atol=1e-5)
    for one, other in zip(derived, (q, k, v, bias), strict=True):
        np.testing.assert_allclose(one, other.grad, atol=2e-5)


@pytest.mark.usefixtures("gpu")
def test_on_metal_the_working_set_is_wired_and_unused_buffers_are_few(monkeypatch) -> None:
    """What Metal would be told; there is none here."""
    told = []
    info = {"max_recommended_working_set_size": 11 * 10**9}
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: info)
    for name in ("set_wired_limit", "set_cache_limit"):
        monkeypatch.setattr(mx, name, lambda limit, name=name: told.append((name, limit)))
    device._wire.cache_clear()
    for _ in range(2):  # once is enough: it must not change while a GPU computes
        Search(random_model(3, vocab_size=30), BEAM)
    assert told == [("set_wired_limit", 11 * 10**9)]
    device.keep_memory(unused=memory_limit(TrainingConfig(memory=2)))
    assert told[1:] == [("set_cache_limit", 2 * 10**9)]
    device._wire.cache_clear()


def test_the_reference_is_the_cpu_and_all_is_as_before() -> None:
    with device.as_gpu():
        with device.reference():
            assert not device.is_gpu() and mx.default_device() == mx.cpu
        assert device.is_gpu()
    assert not device.is_gpu()
