"""The two journeys of docs/architecture.md, walked: the page names every file on the way, and no
way leads back into a file already left.
"""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from mlx_transformer import device, load
from mlx_transformer.__main__ import main
from tests.tiny_directory import write_model
from tests.training.tasks import overrides, tiny_task

ROOT = Path(__file__).parents[1]
PACKAGE = f"{ROOT / 'mlx_transformer'}/"
# They run what they are given: part of the caller's way, not a place on it.
COMBINATORS = ("by_rows", "by_parts")
# Texts are read when the search has room for them, by the generator that it was given.
READING = "Translator.each.<locals>.sentences"


class Walk:
    """Which files of the package are passed, and the calls back into one that was left."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.back: list[str] = []
        self._threads = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_qualname in COMBINATORS:
            return
        way: list[tuple[FrameType, str]] = self._threads.__dict__.setdefault("way", [])
        file = code.co_filename.removeprefix(PACKAGE)
        if event == "call":
            self.files.add(file)
            files = [passed for _, passed in way]
            if file in files and file != files[-1] and code.co_qualname != READING:
                self.back.append(f"{' -> '.join(files)} -> {file}:{code.co_qualname}")
            way.append((frame, file))
        elif event == "return" and way and way[-1][0] is frame:
            way.pop()


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    before = sys.getprofile()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def unnamed(walk: Walk, title: str) -> list[str]:
    """Files that were passed and that the section of this title does not name."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", section)
    return sorted(file for file in walk.files if not file.startswith(tuple(named)))


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
