"""What `make demo` shows."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_sentence_stands_above_its_translation() -> None:
    shown = subprocess.run(
        [sys.executable, "tools/demo.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.startswith("Good morning.\n    Guten Morgen")
    assert len(shown.splitlines()) == 6


def test_make_demo_ends_with_how_to_get_the_command() -> None:
    """Read, not run: it would install."""
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0]
    assert "source .venv/bin/activate" in recipe.splitlines()[-1]
