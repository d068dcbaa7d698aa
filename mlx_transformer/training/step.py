"""The compiled step: forward, loss and gradient in each lane, then clipping and Adam.

The state is a plain tree of arrays that goes in and comes out, so that a buffer no longer needed is
reused and a checkpoint is the state by its names. The dropout of an update follows from the seed,
the step and the rank: there is no other random state to save.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, NotRequired, TypedDict

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map, tree_unflatten

from mlx_transformer import device
from mlx_transformer.blocks import WideWords
from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.storage import named_parameters
from mlx_transformer.training.layout import Layout, NamedArrays, Vectors
from mlx_transformer.training.loss import Loss, OutputLoss
from mlx_transformer.training.schedule import make_schedule

# Sums over some of the tokens: the gradient of the (scaled) loss, and the loss.
GradientSum = tuple[Vectors, Loss]
# source (B,S), target input (B,T), target output (B,T)
MicroBatch = tuple[mx.array, mx.array, mx.array]

# float16 overflows where float32 does not: the loss is scaled as far up as the gradients allow.
FIRST_LOSS_SCALE = 2.0**10
STEPS_TO_DOUBLE_SCALE = 2000


WORDS = ("source_words", "target_words")


class Scalars(TypedDict):
    """What an update keeps besides weights and moments; the last two in float16 only."""

    step: mx.array
    bad_step: mx.array  # the first step whose loss or gradient was not finite; 0: none
    loss_scale: NotRequired[mx.array]
    good_steps: NotRequired[mx.array]  # since the scale changed


class TrainingState(Scalars):
    """Weights and Adam's moments by name: what a checkpoint holds."""

    parameters: NamedArrays
    m: NamedArrays
    v: NamedArrays


class PackedState(TypedDict):
    """The same in a few long vectors: what an update works on."""

    scalars: Scalars
    parameters: Vectors
    m: Vectors
    v: Vectors


class AdamScalars(NamedTuple):
    """What Adam does alike to every weight."""

    grad_scale: mx.array  # from the sum of gradients to the mean, clipped
    learning_rate: mx.array
    correct1: mx.array  # for the bias of the moments
    correct2: mx.array
    finite: mx.array | None  # float16: whether to update at all


class UpdateMetrics(NamedTuple):
    """What one update reports: sums over the real target tokens of all micro-batches and ranks."""

    loss: mx.array
    nll: mx.array
    tokens: mx.array
    norm: mx.array  # of the mean gradient, before clipping
    learning_rate: mx.array


