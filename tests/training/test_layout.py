"""Weights in vectors and back."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.config import preset
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters
from mlx_transformer.training.layout import Layout


@pytest.mark.parametrize("count", [1, 2, 3])
def test_weights_come_back_in_their_shapes(count):
    named = named_parameters(Transformer(preset("tiny")))
    layout = Layout({name: weight.shape for name, weight in named.items()}, count)
    vectors = layout.join(named)
    found = layout.split(vectors)
    assert found.keys() == named.keys()
    assert all(mx.array_equal(found[name], named[name]) for name in named)
    lengths = [vector.size for vector in vectors]
    assert len(lengths) == count and sum(lengths) == sum(w.size for w in named.values())
    assert np.ptp(lengths) < 0.05 * sum(lengths)  # lanes have about as much to do
