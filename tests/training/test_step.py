"""The compiled step: what it must not depend on, and what it must survive."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mlx_transformer import device
from mlx_transformer.config import preset
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.storage import named_parameters
from mlx_transformer.training.step import TrainStep, batch_loss, initial_state

# Without attention biases: softmax ignores a bias of all keys, so its gradient is rounding error,
# and that is all Adam would see.
CONFIG = preset("tiny", vocab_size=50, d_model=16, d_ff=32, h=2, dropout=0.0,
                encoder_layers=1, decoder_layers=1, attention_bias=False)  # fmt: skip
TRAINING = TrainingConfig(warmup=10)


def new_model(config=CONFIG):
    mx.random.seed(0)
    return Transformer(config)


def batch(rows=6, S=7, T=5, seed=0):
    """Random ids; rows end in padding, each at another place."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(3, CONFIG.vocab_size, (rows, n)) for n in (S, T, T)]
    for row in range(rows):
        ids[0][row, S - row % 3 :] = 0
        for target in ids[1:]:
            target[row, T - row % 4 :] = 0
    return tuple(mx.array(part.astype(np.int32)) for part in ids)


def halves(arrays):
    """The rows of a batch in two, unevenly."""
    return [tuple(a[:2] for a in arrays), tuple(a[2:] for a in arrays)]


def run(updates, training=TRAINING, config=CONFIG):
    """Train from the same start; `updates` is a list of lists of micro-batches."""
    model = new_model(config)
    step = TrainStep(model.config, training)
    state = step.pack(initial_state(model, training))
    for micro_batches in updates:
        state, metrics = step(state, micro_batches)
        mx.eval(state, metrics)
    return step.unpack(state), metrics


def flat(tree):
    return np.concatenate([np.array(a).ravel() for _, a in tree_flatten(tree)])


def distance(a, b):
    return np.abs(flat(a["parameters"]) - flat(b["parameters"])).max()


@pytest.mark.usefixtures("any_device")
def test_accumulated_micro_batches_equal_one_batch():
    whole = [[batch(seed=n)] for n in range(5)]
    parts = [halves(micro_batches[0]) for micro_batches in whole]
    one, reported = run(whole)
    two, reported_in_parts = run(parts, replace(TRAINING, accumulate=2))
    assert distance(one, run([[batch(seed=9)]] * 5)[0]) > 1e-3  # the measure sees a difference
    assert distance(one, two) < 1e-5
    assert np.allclose(reported, reported_in_parts, rtol=1e-5)


@pytest.mark.usefixtures("any_device")
def test_padding_rows_and_columns_do_not_matter():
    arrays = batch()
    padded = tuple(mx.pad(a, [(0, 2), (0, 3)]) for a in arrays)
    assert distance(run([[arrays]] * 3)[0], run([[padded]] * 3)[0]) < 1e-5


@pytest.mark.usefixtures("any_device")
@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing():
    config = replace(CONFIG, dropout=0.3)
    updates = [[batch(seed=n)] for n in range(3)]
    plain = run(updates, config=config)[0]
    again = run(updates, replace(TRAINING, gradient_checkpointing=True), config)[0]
    assert distance(plain, again) < 1e-6


def test_dropout_follows_from_seed_and_step_alone():
    config = replace(CONFIG, dropout=0.3)
    same, other_seed, other_step = (
        run(updates, replace(TRAINING, seed=seed), config)[1].loss.item()
        for updates, seed in (([[batch()]], 1), ([[batch()]], 2), ([[batch()]] * 2, 1))
    )
    mx.random.seed(12345)  # the global state has no say
    assert run([[batch()]], replace(TRAINING, seed=1), config)[1].loss.item() == same
    assert len({same, other_seed, other_step}) == 3


def test_micro_batches_drop_out_different_units():
    config = replace(CONFIG, dropout=0.3)
    training = replace(TRAINING, accumulate=2)
    twice = run([[batch(), batch()]], training, config)[1].loss.item()
    once = run([[batch()]], TRAINING, config)[1].loss.item()
    assert twice != pytest.approx(2 * once, rel=1e-6)


def test_clipping_bounds_the_gradient_adam_sees():
    free, reported = run([[batch()]])
    norm = reported.norm.item()
    beta1 = TRAINING.beta1
    assert np.linalg.norm(flat(free["m"])) == pytest.approx((1 - beta1) * norm, rel=1e-4)
    clipped, again = run([[batch()]], replace(TRAINING, clip_norm=norm / 10))
    assert again.norm.item() == pytest.approx(norm, rel=1e-5)  # reported as it was
    assert np.linalg.norm(flat(clipped["m"])) == pytest.approx((1 - beta1) * norm / 10, rel=1e-3)
    loose = run([[batch()]], replace(TRAINING, clip_norm=norm * 10))[0]
    assert distance(free, loose) < 1e-6


