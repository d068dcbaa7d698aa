"""Our own attention, LayerNorm and exponential compute what MLX's do, and so do their gradients."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_transformer import device
from mlx_transformer.cpu import kernels

TOLERANCE = {mx.float32: 1e-5, mx.float16: 1e-2, mx.bfloat16: 5e-2}
DTYPES = sorted(TOLERANCE, key=str)

Function = Callable[..., mx.array]


def assert_same(ours: Function, theirs: Function, *inputs: mx.array) -> None:
    """Both functions, and their gradients by all inputs."""
    cotangent = mx.random.normal(theirs(*inputs).shape).astype(inputs[0].dtype)

    def differentiated(function: Function) -> list[mx.array]:
        outputs, gradients = mx.vjp(function, list(inputs), [cotangent])
        return outputs + gradients

    for found, expected in zip(differentiated(ours), differentiated(theirs), strict=True):
        assert found.dtype == expected.dtype
        a, b = (np.array(x.astype(mx.float32)) for x in (found, expected))
        np.testing.assert_allclose(a, b, atol=TOLERANCE[found.dtype] * np.abs(b).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sentences", [1, 5])  # few rows and more of them
@pytest.mark.parametrize("kind", ["all", "causal", "some"])
def test_attention(sentences: int, kind: str, dtype: mx.Dtype) -> None:
    mx.random.seed(0)
    T, S, h, d_k, d_v = 9, 9 if kind == "causal" else 12, 2, 8, 4
    shapes = (T, d_k), (S, d_k), (S, d_v)
    q, k, v = (mx.random.normal((sentences, h, *shape)).astype(dtype) for shape in shapes)
    # Every query sees one key at least.
    some = (mx.random.uniform(shape=(sentences, 1, T, S)) < 0.4) | (mx.arange(S) == 5)
    mask = {"all": None, "causal": "causal", "some": some}[kind]

    def mlx(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)

    assert_same(lambda *qkv: device.attention(*qkv, mask, scale=0.3), mlx, q, k, v)


@pytest.mark.parametrize("bias_shape", [(1, 2, 9, 12), (5, 2, 9, 12), (1, 2, 1, 12)])
@pytest.mark.parametrize("sentences", [1, 5])
def test_attention_with_a_bias_on_the_scores(sentences: int, bias_shape: tuple[int, ...]) -> None:
    mx.random.seed(0)
    shapes = (9, 8), (12, 8), (12, 4)
    q, k, v = (mx.random.normal((sentences, 2, *shape)) for shape in shapes)
    bias = mx.random.normal(bias_shape)[:sentences]

    def mlx(*inputs: mx.array) -> mx.array:
        q, k, v, bias = inputs
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=bias)

    assert_same(lambda *inputs: device.attention(*inputs, scale=0.3), mlx, q, k, v, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 24), (7, 5, 24), (40, 24)])
def test_layer_norm(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    mx.random.seed(1)
    x = (3 * mx.random.normal(shape) + 1).astype(dtype)
    weight, bias = (mx.random.normal((24,)).astype(dtype) for _ in range(2))
    assert_same(
        lambda *inputs: device.layer_norm(*inputs, 1e-5),
        lambda *inputs: mx.fast.layer_norm(*inputs, 1e-5),
        x,
        weight,
        bias,
    )


def test_heads_are_laid_out_one_after_the_other() -> None:
    for T in (1, 3):
        x = mx.arange(2 * T * 4 * 5).reshape(2, T, 4, 5)
        (found,) = device.heads(x.reshape(2, T, 20), [5])
        assert np.array_equal(found, np.array(x).swapaxes(1, 2))


def test_exponential() -> None:
    x = np.concatenate([np.linspace(-100, 0, 100_001), [-1e30]]).astype(np.float32)
    greatest = mx.array(np.float32([0.0, 7.0])[:, None])
    found = np.array(device.exp_below(mx.array(x) + greatest, greatest))
    expected = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=5e-7)
    np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-6)  # x + 7 is rounded


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (37, 64), (300, 17)])
def test_a_matrix_by_columns_is_the_same_matrix(shape: tuple[int, int], dtype: mx.Dtype) -> None:
    mx.random.seed(0)
    matrix = mx.random.normal(shape).astype(dtype)
    found = kernels.by_columns(matrix)
    assert found.dtype == dtype
    assert mx.array_equal(found, matrix)
    assert memoryview(found.T).c_contiguous


def test_a_matrix_that_lies_by_columns_is_not_copied() -> None:
    found = kernels.by_columns(mx.random.normal((37, 64)))
    again = kernels.by_columns(found)
    assert np.shares_memory(np.array(found, copy=False), np.array(again, copy=False))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swish(dtype: mx.Dtype) -> None:
    x = mx.linspace(-200, 200, 4001).astype(dtype)
    assert_same(device.swish, nn.silu, x)


# Few numbers and many, in rows that a table holds wholly, in part or not at all.
ROWS = [(3, 5, 1000), (40, 1024), (9, 4, 1100), (9, 4, 8191), (200, 255)]


@pytest.mark.parametrize("shape", ROWS)
def test_logsumexp(shape: tuple[int, ...]) -> None:
    mx.random.seed(0)
    x = mx.random.normal(shape, scale=30)
    np.testing.assert_allclose(device.logsumexp(x), mx.logsumexp(x, axis=-1), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shape", ROWS)
def test_argmax(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.permuted(np.tile(np.arange(shape[-1], dtype=np.float32), (*shape[:-1], 1)), axis=-1)
    x[..., 1::2] = -np.inf
    np.testing.assert_array_equal(device.argmax(mx.array(x)), x.argmax(axis=-1))