def initial_state(model: Transformer, config: TrainingConfig) -> TrainingState:
    """Step 0: float32 master weights and empty moments."""
    parameters = {name: p.astype(mx.float32) for name, p in named_parameters(model).items()}
    state: TrainingState = {
        "parameters": parameters,
        "m": tree_map(mx.zeros_like, parameters),
        "v": tree_map(mx.zeros_like, parameters),
        "step": mx.array(0),
        "bad_step": mx.array(0),
    }
    if config.dtype == "float16":
        state["loss_scale"] = mx.array(FIRST_LOSS_SCALE)
        state["good_steps"] = mx.array(0)
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
        self._model = Transformer(model)  # its own weights are never used: `objective` sets them
        self._config = config
        self._group = group or mx.distributed.init()
        self._lanes = lanes
        self._pieces = config.accumulate * (config.micro_batches or 1)  # at most, in an update
        shapes = in_forward_order(self._model)
        self._layout = Layout(shapes, lanes, transposed_weights(self._model))
        self._dtype = getattr(mx, config.dtype)
        self._schedule = make_schedule(config, model.d_model)
        ranks = mx.random.split(mx.random.key(config.seed), self._group.size())
        self._key = ranks[self._group.rank()]
        # Compiled one by one: in one graph lanes would share constants, which MLX does not fuse.
        self._share = mx.compile(self._share_gradients)
        self._reduce = mx.compile(self._reduce_and_clip)
        self._adam = mx.compile(self._adam_update)

    def pack(self, state: TrainingState) -> PackedState:
        """A state to update, in memory of its own."""
        join = self._layout.join
        scalars: Scalars = {"step": state["step"], "bad_step": state["bad_step"]}
        if "loss_scale" in state:
            scalars["loss_scale"] = state["loss_scale"]
            scalars["good_steps"] = state["good_steps"]
        packed: PackedState = {
            "scalars": scalars,
            "parameters": join(state["parameters"]),
            "m": join(state["m"]),
            "v": join(state["v"]),
        }
        mx.eval(packed)
        return packed

    def unpack(self, packed: PackedState) -> TrainingState:
        """The state by names again, to save; views that should not outlive the next update."""
        split = self._layout.split
        return {
            **packed["scalars"],
            "parameters": split(packed["parameters"]),
            "m": split(packed["m"]),
            "v": split(packed["v"]),
        }

    def model_of(self, packed: PackedState) -> Transformer:
        """A model with the weights of a state; views that should not outlive the next update."""
        model = Transformer(self._model.config)
        model.update(tree_unflatten(list(self._layout.split(packed["parameters"]).items())))
        return model

    def __call__(
        self, packed: PackedState, batches: Sequence[MicroBatch]
    ) -> tuple[PackedState, UpdateMetrics]:
        """The next state and what to report of the update. Nothing is waited for here."""
        sums: list[GradientSum] = []
        for i, batch in enumerate(batches):
            if sums:
                # Launch now: or the activations of all micro-batches could be in memory at once.
                sums = [self._sum(sums)]
                mx.async_eval(sums)
            number = packed["scalars"]["step"] * self._pieces + i
            sums += self._gradients(packed, number, *batch)
        gradients, scalars, adam_scalars, metrics = self._reduce(packed["scalars"], sums)
        update = partial(self._adam, adam_scalars)
        updated = device.by_parts(update, packed["parameters"], packed["m"], packed["v"], gradients)
        parameters, m, v = map(list, zip(*updated, strict=True))
        after: PackedState = {"scalars": scalars, "parameters": parameters, "m": m, "v": v}
        return after, UpdateMetrics(*metrics)

    def _gradients(
        self, packed: PackedState, number: mx.array, *batch: mx.array
    ) -> list[GradientSum]:
        """Of micro-batch `number`, each lane's share."""
        n = min(self._lanes, batch[0].shape[0])
        # Each lane's share of each micro-batch on each rank has its own random key.
        key = self._key ^ mx.stack([mx.zeros_like(number), number]).astype(mx.uint32)
        share = partial(self._share, packed["parameters"], packed["scalars"].get("loss_scale"))
        return device.by_rows(share, n, mx.random.split(key, n), *batch)

    def _sum(self, sums: Sequence[GradientSum]) -> GradientSum:
        gradients = device.by_parts(_total, *(vectors for vectors, _ in sums))
        return gradients, Loss(*map(_total, *(loss for _, loss in sums)))

    def _share_gradients(
        self,
        weights: Vectors,
        loss_scale: mx.array | None,
        keys: mx.array,
        source: mx.array,
        target: mx.array,
        expected: mx.array,
    ) -> GradientSum:
        """Of some rows of a batch; keys (1,2)"""

        def objective(parameters: NamedArrays) -> tuple[mx.array, Loss]:
            loss = batch_loss(
                self._model,
                parameters,
                (source, target, expected),
                self._dtype,
                keys[0],
                checkpointing=self._config.gradient_checkpointing,
            )
            return loss.smoothed * (1.0 if loss_scale is None else loss_scale), loss

        (_, loss), gradients = mx.value_and_grad(objective)(self._layout.split(weights))
        return self._layout.join(gradients), loss

    def _reduce_and_clip(
        self, scalars: Scalars, sums: Sequence[GradientSum]
    ) -> tuple[Vectors, Scalars, AdamScalars, UpdateMetrics]:
        """The gradient of all tokens of all ranks, and what Adam makes of it."""
        gradients, loss = self._sum(sums)
        gradients = [mx.distributed.all_sum(g, group=self._group) for g in gradients]
        total, nll, tokens = mx.distributed.all_sum(mx.stack(list(loss)), group=self._group)
        grad_scale = 1 / (mx.maximum(tokens, 1) * scalars.get("loss_scale", 1.0))
        norm = grad_scale * mx.sqrt(_total(*device.by_parts(device.square_sum, gradients)))
        if self._config.clip_norm is not None:
            grad_scale = grad_scale * mx.minimum(1.0, self._config.clip_norm / (norm + 1e-6))
        finite = mx.isfinite(norm) & mx.isfinite(total)
        step = scalars["step"] + 1
        adam = self._adam_scalars(step, grad_scale, finite if "loss_scale" in scalars else None)
        metrics = UpdateMetrics(total, nll, tokens, norm, adam.learning_rate)
        return gradients, self._next_scalars(scalars, step, finite, total), adam, metrics

    def _adam_scalars(
        self, step: mx.array, grad_scale: mx.array, finite: mx.array | None
    ) -> AdamScalars:
        t = step.astype(mx.float32)
        betas = self._config.beta1, self._config.beta2
        correct1, correct2 = (1 / (1 - beta**t) for beta in betas)
        return AdamScalars(grad_scale, self._schedule(t), correct1, correct2, finite)

    def _next_scalars(
        self, scalars: Scalars, step: mx.array, finite: mx.array, loss: mx.array
    ) -> Scalars:
        bad = scalars["bad_step"]
        if "loss_scale" not in scalars:
            return {"step": step, "bad_step": mx.where(finite | (bad > 0), bad, step)}
        scale, good = self._rescale(scalars, finite)
        # float16: an error only when the loss itself is not finite or the scale cannot go lower.
        fine = mx.isfinite(loss) & (scale >= 1)
        return {
            "step": step,
            "bad_step": mx.where(fine | (bad > 0), bad, step),
            "loss_scale": scale,
            "good_steps": good,
        }

    def _rescale(self, scalars: Scalars, finite: mx.array) -> tuple[mx.array, mx.array]:
        """float16: an overflow halves the scale and leaves the weights as they were."""
        good = mx.where(finite, scalars["good_steps"] + 1, 0)
        double = good >= STEPS_TO_DOUBLE_SCALE
        scale = scalars["loss_scale"]
        scale = mx.where(finite, mx.where(double, scale * 2, scale), scale / 2)
        return scale, mx.where(double, 0, good)

    def _adam_update(
        self, scalars: AdamScalars, p: mx.array, m: mx.array, v: mx.array, g: mx.array
    ) -> Sequence[mx.array]:
        """Some weights and their moments after the update."""
        grad_scale, learning_rate, correct1, correct2, finite = scalars
        beta1, beta2, eps = self._config.beta1, self._config.beta2, self._config.eps
        before = p, m, v
        m = beta1 * m + (1 - beta1) * (g * grad_scale)
        v = beta2 * v + (1 - beta2) * mx.square(g * grad_scale)
        p = p - learning_rate * (m * correct1) / (mx.sqrt(v * correct2) + eps)
        if finite is None:
            return p, m, v
        return [mx.where(finite, new, old) for new, old in zip((p, m, v), before, strict=True)]


