"""torch.nn.Transformer computes the same from what `export --format torch` wrote."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.export_torch import export_torch, write_torch_file
from tests.parity.torch_reference import randomised

torch.set_num_threads(1)  # these matrices are too small to share

PAPER = ModelConfig(
    vocab_size=97, encoder_layers=2, decoder_layers=2, d_model=64, d_ff=96, h=4, max_length=40
)
CONFIGS = {
    "paper": PAPER,
    "pre-norm": replace(PAPER, norm="pre", encoder_final_norm=True, decoder_final_norm=True),
    "post-norm with final norms": replace(PAPER, encoder_final_norm=True, decoder_final_norm=True),
    "untied": replace(
        PAPER,
        target_vocab_size=80,
        shared_embeddings=False,
        tied_output=False,
        output_bias=True,
        activation="gelu",
        scale_embedding=False,
    ),
    "fairseq positions": replace(
        PAPER, position_layout="halves", position_divisor_minus_one=True, position_offset=2
    ),
    "no position on padding": replace(PAPER, padding_has_position=False),
    "learned positions, swish": replace(PAPER, positions="learned", activation="swish"),
    "no attention bias, zero start": replace(PAPER, attention_bias=False, start_id=None),
    "a norm on embeddings": replace(
        PAPER, embedding_norm=True, activation="gelu_tanh", norm_eps=1e-6, logit_scale=0.125
    ),
}


def script_of(directory: Path) -> ModuleType:
    """The exported script, run as a user would import it."""
    spec = importlib.util.spec_from_file_location("load_in_torch", directory / "load_in_torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_greedy_ids_are_equal(config, tmp_path):
    model = randomised(config, seed=1)
    export_torch(model, tmp_path)
    theirs = script_of(tmp_path).load(tmp_path)
    assert isinstance(theirs.transformer, nn.Transformer)

    random = np.random.default_rng(2)
    source = random.integers(4, config.vocab_size, (20, 11))
    source[:, -1] = config.eos_id
    source[::2, 7:] = config.pad_id
    target = random.integers(4, config.target_size, (20, 9))
    target[::3, 4] = config.pad_id
    with torch.no_grad():
        logits = theirs(torch.tensor(source), torch.tensor(target)).numpy()
    ours = np.array(model(mx.array(source), mx.array(target)))
    assert np.abs(logits - ours).max() < 1e-5 * np.abs(ours).max()

    start = config.pad_id if config.start_id is None else config.start_id
    for row in source[1:6:2, :-1].tolist():
        ids = [start]
        for _ in range(6):
            best = model(mx.array([[*row, config.eos_id]]), mx.array([ids]))[0, -1]
            best[mx.array([config.pad_id, start])] = -mx.inf
            ids.append(best.argmax().item())
        stop = ids.index(config.eos_id) if config.eos_id in ids else None
        assert theirs.translate(row, max_length=6) == ids[1:stop]


@pytest.mark.slow
def test_the_script_runs_alone(tmp_path):
    export_torch(randomised(PAPER, 3), tmp_path)
    command = [sys.executable, "load_in_torch.py", "5", "9", "17"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    expected = script_of(tmp_path).load(tmp_path).translate([5, 9, 17])
    assert [int(word) for word in done.stdout.split()] == expected


def test_the_file_is_as_torch_saves_it(tmp_path):
    tied = mx.random.normal((7, 5))
    tensors = {"a": tied, "b.c": tied, "d": mx.arange(3.0), "e": mx.array(2.5)}
    write_torch_file(tmp_path / "ours.pt", tensors)
    for mapped in (False, True):
        state = torch.load(tmp_path / "ours.pt", weights_only=True, mmap=mapped)
        assert list(state) == list(tensors)
        for name, array in tensors.items():
            assert torch.equal(state[name], torch.from_numpy(np.array(array)))
        assert state["a"].data_ptr() == state["b.c"].data_ptr()  # tied stays tied
