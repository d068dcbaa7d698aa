"""The tool that looks for test sentences in training text."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "overlap.py"


def overlap(train: Path, test: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--train", str(train), "--test", str(test)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_copied_sentence_is_found_whatever_its_case_and_punctuation(tmp_path):
    train, test = tmp_path / "train.en", tmp_path / "test.en"
    train.write_text("Good morning!\nHow are you\nIt rains.\n")
    test.write_text("HOW ARE YOU?\nIt snows.\n\n...\n")
    done = overlap(train, test)
    assert done.returncode == 1
    assert "1 of its sentences" in done.stdout and "how are you" in done.stdout


def test_text_of_its_own_is_clean(tmp_path):
    train, test = tmp_path / "train.en", tmp_path / "test.en"
    train.write_text("How are you\n")
    test.write_text("How are they\n")
    done = overlap(train, test)
    assert done.returncode == 0 and "0 of its sentences" in done.stdout
