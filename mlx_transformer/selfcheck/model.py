"""The whole model: dropout, logits, loss and gradients, and its quantised form."""

from collections.abc import Iterator
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.blocks import twin
from mlx_transformer.model import Transformer
from mlx_transformer.model import dropout as drop
from mlx_transformer.selfcheck.attention import HEAD_SIZES
from mlx_transformer.selfcheck.finding import DTYPES, Finding, difference, on_both, tolerance
from mlx_transformer.selfcheck.models import batch, made_up
from mlx_transformer.storage import dequantize, named_parameters, quantize
from mlx_transformer.training.layout import NamedArrays
from mlx_transformer.training.step import batch_loss

# Metal has other kernels from 9 positions on, and a long sentence spans several of their blocks.
POSITIONS = (1, 4, 8, 9, 32, 200)
SENTENCES = 2


def dropout() -> Iterator[Finding]:
    found, expected = on_both(lambda: np.array(drop(mx.ones((999, 77)), 0.1, mx.random.key(7))))
    yield Finding("dropout, units that differ", float((found != expected).sum()), 0)


class Pass(NamedTuple):
    """What a pass forward and backward computes."""

    logits: np.ndarray
    loss: np.ndarray
    gradients: np.ndarray  # of all weights


def passes() -> Iterator[Finding]:
    for d in HEAD_SIZES:
        # Not ReLU: near zero a rounding error would decide whether a gradient is there at all.
        model = made_up(d_model=2 * d, d_ff=4 * d, activation="swish")
        for dtype in DTYPES:
            compared = {T: _differences(model, T, getattr(mx, dtype)) for T in POSITIONS}
            for i, name in enumerate(Pass._fields):
                worst = max(POSITIONS, key=lambda T: compared[T][i])
                title = f"{name}, heads of {d}, {dtype}, worst with {worst} tokens"
                yield Finding(title, compared[worst][i], tolerance(dtype))


def _differences(model: Transformer, T: int, dtype: mx.Dtype) -> list[float]:
    """Of a pass of the device in `dtype` and one of the CPU in float32."""
    with device.as_gpu():
        found = _pass(model, T, dtype)
    with device.reference():
        expected = _pass(model, T, mx.float32)
    return [difference(*pair) for pair in zip(found, expected, strict=True)]


def _pass(model: Transformer, T: int, dtype: mx.Dtype) -> Pass:
    data = batch(model, SENTENCES, T)
    weights, model = named_parameters(model), twin(model)

    def objective(parameters: NamedArrays) -> mx.array:
        return batch_loss(model, parameters, data, dtype).smoothed

    loss, gradients = mx.value_and_grad(objective)(weights)
    model.set_dtype(dtype)
    logits = model(*data[:2]).astype(mx.float32)
    joined = mx.concatenate([g.reshape(-1) for g in gradients.values()])
    return Pass(*map(np.array, (logits, loss, joined)))


def quantised() -> Iterator[Finding]:
    for bits in (4, 8):
        model = made_up(d_model=128, d_ff=256, vocab_size=64)
        quantize(model, bits)
        data = batch(model, SENTENCES, 32)
        with device.as_gpu():
            found = np.array(model(*data[:2]))
        with device.reference():
            dequantize(model)
            expected = np.array(model(*data[:2]))
        yield Finding(f"logits, {bits} bits", difference(found, expected), tolerance("float32"))
