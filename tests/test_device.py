"""What differs between devices, with the GPU's branches run on the CPU (tests/gpu.py)."""

from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.config import preset
from mlx_transformer.model import Transformer

CONFIG = preset("tiny", vocab_size=50, dropout=0.0)


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
