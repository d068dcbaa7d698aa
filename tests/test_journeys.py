"""The two journeys of docs/architecture.md, walked: the page names every file on the way, and no
way leads back into a file already left.
"""

import re
from pathlib import Path

import pytest

from mlx_transformer import device, load
from mlx_transformer.__main__ import main
from tests.journeys import Walk, walking
from tests.tiny_directory import write_model
from tests.training.tasks import overrides, tiny_task

ROOT = Path(__file__).parents[1]


def unnamed(walk: Walk, title: str) -> list[str]:
    """Files that were passed and that the section of this title does not name."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", section)
    return sorted(file for file in walk.functions if not file.startswith(tuple(named)))


def test_a_sentence_to_its_translation(tmp_path):
    translator = load(write_model(tmp_path))
    walk = Walk()
    with walking(walk):
        translator.translate("two hundred")
    assert unnamed(walk, "A sentence to its translation") == []
    assert walk.back == []


@pytest.mark.slow
def test_a_batch_to_its_update(tmp_path, monkeypatch):
    from mlx_transformer.training.trainer import TrainStep

    walk = Walk()
    update = TrainStep.__call__

    def walked(*args):
        with walking(walk):
            return update(*args)

    monkeypatch.setattr(TrainStep, "__call__", walked)
    recipe = tiny_task(tmp_path / "task")
    one = overrides(training_max_steps=1, validation_sentences=0)
    with device.uncompiled():
        assert main(["train", str(recipe), "--out", str(tmp_path / "run"), *one]) == 0
    assert unnamed(walk, "A batch to its update") == []
    assert walk.back == []
