"""What reaches a terminal, a pipe and a closed stream: no control character, always a sentence."""

import json
import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlx_transformer.__main__ import main
from mlx_transformer.cli import output
from mlx_transformer.inputs.printable import printable, shown, without_controls
from tests.tiny_directory import write_model

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def test_control_characters_are_written_out():
    assert printable("a\x1b[2J\x9b\u202e\u2028b") == r"a\x1b[2J\x9b\u202e\u2028b"
    assert printable("Straße, 東京\u3000。") == "Straße, 東京\u3000。"
    assert shown(EVIL * 100).isprintable() and len(shown(EVIL * 100)) <= 80
    assert without_controls("a\x1b[2J\x9bb\tc\nd\u200de") == "a[2Jb\tc\nd\u200de"


def test_json_is_valid_whatever_the_numbers():
    text = output.to_json({"a": [float("nan"), (1.5, float("-inf"))], "b": {"c": float("inf")}})
    values = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert values == {"a": [None, [1.5, None]], "b": {"c": None}}


def on_a_terminal(code: str) -> bytes:
    """What a program writes to stdout and stderr where both are a terminal."""
    screen, inside = pty.openpty()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "MLX_TRANSFORMER_BLAS": "off"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=inside, stderr=inside, env=environment
    )
    os.close(inside)
    seen = b""
    try:
        while block := os.read(screen, 65536):
            seen += block
    except OSError:  # how Linux reports that the other side is closed
        pass
    process.wait()
    return seen


def test_a_terminal_sees_no_control_character():
    code = f"from mlx_transformer.cli.output import note, show, tell\nevil = {EVIL!r}\n"
    seen = on_a_terminal(code + "show(evil + 'one'); note(evil + 'two'); tell(evil + 'three')")
    text = seen.decode().replace("\r\n", "\n")
    assert all(word in text for word in ("one", "two", "three"))
    assert not [c for c in text if not c.isprintable() and c not in "\n\r\u202e"]


def test_a_pipe_gets_translations_as_they_are(capsys):
    output.show("a\x1bb")
    assert capsys.readouterr().out == "a\x1bb\n"


def test_lists_and_messages_are_escaped_into_a_pipe_too(tmp_path, capsys):
    save_file({EVIL: np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    assert main(["convert", str(tmp_path / "a.safetensors"), "--list"]) == 0
    shown = capsys.readouterr()
    assert r"\x1b]0;owned\x07" in shown.out
    assert all(c.isprintable() or c == "\n" for c in shown.out + shown.err)
    assert main(["info", EVIL]) == 2
    assert all(c.isprintable() or c == "\n" for c in capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a translation reached its length limit")
@pytest.mark.parametrize("name", ["a.svg", "a.html"])
def test_pictures_hold_no_control_character(tmp_path, name):
    directory = write_model(tmp_path)
    out = tmp_path / name
    text = "seven\x1b[2J\x07 eight"
    assert main(["attention", text, "--model", str(directory), "--out", str(out)]) == 0
    drawn = out.read_text(encoding="utf-8")
    assert all(c.isprintable() or c in "\n\t" for c in drawn)
    if name.endswith("svg"):
        ET.fromstring(drawn)


def run(tmp_path: Path, redirection: str, *args: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "MLX_TRANSFORMER_BLAS": "off"}
    command = f'"$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "mlx_transformer", *args],
        capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "args", "sentence"),
    [
        (">&-", ["info", "tiny"], "standard output is closed"),
        ("<&-", ["translate"], "standard input is closed"),
        (">/dev/full", ["info", "tiny"], "No space left on device: standard output"),
        ("", ["translate", "--output", "/dev/full", ""], "device: /dev/full"),
    ],
)
def test_a_stream_that_is_closed_or_full_is_a_sentence(tmp_path, redirection, args, sentence):
    result = run(tmp_path, redirection, *args)
    assert result.returncode in (1, 2)
    (line,) = result.stderr.splitlines()
    assert sentence in line


def test_without_stderr_the_result_is_there_all_the_same(tmp_path):
    result = run(tmp_path, "2>&-", "info", "tiny", "--json")
    assert result.returncode == 0 and json.loads(result.stdout)["config"]["d_model"] == 64
    failed = run(tmp_path, "2>&-", "info", "nothing")
    assert failed.returncode == 2 and failed.stdout == ""  # the error is not taken for the result
