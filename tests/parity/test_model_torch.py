"""Our model computes what PyTorch computes: logits, gradients, a hundred training steps."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mlx.utils import tree_flatten

from mlx_transformer.config import ModelConfig
from tests.parity.torch_reference import randomised, torch_copy, torch_names

SMALL = {
    "vocab_size": 97,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 64,
    "d_ff": 96,
    "h": 4,
}
CONFIGS = {
    "paper": ModelConfig(**SMALL),
    "post-norm with final norms": ModelConfig(
        **SMALL, encoder_final_norm=True, decoder_final_norm=True
    ),
    "pre-norm": ModelConfig(**SMALL, norm="pre", encoder_final_norm=True, decoder_final_norm=True),
    "pre-norm, untied, gelu": ModelConfig(
        **SMALL,
        target_vocab_size=53,
        norm="pre",
        shared_embeddings=False,
        tied_output=False,
        activation="gelu",
    ),
    "untied output": ModelConfig(**SMALL, tied_output=False),
}


def random_batch(config: ModelConfig, B: int, S: int, T: int, seed: int):
    """ids (B,S), (B,T) and the true lengths; the last sentence is full, the others are padded."""
    rng = np.random.default_rng(seed)
    source = rng.integers(3, config.vocab_size, (B, S))
    target = rng.integers(3, config.target_size, (B, T))
    source_lengths = np.append(rng.integers(1, S + 1, B - 1), S)
    target_lengths = np.append(rng.integers(1, T + 1, B - 1), T)
    source[np.arange(S) >= source_lengths[:, None]] = config.pad_id
    target[np.arange(T) >= target_lengths[:, None]] = config.pad_id
    return source, target, np.arange(T) < target_lengths[:, None]


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("B", "S", "T"), [(1, 1, 1), (3, 7, 5), (2, 40, 61), (2, 200, 200)])
def test_logits_equal_pytorch(name, B, S, T):
    config = CONFIGS[name]
    model = randomised(config, seed=1)
    source, target, real = random_batch(config, B, S, T, seed=2)
    with torch.no_grad():
        expected = torch_copy(model)(torch.tensor(source), torch.tensor(target)).numpy()
    actual = np.array(model(mx.array(source), mx.array(target)))
    difference = np.abs(actual - expected)[real].max()
    assert difference < 1e-5 * np.abs(expected[real]).max()


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_equal_pytorch(name):
    config = CONFIGS[name]
    model = randomised(config, seed=3)
    source, target, real = random_batch(config, 3, 11, 9, seed=4)
    labels = np.random.default_rng(5).integers(3, config.target_size, target.shape)

    def loss(model):
        losses = nn.losses.cross_entropy(
            model(mx.array(source), mx.array(target)), mx.array(labels)
        )
        return (losses * mx.array(real)).sum()

    _, gradients = nn.value_and_grad(model, loss)(model)
    ours = {name: np.array(g) for name, g in tree_flatten(gradients)}

    reference = torch_copy(model)
    logits = reference(torch.tensor(source), torch.tensor(target))
    F.cross_entropy(
        logits[torch.tensor(real)], torch.tensor(labels[real]), reduction="sum"
    ).backward()
    theirs = {name: p.grad.numpy() for name, p in reference.named_parameters()}
    for name, (their_name, rows) in torch_names(config).items():
        expected = theirs[their_name][rows]
        relative = np.linalg.norm(ours[name] - expected) / np.linalg.norm(expected)
        # Only a key's bias has no gradient but rounding; it stands in one vector with the others.
        assert relative < 1e-4, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "pre-norm"])
def test_a_hundred_training_steps_equal_pytorch(name):
    """Adam with warmup on both sides, from the same start, no dropout."""
    config = CONFIGS[name]
    model = randomised(config, seed=6)
    reference = torch_copy(model)
    adam = torch.optim.Adam(reference.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    ours = optim.Adam(learning_rate=1.0, betas=[0.9, 0.98], eps=1e-9, bias_correction=True)

    def loss(model, source, target, labels, real):
        losses = nn.losses.cross_entropy(model(source, target), labels, label_smoothing=0.1)
        return (losses * real).sum() / real.sum()

    loss_and_gradients = nn.value_and_grad(model, loss)
    for step in range(1, 101):
        source, target, real = random_batch(config, 4, 8, 9, seed=step)
        labels = np.roll(target, -1, axis=1)
        rate = config.d_model**-0.5 * min(step**-0.5, step * 40**-1.5)

        ours.learning_rate = rate
        value, gradients = loss_and_gradients(model, *map(mx.array, (source, target, labels, real)))
        ours.update(model, gradients)
        mx.eval(model.parameters(), ours.state)

        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        logits = reference(torch.tensor(source), torch.tensor(target))[torch.tensor(real)]
        expected = F.cross_entropy(logits, torch.tensor(labels[real]), label_smoothing=0.1)
        expected.backward()
        adam.step()
        assert abs(value.item() - expected.item()) < 1e-3, f"step {step}"
