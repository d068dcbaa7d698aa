"""Figures of a run: which validation is the best, and what survives a cut."""

import json
from typing import Any

import pytest

from mlx_transformer.training.report import MetricsLog, ValidationReport, duration


def report(loss: float, **scores: Any) -> ValidationReport:
    return ValidationReport(step=1, loss=loss, perplexity=2.0, seconds=1.0, **scores)


def test_bleu_decides_and_where_there_is_none_the_loss():
    assert report(2.0, bleu=30.0).score > report(1.0, bleu=20.0).score
    assert report(1.0).score > report(2.0).score
    # Translations of one word have BLEU 0, however good they are; any BLEU is better than none.
    assert report(1.0, bleu=0.0).score > report(2.0, bleu=0.0).score
    assert report(2.0, bleu=0.1).score > report(1.0, bleu=0.0).score


def test_what_a_recipe_is_judged_by_decides_and_is_told():
    better = report(1.0, metric="exact", exact=50.0, chrf=60.0)
    assert better.score > report(0.5, metric="exact", exact=40.0, chrf=90.0).score
    assert report(1.0, metric="chrf", bleu=0.0, chrf=60.0).score == 60
    assert "exact 50.00" in better.lines()[0] and "chrF2 60.00" in better.lines()[0]
    assert "BLEU" not in better.lines()[0]


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"kind": "training", "step": step}) for step in (1, 2, 3)]
    path.write_text("\n".join(lines) + '\n{"step": 4, "lo')  # killed while writing
    MetricsLog(path).cut(2, pytest.fail)
    assert path.read_text() == "\n".join(lines[:2]) + "\n"
    MetricsLog(tmp_path / "not there yet.jsonl").cut(2, pytest.fail)


def test_durations_read_well():
    assert [duration(s) for s in (9.6, 250, 11_100, 180_000)] == [
        "0m 10s",
        "4m 10s",
        "3h 05m",
        "2d 2h",
    ]
