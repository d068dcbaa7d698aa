"""Hundreds of hostile model directories: each is used, or refused in a sentence; nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile_models import make
from tests.tiny_directory import write_model

RUNNER = Path(__file__).parent / "hostile_runner.py"
ROOT = str(Path(__file__).parents[1])
MEMORY = 2 << 30


def outcomes(directories: list[Path]) -> list[list]:
    """A row a call; a directory that takes its process down has the row of its signal."""
    left, rows = [str(path) for path in directories], []
    while left:
        environment = {**os.environ, "PYTHONPATH": ROOT, "MLX_TRANSFORMER_BLAS": "off"}
        run = subprocess.run(
            [sys.executable, "-W", "ignore", RUNNER],
            input="\n".join(left), capture_output=True, text=True, env=environment,
        )  # fmt: skip
        rows += [json.loads(line) for line in run.stdout.splitlines()]
        if run.returncode == 0:
            break
        done = {row[0] for row in rows}
        died = next((path for path in left if path not in done), left[-1])
        began = [path for path in left if path in done]
        died = began[-1] if began and sum(row[0] == began[-1] for row in rows) < 3 else died
        rows.append([died, "died", run.returncode, 0, 0, "", run.stderr[-300:]])
        left = left[left.index(died) + 1 :]
    return rows


def complaint(row: list) -> str:
    """What is wrong with an outcome, if anything."""
    _, verb, status, seconds, peak, out, err = row
    if status not in (0, 1, 2):
        return f"status {status}"
    if seconds > 20 or peak > MEMORY:
        return f"{seconds:.0f} s, {peak / 1e9:.1f} GB"
    if "Traceback" in out + err:
        return "a traceback"
    if status != 0 and not 0 < len(err.splitlines()) <= 4:
        return "not a sentence"
    if len(err) > 2500:
        return f"{len(err)} letters"
    if not all(c.isprintable() or c in "\n\t" for c in err):
        return "a control character"
    if verb == "translate" and status == 0:
        json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return ""


def assert_harmless(directories: list[Path]) -> None:
    rows = outcomes(directories)
    wrong = [
        f"{Path(row[0]).name} {row[1]}: {why}\n{row[6][:300]}"
        for row in rows
        if (why := complaint(row))
    ]
    assert not wrong, f"{len(wrong)} of {len(rows)}\n" + "\n".join(wrong[:20])
    assert {row[0] for row in rows} == set(map(str, directories))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("good"))


@pytest.mark.slow
def test_the_harness_uses_what_is_harmless(good, tmp_path):
    """Otherwise every refusal could be an accident."""
    directory = tmp_path / "000-good"
    directory.symlink_to(good)
    assert {row[2] for row in outcomes([directory])} == {0}


@pytest.mark.slow
def test_hostile_model_directories(good, tmp_path):
    assert_harmless(make(tmp_path, good, count=208, seed=18))
