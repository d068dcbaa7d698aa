"""What every converted model must pass, and the pieces of a plain Transformer in PyTorch.

The reference models in `test_convert_*.py` compute straight from the tensors of a checkpoint, under
the names that its framework gives them. They share nothing with our model.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
import torch.nn.functional as F

from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model

State = Mapping[str, torch.Tensor]
Logits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # ids (B,S), (B,T) -> (B,T,V)


def assert_equal_models(directory: Path, reference: Logits, tolerance: float = 1e-5) -> Transformer:
    """Logits agree on padded batches, and greedy search gives the same ids for 100 sources."""
    torch.set_num_threads(1)  # these matrices are too small to share
    model = load_model(directory, mx.float32)
    config = model.config
    source = random_sources(config.vocab_size, config.pad_id, config.eos_id, n=100)
    target = np.random.default_rng(1).integers(4, config.target_size - 1, (100, 7))
    ours = np.array(model(mx.array(source), mx.array(target)))
    with torch.no_grad():
        theirs = reference(torch.tensor(source), torch.tensor(target)).numpy()
        ours = ours[..., : theirs.shape[-1]]  # a word added for padding is ours alone
        assert np.abs(ours - theirs).max() < tolerance * max(1, np.abs(theirs).max())
        assert theirs.std() > 0.01  # random weights that give no signal would prove nothing
        start = 0 if config.start_id is None else config.start_id
        expected = greedy(lambda ids: reference(torch.tensor(source), torch.tensor(ids)), start)
    found = greedy(lambda ids: np.array(model(mx.array(source), mx.array(ids))), start)
    assert np.array_equal(found, expected)
    return model


def random_sources(vocab_size: int, pad_id: int, eos_id: int, n: int) -> np.ndarray:
    """Sentences of 3 to 9 words, the end and padding: (n, 10)"""
    random = np.random.default_rng(0)
    words = np.setdiff1d(np.arange(vocab_size - 1), [pad_id, eos_id])
    ids = random.choice(words, (n, 10))
    lengths = random.integers(3, 10, n)
    ids[np.arange(n), lengths] = eos_id
    return np.where(np.arange(10) > lengths[:, None], pad_id, ids)


def greedy(logits: Callable[[np.ndarray], object], start: int, steps: int = 8) -> np.ndarray:
    """The best word at each step, from full passes over all words so far: (100, steps)"""
    ids = np.full((100, 1), start)
    for _ in range(steps):
        best = np.asarray(logits(ids))[:, -1].argmax(-1)
        ids = np.concatenate([ids, best[:, None]], axis=1)
    return ids[:, 1:]


def randomly(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of these shapes: norms near 1, biases not 0, matrices that keep the variance."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1 or shape[0] == 1:
            state[name] = 0.3 * values + (1.0 if is_norm_scale(name) else 0.0)
        else:
            state[name] = values / math.sqrt(shape[-1])
    return state


def is_norm_scale(name: str) -> bool:
    return name.endswith(("norm.weight", "a_2", "_ln_scale", "_ln_scale_pre")) or (
        "norm" in name and name.endswith("weight")
    )


def sinusoids(length: int, d: int, *, halves: bool, divisor: float, first: int = 0) -> torch.Tensor:
    """sin and cos of position / 10000^(i / divisor), written out"""
    position = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    angles = position / 10_000 ** (torch.arange(d // 2, dtype=torch.float64) / divisor)
    pair = (angles.sin(), angles.cos())
    table = torch.cat(pair, 1) if halves else torch.stack(pair, 2).flatten(1)
    return table.float()


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, h: int, mask: torch.Tensor):
    """(B,T,h*d) -> (B,T,h*d); the mask is true where attention goes"""

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (h, -1)).transpose(1, 2)

    scores = heads(q) @ heads(k).transpose(-1, -2) / math.sqrt(q.shape[-1] // h)
    weights = scores.masked_fill(~mask, -1e9).softmax(-1)
    return (weights @ heads(v)).transpose(1, 2).flatten(2)


def masks(source: torch.Tensor, target: torch.Tensor, pad_id: int):
    """(B,1,1,S) of the source's words, (T,T) of each word and those before it"""
    T = target.shape[1]
    return (source != pad_id)[:, None, None], torch.ones(T, T, dtype=torch.bool).tril()


def linear(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def norm(state: State, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)
