"""The compiled step: forward, loss and gradient in each lane, then clipping and Adam.

The state is a plain tree of arrays that goes in and comes out, so that a buffer no longer needed is
reused and a checkpoint is the state by its names. The dropout of an update follows from the seed,
the step and the rank: there is no other random state to save.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.storage import named_parameters
from mlx_transformer.training.layout import Layout, Vectors
from mlx_transformer.training.loss import Loss, OutputLoss
from mlx_transformer.training.schedule import make_schedule

# `parameters`, `m` and `v` by the names of the weights, and scalars: what a checkpoint holds.
State = dict[str, Any]
# The same with the three as vectors: what an update works on.
Packed = dict[str, Any]
WEIGHTS = ("parameters", "m", "v")
# Sums over some of the tokens: the gradient of the (scaled) loss, and the loss.
Part = tuple[Vectors, Loss]
# source (B,S), target input (B,T), target output (B,T)
Arrays = tuple[mx.array, mx.array, mx.array]

# float16 overflows where float32 does not: the loss is scaled as far up as the gradients allow.
FIRST_LOSS_SCALE = 2.0**10
STEPS_TO_DOUBLE_SCALE = 2000


class Pace(NamedTuple):
    """What Adam does alike to every weight."""

    factor: mx.array  # from the sum of gradients to the mean, clipped
    rate: mx.array
    correct1: mx.array  # for the bias of the moments
    correct2: mx.array
    finite: mx.array | None  # float16: whether to move at all


class Metrics(NamedTuple):
    """What one update reports: sums over the real target tokens of all micro-batches and ranks."""

    loss: mx.array
    nll: mx.array
    tokens: mx.array
    norm: mx.array  # of the mean gradient, before clipping
    learning_rate: mx.array


def initial_state(model: Transformer, config: TrainingConfig) -> State:
    """Step 0: float32 master weights and empty moments."""
    parameters = {name: p.astype(mx.float32) for name, p in named_parameters(model).items()}
    state: State = {
        "parameters": parameters,
        "m": tree_map(mx.zeros_like, parameters),
        "v": tree_map(mx.zeros_like, parameters),
        "step": mx.array(0),
        "bad_step": mx.array(0),  # the first step whose loss or gradient was not finite
    }
    if config.dtype == "float16":
        state |= {"loss_scale": mx.array(FIRST_LOSS_SCALE), "good_steps": mx.array(0)}
    return state


class TrainStep:
    """One update of the weights, from one micro-batch or several.

    Micro-batches and ranks count by their tokens: the gradient is that of the mean loss of all
    tokens, however they are split. Each lane takes its share of a batch's rows, and of the weights.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: TrainingConfig,
        group: mx.distributed.Group | None = None,
        lanes: int = 1,
    ) -> None:
        self._model = Transformer(model)  # whatever weights it has: each gradient sets its own
        self._config = config
        self._group = group or mx.distributed.init()
        self._lanes = lanes
        shapes = {name: p.shape for name, p in named_parameters(self._model).items()}
        self._layout = Layout(shapes, lanes, factors(self._model))
        self._dtype = getattr(mx, config.dtype)
        self._scheduled = make_schedule(config, model.d_model)
        self._loss = output_loss(model)
        ranks = mx.random.split(mx.random.key(config.seed), self._group.size())
        self._key = ranks[self._group.rank()]
        # Compiled apart: within one graph lanes would share constants, which then do not fuse.
        self._share = mx.compile(self._share_gradients)
        self._judge = mx.compile(self._judge_gradients)
        self._adam = mx.compile(self._move)

    def pack(self, state: State) -> Packed:
        """A state to update, in memory of its own."""
        packed = state | {name: self._layout.join(state[name]) for name in WEIGHTS}
        mx.eval(packed)
        return packed

    def unpack(self, packed: Packed) -> State:
        """The state by names again, to save; views that should not outlive the next update."""
        return packed | {name: self._layout.split(packed[name]) for name in WEIGHTS}

    def model_of(self, packed: Packed) -> Transformer:
        """A model with the weights of a state; views that should not outlive the next update."""
        model = Transformer(self._model.config)
        model.update(self._tree(packed["parameters"]))
        return model

    def __call__(self, packed: Packed, batches: Sequence[Arrays]) -> tuple[Packed, Metrics]:
        """The next state and what to report of the update. Nothing is waited for here."""
        parts: list[Part] = []
        for i, batch in enumerate(batches):
            if parts:
                # Launched now, or the activations of all micro-batches might be alive at once.
                parts = [self._sum(parts)]
                mx.async_eval(parts)
            parts += self._gradients(packed, packed["step"] * self._config.accumulate + i, *batch)
        weights = {name: packed[name] for name in WEIGHTS}
        scalars = {name: packed[name] for name in packed.keys() - weights}
        gradients, scalars, pace, metrics = self._judge(scalars, parts)
        moved = device.by_parts(partial(self._adam, pace), *weights.values(), gradients)
        weights = {name: [vectors[i] for vectors in moved] for i, name in enumerate(WEIGHTS)}
        return weights | scalars, Metrics(*metrics)

    def _gradients(self, packed: Packed, count: mx.array, *batch: mx.array) -> list[Part]:
        """Of micro-batch number `count`, each lane's share."""
        n = min(self._lanes, batch[0].shape[0])
        # A key of its own for every share of every micro-batch of every rank.
        key = self._key ^ mx.stack([mx.zeros_like(count), count]).astype(mx.uint32)
        share = partial(self._share, packed["parameters"], packed.get("loss_scale"))
        return device.by_rows(share, n, mx.random.split(key, n), *batch)

    def _sum(self, parts: Sequence[Part]) -> Part:
        gradients = device.by_parts(_total, *(vectors for vectors, _ in parts))
        return gradients, Loss(*map(_total, *(loss for _, loss in parts)))

    def _share_gradients(
        self,
        weights: Vectors,
        loss_scale: mx.array | None,
        keys: mx.array,
        source: mx.array,
        target: mx.array,
        expected: mx.array,
    ) -> Part:
        """Of some rows of a batch; keys (1,2)"""

        def objective(parameters: Any) -> tuple[mx.array, Loss]:
            self._model.update(tree_map(lambda p: p.astype(self._dtype), parameters))
            hidden = self._model.hidden(
                source, target, keys[0], checkpointing=self._config.gradient_checkpointing
            )
            loss = self._loss.differentiable(
                hidden.reshape(-1, hidden.shape[-1]),
                output_weight(self._model.config, parameters),
                parameters.get("output_bias"),
                expected.reshape(-1),
            )
            return loss.smoothed * (1.0 if loss_scale is None else loss_scale), loss

        (_, loss), gradients = mx.value_and_grad(objective)(self._tree(weights))
        return self._layout.join(dict(tree_flatten(gradients))), loss

    def _tree(self, vectors: Vectors) -> Any:
        """The weights as the model nests them."""
        return tree_unflatten(list(self._layout.split(vectors).items()))

    def _judge_gradients(
        self, scalars: Packed, parts: Sequence[Part]
    ) -> tuple[Vectors, Packed, Pace, Metrics]:
        """The gradient of all tokens and how far to go along it."""
        gradients, loss = self._sum(parts)
        gradients = [mx.distributed.all_sum(g, group=self._group) for g in gradients]
        total, nll, tokens = mx.distributed.all_sum(mx.stack(list(loss)), group=self._group)
        factor = 1 / (mx.maximum(tokens, 1) * scalars.get("loss_scale", 1.0))
        squares = device.by_parts(device.square_sum, gradients)
        norm = factor * mx.sqrt(_total(*squares))
        if self._config.clip_norm is not None:
            factor = factor * mx.minimum(1.0, self._config.clip_norm / (norm + 1e-6))

        step = scalars["step"] + 1
        t = step.astype(mx.float32)
        rate = self._scheduled(t)
        correct1, correct2 = (
            1 / (1 - beta**t) for beta in (self._config.beta1, self._config.beta2)
        )
        finite = mx.isfinite(norm) & mx.isfinite(total)
        scaled = "loss_scale" in scalars
        pace = Pace(factor, rate, correct1, correct2, finite if scaled else None)
        after: Packed = {}
        if scaled:
            after, finite = self._rescale(scalars, finite, total)
        bad = mx.where(finite | (scalars["bad_step"] > 0), scalars["bad_step"], step)
        after |= {"step": step, "bad_step": bad}
        return gradients, after, pace, Metrics(total, nll, tokens, norm, rate)

    def _move(
        self, pace: Pace, p: mx.array, m: mx.array, v: mx.array, g: mx.array
    ) -> Sequence[mx.array]:
        """Adam: some weights and their moments after the update."""
        factor, rate, correct1, correct2, finite = pace
        beta1, beta2, eps = self._config.beta1, self._config.beta2, self._config.eps
        before = p, m, v
        m = beta1 * m + (1 - beta1) * (g * factor)
        v = beta2 * v + (1 - beta2) * mx.square(g * factor)
        p = p - rate * (m * correct1) / (mx.sqrt(v * correct2) + eps)
        if finite is None:
            return p, m, v
        return [mx.where(finite, new, old) for new, old in zip((p, m, v), before, strict=True)]

    def _rescale(
        self, scalars: Packed, finite: mx.array, loss: mx.array
    ) -> tuple[Packed, mx.array]:
        """float16: an overflow halves the scale and leaves the weights as they were.

        It is an error only when the loss itself is not finite or the scale cannot go lower.
        """
        good = mx.where(finite, scalars["good_steps"] + 1, 0)
        double = good >= STEPS_TO_DOUBLE_SCALE
        scale = scalars["loss_scale"]
        scale = mx.where(finite, mx.where(double, scale * 2, scale), scale / 2)
        after = {"loss_scale": scale, "good_steps": mx.where(double, 0, good)}
        return after, mx.isfinite(loss) & (scale >= 1)


def factors(model: Transformer) -> set[str]:
    """The weights W of products x W^T within the stacks."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(("encoder.", "decoder."))
    }


def _total(first: mx.array, *others: mx.array) -> mx.array:
    return sum(others, first)


def output_loss(config: ModelConfig) -> OutputLoss:
    return OutputLoss(config.pad_id, config.label_smoothing, config.logit_scale)


def output_weight(config: ModelConfig, parameters: Any) -> mx.array:
    """The matrix of the softmax layer, (V,d_model)."""
    if not config.tied_output:
        return parameters["output"]["weight"]
    return parameters["source_words" if config.shared_embeddings else "target_words"]["weight"]
