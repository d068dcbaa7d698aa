"""Directories are there as a whole or not at all, whatever happens while they are written."""

import errno
from pathlib import Path

import pytest

from mlx_transformer.errors import RunError
from mlx_transformer.storage import built_aside, replace_text


def build(target: Path, text: str) -> None:
    with built_aside(target) as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "a").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_save_keeps_what_was_there(tmp_path):
    target = tmp_path / "best"
    build(target, "first")
    full = pytest.raises(RunError, match=r"could not save .*best: No space left on device")
    with full, built_aside(target) as aside:
        (aside / "a").write_text("second")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (target / "inner" / "a").read_text() == "first"
    assert names(tmp_path) == ["best"]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "elsewhere" / "corpus"
    with pytest.raises(FileNotFoundError), built_aside(tmp_path / "here" / "best"):
        missing.read_text()
    assert names(tmp_path / "here") == []


def test_what_a_killed_process_left_is_not_in_the_way(tmp_path):
    (tmp_path / ".best.partial").mkdir()
    (tmp_path / ".best.partial" / "rest").write_text("half")
    for text in ("first", "second"):
        build(tmp_path / "best", text)
    assert names(tmp_path) == ["best"]
    assert names(tmp_path / "best") == ["inner"]
    assert (tmp_path / "best" / "inner" / "a").read_text() == "second"


def test_killed_between_the_renames_the_old_one_comes_back(tmp_path):
    target = tmp_path / "best"
    build(target, "first")
    target.rename(tmp_path / ".best.old")
    with pytest.raises(KeyboardInterrupt), built_aside(target):
        raise KeyboardInterrupt
    assert (target / "inner" / "a").read_text() == "first"


def test_the_current_directory_can_be_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    monkeypatch.chdir("here")
    build(Path(), "text")
    assert (tmp_path / "here" / "inner" / "a").read_text() == "text"


def test_a_file_is_replaced_at_once(tmp_path):
    path = tmp_path / "run.toml"
    for text in ("first", "zweite, länger"):
        replace_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["run.toml"]
