"""Every activation: its values and gradients are PyTorch's, and no table of them lacks one."""

from typing import get_args

import mlx.core as mx
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlx_transformer.config import Activation
from mlx_transformer.convert import ctranslate2, export_marian, reference, torch_example
from mlx_transformer.parts import ACTIVATIONS

THEIRS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": F.silu,
}


@pytest.mark.parametrize(
    "table",
    [
        ACTIVATIONS,
        reference.ACTIVATIONS,
        torch_example.ACTIVATIONS,
        export_marian.ACTIVATIONS,
        ctranslate2.ACTIVATIONS,
        THEIRS,
    ],
)
def test_no_table_lacks_one(table):
    assert {*table} == {*get_args(Activation)}


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("name", get_args(Activation))
def test_values_and_gradients_are_pytorch_s(name):
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal((4, 5, 64)).astype(np.float32) for _ in range(2))
    x[0] *= 10
    y = ACTIVATIONS[name](mx.array(x))
    slope = mx.grad(lambda x: (ACTIVATIONS[name](x) * mx.array(weight)).sum())(mx.array(x))
    at = torch.tensor(x, requires_grad=True)
    expected = THEIRS[name](at)
    (expected * torch.tensor(weight)).sum().backward()
    np.testing.assert_allclose(y, expected.detach().numpy(), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(slope, at.grad.numpy(), atol=1e-5, rtol=1e-5)
