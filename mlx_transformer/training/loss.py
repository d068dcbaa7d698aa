"""Projection to the vocabulary and label-smoothed cross-entropy, a chunk of tokens at a time.

The logits of a whole batch, (tokens, V), are by far its largest array. Here a chunk's logits live
only until its loss and its gradients are known, and the softmax that gives the one also gives the
other: a logit is exponentiated once.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.config import ModelConfig

# With fewer rows, adding up the gradient of the weight would cost as much as the products.
CHUNK_ROWS = 256


class Loss(NamedTuple):
    """Sums over the real tokens of a batch, float32."""

    smoothed: mx.array  # label-smoothed cross-entropy: what training minimises
    nll: mx.array  # negative log-likelihood: what perplexity is made of
    tokens: mx.array


@dataclass(frozen=True)
class OutputLoss:
    """Cross-entropy of logits `logit_scale * hidden weight^T + bias` of a model.

    Smoothing spreads over all V words, as in PyTorch; targets equal to `pad_id` count for nothing.
    Shapes: hidden (N,d_model), weight (V,d_model), bias (V,) or None, targets (N,) ids. Products
    run in the dtype of `hidden`; softmax, sums and the gradient of the weight are float32.
    """

    config: ModelConfig

    def __call__(
        self, hidden: mx.array, weight: mx.array, bias: mx.array | None, targets: mx.array
    ) -> Loss:
        """The loss without gradients, for validation."""
        w, mean = weight.astype(hidden.dtype), weight.mean(axis=0)
        smoothed = nll = mx.zeros(())
        for rows in _chunks(targets.size, weight.shape[0]):
            x = hidden[rows] * self.config.logit_scale
            chunk = self._chunk(x, w, mean, bias, targets[rows])
            smoothed, nll = smoothed + chunk.smoothed, nll + chunk.nll
        return Loss(smoothed, nll, self._tokens(targets))

    def differentiable(
        self, hidden: mx.array, weight: mx.array, bias: mx.array | None, targets: mx.array
    ) -> Loss:
        """The loss whose gradients by hidden, weight and bias are computed along with it."""
        loss = mx.custom_function(partial(self._with_gradients, targets))

        @loss.vjp
        def gradients(
            primals: tuple[mx.array, ...],
            cotangents: tuple[mx.array, ...],
            outputs: tuple[mx.array, ...],
        ) -> tuple[mx.array, ...]:
            # Only the smoothed loss is trained on: the NLL has no gradient.
            scale = cotangents[0]
            pairs = zip(outputs[2:], primals, strict=True)
            return tuple((g * scale).astype(p.dtype) for g, p in pairs)

        primals = (hidden, weight) if bias is None else (hidden, weight, bias)
        smoothed, nll, *_ = cast(tuple[mx.array, ...], loss(*primals))
        return Loss(smoothed, nll, self._tokens(targets))

    def _with_gradients(
        self, targets: mx.array, hidden: mx.array, weight: mx.array, bias: mx.array | None = None
    ) -> tuple[mx.array, ...]:
        """(smoothed, nll, d hidden, d weight[, d bias])"""
        w, mean = weight.astype(hidden.dtype), weight.mean(axis=0)
        smoothed = nll = mx.zeros(())
        d_weight, d_bias = mx.zeros(weight.shape), mx.zeros(weight.shape[:1])
        d_hidden = []
        for rows in _chunks(targets.size, weight.shape[0]):
            x = hidden[rows] * self.config.logit_scale
            chunk = self._chunk(x, w, mean, bias, targets[rows])
            d_logits = chunk.d_logits.astype(x.dtype)
            d_weight = device.add_product(d_weight, d_logits.T, x)
            if bias is not None:
                d_bias = d_bias + chunk.d_logits.sum(axis=0)
            d_hidden.append((d_logits @ w) * self.config.logit_scale)
            smoothed, nll = smoothed + chunk.smoothed, nll + chunk.nll
            # The next chunk waits for this one: otherwise all logits could be in memory at once.
            done = [d_weight, d_bias, smoothed, nll, d_hidden[-1]]
            (w,) = mx.depends([w], done)
        outputs = (smoothed, nll, mx.concatenate(d_hidden), d_weight)
        return outputs if bias is None else (*outputs, d_bias)

    def _chunk(
        self,
        x: mx.array,
        w: mx.array,
        mean: mx.array,
        bias: mx.array | None,
        targets: mx.array,
    ) -> "_Chunk":
        """x (C,d_model), w (V,d_model) with rows of mean (d_model,), targets (C,)"""
        logits = (x @ w.T).astype(mx.float32)
        mean_logit = (x * mean).sum(axis=1, keepdims=True)  # cheaper than over the logits
        if bias is not None:
            logits, mean_logit = logits + bias, mean_logit + bias.mean()
        V, ids = w.shape[0], targets[:, None]
        real = (ids != self.config.pad_id).astype(mx.float32)

        peak = logits.max(axis=1, keepdims=True)
        exponentials = device.exp_below(logits, peak)
        total = exponentials.sum(axis=1, keepdims=True)
        log_total = peak + mx.log(total)
        nll = ((log_total - mx.take_along_axis(logits, ids, axis=1)) * real).sum()
        uniform = ((log_total - mean_logit) * real).sum()  # as if every word were right

        smoothing = self.config.label_smoothing
        spread = smoothing / V
        expected = mx.where(mx.arange(V) == ids, 1 - smoothing + spread, spread)
        d_logits = exponentials * (real / total) - expected * real
        return _Chunk((1 - smoothing) * nll + smoothing * uniform, nll, d_logits)

    def _tokens(self, targets: mx.array) -> mx.array:
        return (targets != self.config.pad_id).sum().astype(mx.float32)


class _Chunk(NamedTuple):
    smoothed: mx.array
    nll: mx.array
    d_logits: mx.array  # (C,V), of the smoothed loss


def _chunks(tokens: int, V: int) -> Iterator[slice]:
    """Equal slices of the tokens, the last one possibly shorter."""
    rows = max(CHUNK_ROWS, device.loss_chunk() // V)
    size = math.ceil(tokens / math.ceil(tokens / rows))
    return (slice(start, start + size) for start in range(0, tokens, size))
