"""Training equal to PyTorch's: the loss, its gradients, and 200 steps on real text."""

import mlx.core as mx
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlx_transformer import device
from mlx_transformer.config import ModelConfig, preset
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.prepare import prepare
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig, load_recipe
from mlx_transformer.training import loss as loss_module
from mlx_transformer.training.loss import OutputLoss
from mlx_transformer.training.schedule import make_schedule
from mlx_transformer.training.step import TrainStep, initial_state
from tests.parity.torch_reference import torch_copy


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logit_scale", [1.0, 0.3])
def test_loss_and_gradients_equal_cross_entropy(monkeypatch, with_bias, smoothing, logit_scale):
    monkeypatch.setattr(device, "loss_chunk", lambda: 0)
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", 8)  # five chunks
    rng = np.random.default_rng(0)
    shapes = [(37, 16), (200, 16), (200,)][: 3 if with_bias else 2]
    values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    targets = rng.integers(0, 200, 37)  # some of them padding, 0
    measure = OutputLoss(ModelConfig(label_smoothing=smoothing, logit_scale=logit_scale))

    def smoothed(hidden, weight, bias=None):
        return measure.differentiable(hidden, weight, bias, mx.array(targets)).smoothed

    arrays = [mx.array(value) for value in values]
    found, gradients = mx.value_and_grad(smoothed, argnums=tuple(range(len(arrays))))(*arrays)

    leaves = [torch.tensor(value, requires_grad=True) for value in values]
    logits = logit_scale * leaves[0] @ leaves[1].T + (leaves[2] if with_bias else 0)
    options = {"ignore_index": 0, "reduction": "sum"}
    expected = F.cross_entropy(logits, torch.tensor(targets), label_smoothing=smoothing, **options)
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, leaf in zip(gradients, leaves, strict=True):
        assert np.allclose(ours, leaf.grad, atol=5e-6)
    nll = measure(*arrays[:2], arrays[2] if with_bias else None, mx.array(targets)).nll
    plain = F.cross_entropy(logits, torch.tensor(targets), **options)
    assert nll.item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.slow
def test_200_steps_on_multi30k_fall_as_in_pytorch(multi30k, tmp_path):
    """The paper's optimiser on a small model without dropout: each loss within 1e-3."""
    overrides = [f"data.dir={multi30k}", "tokenizer.vocab_size=1000"]
    recipe = load_recipe("multi30k-en-de", overrides)
    prepare(recipe, tmp_path / "data")
    config = preset("tiny", vocab_size=1000, dropout=0.0)
    training = TrainingConfig(batch_tokens=600)
    corpus = ParallelCorpus.open(tmp_path / "data", "train")
    stream = Batches(corpus, config, training.batch_tokens, max_shapes=4).stream()
    batches = [next(stream) for _ in range(200)]
    mx.random.seed(0)
    model = Transformer(config)
    expected = list(torch_losses(torch_copy(model), batches, training))
    found = our_losses(model, batches, training)
    assert np.abs(np.subtract(found, expected)).max() < 1e-3
    assert expected[0] > 7 and min(expected) < 6.5  # it does learn


def our_losses(model, batches, training):
    step = TrainStep(model.config, training)
    state = step.pack(initial_state(model, training))
    losses = []
    for batch in batches:
        arrays = mx.array(batch.source), mx.array(batch.target_in), mx.array(batch.target_out)
        state, metrics = step(state, [arrays])
        losses.append((metrics.loss / metrics.tokens).item())
    return losses


def torch_losses(model, batches, training):
    rate = make_schedule(training, model.config.d_model)
    adam = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    for number, batch in enumerate(batches, 1):
        source, target, expected = (
            torch.from_numpy(ids).long()
            for ids in (batch.source, batch.target_in, batch.target_out)
        )
        logits = model(source, target)
        loss = F.cross_entropy(
            logits.flatten(0, 1), expected.flatten(), ignore_index=0, label_smoothing=0.1
        )
        adam.zero_grad()
        loss.backward()
        adam.param_groups[0]["lr"] = rate(mx.array(float(number))).item()
        adam.step()
        yield loss.item()
