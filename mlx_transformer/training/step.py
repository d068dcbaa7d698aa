"""The compiled step: forward, loss, gradient, clipping and Adam in one graph.

The state is a plain tree of arrays that goes in and comes out, so that a buffer no longer needed is
reused and a checkpoint is the state, flattened. The dropout of an update follows from the seed, the
step and the rank: there is no other random state to save.
"""

from collections.abc import Sequence
from itertools import cycle
from operator import itemgetter
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_reduce

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.recipe import TrainingConfig
from mlx_transformer.training.loss import Loss, OutputLoss
from mlx_transformer.training.schedule import make_schedule

Tree = Any  # nested dicts and lists of arrays
State = dict[str, Tree]
# source (B,S), target input (B,T), target output (B,T)
Arrays = tuple[mx.array, mx.array, mx.array]

# float16 overflows where float32 does not: the loss is scaled as far up as the gradients allow.
FIRST_LOSS_SCALE = 2.0**10
STEPS_TO_DOUBLE_SCALE = 2000


class Metrics(NamedTuple):
    """What one update reports: sums over the real target tokens of all micro-batches and ranks."""

    loss: mx.array
    nll: mx.array
    tokens: mx.array
    norm: mx.array  # of the mean gradient, before clipping
    learning_rate: mx.array