def batch_loss(
    model: Transformer,
    parameters: NamedArrays,
    batch: MicroBatch,
    dtype: mx.Dtype,
    key: mx.array | None = None,
    *,
    checkpointing: bool = False,
) -> Loss:
    """The loss of a batch with these float32 weights, which the model gets in `dtype`."""
    source, target, expected = batch
    words = {name: f"{name}.weight" for name in WORDS if f"{name}.weight" in parameters}
    model.update_modules({name: WideWords(parameters[words[name]], dtype) for name in words})
    others = [(n, p.astype(dtype)) for n, p in parameters.items() if n not in words.values()]
    model.update(tree_unflatten(others))
    hidden = model.hidden(source, target, key, checkpointing=checkpointing)
    return OutputLoss(model.config).differentiable(
        hidden.reshape(-1, hidden.shape[-1]),
        parameters[f"{model.config.output_matrix}.weight"],
        parameters.get("output_bias"),
        expected.reshape(-1),
    )


def in_forward_order(model: Transformer) -> dict[str, tuple[int, ...]]:
    """The shape of every weight, as a forward pass meets them: words, encoder, decoder, output."""
    shapes = {name: p.shape for name, p in named_parameters(model).items()}
    return dict(sorted(shapes.items(), key=lambda item: item[0].startswith("output")))


def transposed_weights(model: Transformer) -> set[str]:
    """The weights W of products x W^T within the stacks: their gradients come out transposed."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(("encoder.", "decoder."))
    }


def _total(first: mx.array, *others: mx.array) -> mx.array:
    return sum(others, first)
