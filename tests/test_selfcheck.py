"""`mlx-transformer selfcheck`: it passes here, and what is broken on purpose it finds and names."""

import json
import subprocess
import sys
from collections.abc import Callable
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer import device, selfcheck
from mlx_transformer.__main__ import main
from mlx_transformer.decoding.cache import SlotCache
from mlx_transformer.selfcheck import attention, model, search
from mlx_transformer.selfcheck.finding import Finding, difference

PARTS = (
    "scale", "causal", "dropout", "logits", "loss", "gradients", "4 bits", "8 bits", "cache",
    "greedy, not compiled", "beam 4, compiled", "30 updates", "resumed", "peak",
)  # fmt: skip
CHECKS = attention.scale, attention.masks, model.passes, search.cache


@pytest.mark.slow
def test_it_passes_here():
    done = subprocess.run(
        [sys.executable, "-m", "mlx_transformer", "selfcheck", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["passed"] and found["machine"]["chip"] and found["machine"]["mlx"]
    names = [row["name"] for row in found["findings"]]
    assert len(set(names)) == len(names)
    for part in PARTS:
        assert any(part in name for name in names), part


@pytest.fixture
def quick(monkeypatch):
    """Fewer sizes: what is broken here is broken at all of them."""
    monkeypatch.setattr(model, "POSITIONS", (4, 12))
    for module in (attention, model):
        monkeypatch.setattr(module, "HEAD_SIZES", (32,))
        monkeypatch.setattr(module, "DTYPES", ("float32",))


def failing() -> set[str]:
    """What is named, up to the first comma but one."""
    found = [finding for check in CHECKS for finding in check()]
    return {", ".join(f.name.split(", ")[:2]) for f in found if not f.holds}


FUSED = mx.fast.scaled_dot_product_attention
PASSES = {f"{name}, heads of 32" for name in model.Pass._fields}


def unmasked(q, k, v, *, scale, mask):
    return FUSED(q, k, v, scale=scale, mask=None)


def one_too_many(q, k, v, *, scale, mask):
    """A causal mask that lets each position see the next."""
    T, S = q.shape[2], k.shape[2]
    if isinstance(mask, str) or (mask is not None and mask.shape[-2:] == (T, S) and T == S > 1):
        mask = mx.tri(T, S, k=1, dtype=mx.bool_)
    return FUSED(q, k, v, scale=scale, mask=mask)


def unscaled(q, k, v, *, scale, mask):
    return FUSED(q, k, v, scale=1.05 * scale, mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (FUSED, set()),
        (unmasked, {"attention, causal mask", "attention, padding mask"} | PASSES),
        (one_too_many, {"attention, causal mask"} | PASSES),
        (unscaled, {"attention, scale of the scores"} | PASSES),
    ],
)
@pytest.mark.usefixtures("quick")
def test_broken_attention_is_named(broken: Callable[..., mx.array], named: set[str]) -> None:
    with patch.object(mx.fast, "scaled_dot_product_attention", broken):
        assert failing() - {"search, cache of keys and values"} == named


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_stale_cache_is_named() -> None:
    """One that gives back what was there before this step."""
    extend = SlotCache.extend

    def stale(self, k, v):
        before = self.slots
        found = extend(self, k, v)
        return tuple(old[:, :, : new.shape[2]] for old, new in zip(before, found, strict=True))

    with patch.object(SlotCache, "extend", stale):
        assert failing() == {"search, cache of keys and values"}


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_computed_is_named_and_the_rest_is_checked(monkeypatch) -> None:
    def refuses(*_, **__):
        raise ValueError("the vector kernels do not produce a logsumexp")

    monkeypatch.setattr(selfcheck, "CHECKS", (attention.masks, model.dropout))
    with patch.object(mx.fast, "scaled_dot_product_attention", refuses):
        first, second = selfcheck.findings()
    assert first.name == "attention, masks: the vector kernels do not produce a logsumexp"
    assert not first.holds and second.holds


@pytest.mark.parametrize("status", [0, 1])
def test_a_figure_beyond_its_tolerance_is_the_exit_status(status, monkeypatch, capsys):
    def check():
        yield Finding("fine", 1.0, 1.0)
        yield Finding("only told", 9.0, None)
        yield Finding("wrong", 1.0 + status, 1.0)

    monkeypatch.setattr(selfcheck, "CHECKS", (check,))
    monkeypatch.setattr(device, "launch_as_on_a_mac", lambda: None)  # the tests have begun already
    assert main(["selfcheck"]) == status
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.endswith("  FAILED")] == [out[3]] * status
    assert out[-1].split(maxsplit=1) == ["selfcheck", "FAILED; wrong" if status else "passed"]
    assert main(["selfcheck", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["passed"] == (status == 0)


def test_what_is_not_a_number_never_holds():
    assert not Finding("", difference(np.array([1.0, np.nan]), np.ones(2)), 1e9).holds
