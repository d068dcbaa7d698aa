"""Weights in vectors and back."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.config import preset
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters
from mlx_transformer.training.layout import Layout
from mlx_transformer.training.step import transposed_weights


@pytest.mark.parametrize("count", [1, 2, 3])
def test_weights_come_back_in_their_shapes(count):
    model = Transformer(preset("tiny"))
    named = named_parameters(model)
    shapes = {name: weight.shape for name, weight in named.items()}
    layout = Layout(shapes, count, transposed_weights(model))
    vectors = layout.join(named)
    found = layout.split(vectors)
    assert found.keys() == named.keys()
    assert all(mx.array_equal(found[name], named[name]) for name in named)
    lengths = [vector.size for vector in vectors]
    assert len(lengths) == count and sum(lengths) == sum(w.size for w in named.values())
    assert np.ptp(lengths) < 0.05 * sum(lengths)  # lanes have about as much to do


def test_gradients_of_products_are_joined_as_they_are_computed():
    model = Transformer(preset("tiny"))
    weights = {
        name: p.shape
        for name, p in named_parameters(model).items()
        if name in transposed_weights(model)
    }
    assert weights
    assert all(len(shape) == 2 for shape in weights.values())
    x = mx.random.normal((5, model.config.d_model))
    weight = model.encoder.layers[0].feed_forward.w_1.weight
    gradient = mx.grad(lambda w: (x @ w.T).square().sum())(weight)
    mx.eval(gradient)
    layout = Layout({"w": weight.shape}, 1, {"w"})
    (vector,) = layout.join({"w": gradient})
    laid_out = np.array(vector).reshape(weight.shape[::-1])
    assert np.array_equal(laid_out, np.array(gradient).T)
    assert memoryview(gradient).strides == laid_out.T.strides  # nothing had to be moved