def initial_state(model: Transformer, config: TrainingConfig) -> State:
    """Step 0: float32 master weights and empty moments."""
    parameters = tree_map(lambda p: p.astype(mx.float32), model.parameters())
    state = {
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
        model: Transformer,
        config: TrainingConfig,
        group: mx.distributed.Group | None = None,
        lanes: Sequence[mx.Stream] = (),
    ) -> None:
        self._model = model
        self._config = config
        self._group = group or mx.distributed.init()
        self._lanes = lanes or [mx.default_stream(mx.default_device())]
        self._dtype = getattr(mx, config.dtype)
        self._scheduled = make_schedule(config, model.config.d_model)
        self._loss = output_loss(model.config)
        ranks = mx.random.split(mx.random.key(config.seed), self._group.size())
        self._key = ranks[self._group.rank()]
        self._whole = mx.compile(self._one_batch)
        self._accumulate = mx.compile(self._add_gradients)
        self._finish = mx.compile(self._update)

    def __call__(self, state: State, batches: Sequence[Arrays]) -> tuple[State, Metrics]:
        """The next state and what to report of the update. Nothing is evaluated here."""
        if len(batches) == 1:
            state, metrics = self._whole(state, *batches[0])
        else:
            zeros = tree_map(mx.zeros_like, state["parameters"])
            total = zeros, Loss(mx.zeros(()), mx.zeros(()), mx.zeros(()))
            for i, batch in enumerate(batches):
                total = self._accumulate(state, total, mx.array(i), *batch)
            state, metrics = self._finish(state, *total)
        return state, Metrics(*metrics)

    def _one_batch(
        self, state: State, source: mx.array, target: mx.array, expected: mx.array
    ) -> tuple[State, Metrics]:
        key = self._dropout_key(state["step"])
        return self._update(state, *self._gradients(state, key, source, target, expected))

    def _add_gradients(
        self,
        state: State,
        total: tuple[Tree, Loss],
        i: mx.array,
        source: mx.array,
        target: mx.array,
        expected: mx.array,
    ) -> tuple[Tree, Loss]:
        """The sums so far and those of micro-batch i."""
        key = self._dropout_key(state["step"] * self._config.accumulate + i)
        return tree_map(mx.add, total, self._gradients(state, key, source, target, expected))

    def _dropout_key(self, count: mx.array) -> mx.array:
        """A key of its own for every micro-batch of every rank."""
        return self._key ^ mx.stack([mx.zeros_like(count), count]).astype(mx.uint32)

    def _gradients(self, state: State, key: mx.array, *batch: mx.array) -> tuple[Tree, Loss]:
        """Sums over the batch's tokens: the gradient of the (scaled) loss, and the loss."""
        rows = batch[0].shape[0]
        n = min(len(self._lanes), rows)
        bounds = [rows * i // n for i in range(1, n)]
        shares = zip(*(mx.split(array, bounds) for array in batch), strict=True)
        sums = []
        for lane, share_key, share in zip(
            self._lanes, mx.random.split(key, n), shares, strict=False
        ):
            with mx.stream(lane):
                sums.append(self._share_gradients(state, share_key, *share))
        return tree_map(lambda first, *others: sum(others, first), *sums)

    def _share_gradients(
        self, state: State, key: mx.array, source: mx.array, target: mx.array, expected: mx.array
    ) -> tuple[Tree, Loss]:

        def objective(parameters: Tree) -> tuple[mx.array, Loss]:
            self._model.update(tree_map(lambda p: p.astype(self._dtype), parameters))
            hidden = self._model.hidden(
                source, target, key, checkpointing=self._config.gradient_checkpointing
            )
            loss = self._loss.differentiable(
                hidden.reshape(-1, hidden.shape[-1]),
                output_weight(self._model.config, parameters),
                parameters.get("output_bias"),
                expected.reshape(-1),
            )
            return loss.smoothed * state.get("loss_scale", 1.0), loss

        (_, loss), gradients = mx.value_and_grad(objective)(state["parameters"])
        return gradients, loss

    def _update(self, state: State, gradients: Tree, loss: Loss) -> tuple[State, Metrics]:
        """Adam, on the mean gradient of all tokens."""
        gradients = _sum_over_ranks(gradients, self._group)
        total, nll, tokens = (mx.distributed.all_sum(x, group=self._group) for x in loss)
        factor = 1 / (mx.maximum(tokens, 1) * state.get("loss_scale", 1.0))
        squares = tree_reduce(lambda sum, g: sum + mx.square(g).sum(), gradients, mx.zeros(()))
        norm = factor * mx.sqrt(squares)
        if self._config.clip_norm is not None:
            factor = factor * mx.minimum(1.0, self._config.clip_norm / (norm + 1e-6))

        step = state["step"] + 1
        learning_rate = self._scheduled(step.astype(mx.float32))
        after = self._adam(state, gradients, factor, step, learning_rate)
        finite = mx.isfinite(norm) & mx.isfinite(total)
        if "loss_scale" in state:
            after, finite = self._rescale(state, after, finite, total)
        bad = mx.where(finite | (state["bad_step"] > 0), state["bad_step"], step)
        after |= {"step": step, "bad_step": bad}
        return after, Metrics(total, nll, tokens, norm, learning_rate)

    def _adam(
        self, state: State, gradients: Tree, factor: mx.array, step: mx.array, rate: mx.array
    ) -> State:
        beta1, beta2, eps = self._config.beta1, self._config.beta2, self._config.eps
        t = step.astype(mx.float32)
        correct1, correct2 = 1 / (1 - beta1**t), 1 / (1 - beta2**t)
        lanes = cycle(self._lanes)

        def update(p: mx.array, m: mx.array, v: mx.array, g: mx.array) -> tuple[mx.array, ...]:
            with mx.stream(next(lanes)):
                m = beta1 * m + (1 - beta1) * (g * factor)
                v = beta2 * v + (1 - beta2) * mx.square(g * factor)
                return p - rate * (m * correct1) / (mx.sqrt(v * correct2) + eps), m, v

        triples = tree_map(update, state["parameters"], state["m"], state["v"], gradients)
        return {
            name: tree_map(itemgetter(i), triples, is_leaf=lambda x: isinstance(x, tuple))
            for i, name in enumerate(("parameters", "m", "v"))
        }

    def _rescale(
        self, state: State, after: State, finite: mx.array, loss: mx.array
    ) -> tuple[State, mx.array]:
        """float16: an overflow halves the scale and leaves the weights as they were.

        It is an error only when the loss itself is not finite or the scale cannot go lower.
        """
        before = {name: state[name] for name in after}
        kept = tree_map(lambda new, old: mx.where(finite, new, old), after, before)
        good = mx.where(finite, state["good_steps"] + 1, 0)
        double = good >= STEPS_TO_DOUBLE_SCALE
        scale = state["loss_scale"]
        kept["loss_scale"] = mx.where(finite, mx.where(double, scale * 2, scale), scale / 2)
        kept["good_steps"] = mx.where(double, 0, good)
        return kept, mx.isfinite(loss) & (kept["loss_scale"] >= 1)


def _sum_over_ranks(tree: Tree, group: mx.distributed.Group) -> Tree:
    """The sum of every array over the ranks, in one message."""
    if group.size() == 1:
        return tree
    arrays = list(dict(tree_flatten(tree)).values())
    message = mx.concatenate([array.reshape(-1) for array in arrays])
    ends = np.cumsum([array.size for array in arrays])[:-1].tolist()
    parts = iter(mx.split(mx.distributed.all_sum(message, group=group), ends))
    return tree_map(lambda array: next(parts).reshape(array.shape), tree)


def output_loss(config: ModelConfig) -> OutputLoss:
    return OutputLoss(config.pad_id, config.label_smoothing, config.logit_scale)


def output_weight(config: ModelConfig, parameters: Tree) -> mx.array:
    """The matrix of the softmax layer, (V,d_model)."""
    if not config.tied_output:
        return parameters["output"]["weight"]
    return parameters["source_words" if config.shared_embeddings else "target_words"]["weight"]