def test_the_norm_of_a_large_model_is_exact():
    numbers = np.random.default_rng(0).standard_normal(24_000_000, np.float32)
    exact = np.square(numbers, dtype=np.float64).sum()
    assert device.square_sum(mx.array(numbers)).item() == pytest.approx(exact, rel=2e-3)


def test_the_first_step_that_is_not_finite_is_remembered():
    model = new_model()
    step = TrainStep(model.config, TRAINING)
    state, _ = step(step.pack(initial_state(model, TRAINING)), [batch()])
    assert state["scalars"]["bad_step"].item() == 0
    state["parameters"][0][5] = float("nan")
    for _ in range(3):
        state, _ = step(state, [batch()])
    assert state["scalars"]["step"].item() == 4 and state["scalars"]["bad_step"].item() == 2


def test_no_second_copy_of_the_weights_is_kept():
    config = replace(CONFIG, vocab_size=20_000, target_vocab_size=None)  # large beside a batch
    before = mx.get_active_memory()
    model = new_model(config)
    step = TrainStep(model.config, TRAINING)
    state = step.pack(initial_state(model, TRAINING))
    del model
    for _ in range(2):
        loaded = step.model_of(state)  # as a validation does
        mx.eval(loaded.hidden(*batch()[:2]))
        del loaded
        state, metrics = step(state, [batch()])
        mx.eval(state, metrics)
    weights = sum(vector.nbytes for vector in state["parameters"])
    assert mx.get_active_memory() - before < 3.2 * weights  # they, m and v


@pytest.mark.usefixtures("any_device")
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_learns_like_float32_with_float32_masters(dtype):
    updates = [[batch()]] * 30
    steady = TrainingConfig(schedule="constant", learning_rate=0.003, warmup=0)
    half = replace(steady, dtype=dtype)
    # Side by side for a few updates; later they learn as well, on paths that rounding parts.
    few = [run(updates[:5], training)[1].loss.item() for training in (steady, half)]
    assert few[1] == pytest.approx(few[0], rel=0.05)
    first = run(updates[:1])[1].loss.item()
    _, in_float32 = run(updates, steady)
    state, in_half = run(updates, half)
    assert in_float32.loss.item() < 0.7 * first
    assert in_half.loss.item() < 0.7 * first
    for name in ("parameters", "m", "v"):
        assert {a.dtype for _, a in tree_flatten(state[name])} == {mx.float32}
    assert state["bad_step"].item() == 0


@pytest.mark.usefixtures("any_device")
def test_the_gradient_of_a_frequent_word_is_added_up_in_float32():
    """A bfloat16 sum of a thousand like numbers would stop at two hundred and something."""
    source = mx.full((32, 32), 7)
    _, target, expected = batch(rows=32)
    model = new_model(replace(CONFIG, encoder_layers=1, shared_embeddings=False))
    weights = named_parameters(model)

    def gradient(dtype: mx.Dtype) -> np.ndarray:
        def loss(parameters: dict) -> mx.array:
            return batch_loss(model, parameters, (source, target, expected), dtype).smoothed

        return np.array(mx.grad(loss)(weights)["source_words.weight"])

    exact, found = gradient(mx.float32), gradient(mx.bfloat16)
    assert np.flatnonzero(np.abs(exact).sum(axis=1)).tolist() == [7]
    assert np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)


@pytest.mark.usefixtures("any_device")
@pytest.mark.slow
def test_float16_overflow_lowers_the_scale_and_leaves_the_weights():
    training = replace(TRAINING, dtype="float16")
    model = new_model()
    step = TrainStep(model.config, training)
    state = step.pack(initial_state(model, training))
    state["scalars"]["loss_scale"] = mx.array(2.0**40)  # beyond what float16 can hold
    before = tree_map(mx.array, state)
    state, _ = step(state, [batch()])
    assert distance(state, before) == 0
    assert np.array_equal(flat(state["v"]), flat(before["v"]))
    scalars = state["scalars"]
    assert scalars["loss_scale"].item() == 2.0**39 and scalars["bad_step"].item() == 0
    while state["scalars"]["loss_scale"].item() > 2.0**10:
        state, _ = step(state, [batch()])
        if distance(state, before) > 0:
            return
    pytest.fail("the scale fell to 1024 and still nothing was learned")
