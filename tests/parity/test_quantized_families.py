"""Each family in 4 and 8 bits: it computes with the weights that NumPy reads out of its file."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from transformers import PreTrainedModel

from mlx_transformer.convert.conversion import convert
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model, named_parameters
from tests.parity.conversion_checks import random_sources
from tests.parity.hub_models import MODELS, scattered

pytestmark = pytest.mark.slow

GROUP = 64  # weights in a row that share a scale and an offset
WIDE = {"d_model": 64, "d_ff": 128, "d_kv": 16, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def wide(name: str) -> PreTrainedModel:
    """The family's small model, with rows that are whole groups"""
    small = MODELS[name]()
    known = small.config.to_dict()
    config = type(small.config)(**{**known, **{k: v for k, v in WIDE.items() if k in known}})
    return scattered(type(small)(config).eval())


def read_out(packed: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int) -> np.ndarray:
    """uint32 words of 32 / bits weights, the lowest first -> scale * weight + offset"""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    whole = (packed[..., None] >> shifts & np.uint32(2**bits - 1)).reshape(len(packed), -1)
    return whole * scales.repeat(GROUP, axis=1) + biases.repeat(GROUP, axis=1)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_family_computes_with_what_is_stored(name: str, bits: int, tmp_path: Path):
    wide(name).save_pretrained(tmp_path / "original")
    convert(tmp_path / "original", tmp_path / "plain")
    convert(tmp_path / "original", tmp_path / "ours", bits=bits)
    plain, quantised = load_model(tmp_path / "plain"), load_model(tmp_path / "ours")
    original, stored = named_parameters(plain), named_parameters(quantised)
    weights = {}
    for key, array in original.items():
        if array.ndim < 2 or array.shape[-1] % GROUP or key.endswith("positions"):
            weights[key] = stored[key]
            assert mx.array_equal(stored[key], array)
            continue
        path = key.removesuffix(".weight")
        parts = (np.array(stored[f"{path}.{part}"]) for part in ("weight", "scales", "biases"))
        found = read_out(*parts, bits)
        step = np.abs(np.array(stored[f"{path}.scales"])).repeat(GROUP, axis=1)
        assert np.all(np.abs(found - np.array(array)) <= step), key
        weights[key] = mx.array(found.astype(np.float32))
    # Word vectors and the head are among what shrinks.
    assert {"source_words.scales"} <= stored.keys()
    assert plain.config.tied_output or "output.scales" in stored

    expected = Transformer(replace(quantised.config, quantization=None))
    expected.load_weights(list(weights.items()))
    config = plain.config
    source = mx.array(random_sources(58, config.pad_id, config.eos_id, n=8))
    target = mx.array(np.random.default_rng(1).integers(4, 57, (8, 7)))
    ours, theirs = quantised(source, target), expected(source, target)
    assert mx.abs(ours - theirs).max() < 1e-4 * mx.abs(theirs).max()
    assert mx.abs(ours - plain(source, target)).max() > 1e-4  # it is another model
