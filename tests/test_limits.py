"""Bounds: what would take for ever, or all memory, is a sentence or costs nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlx_transformer.__main__ import main
from mlx_transformer.decoding.translator import load
from tests.tiny_directory import write_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def test_empty_lines_reach_neither_the_tokenizer_nor_the_model(directory, monkeypatch):
    translator = load(directory)
    monkeypatch.setattr(translator.tokenizer.source, "encode", lambda _: pytest.fail("encoded"))
    found = list(translator.each(["", "  ", "\t", "\n"] * 50))
    assert [each.text for each in found] == ["", "", "", "\n"] * 50


def test_utf_16_is_a_sentence(directory, tmp_path, capsys):
    (tmp_path / "text").write_text("seven\n", encoding="utf-16")
    call = ["translate", "--model", str(directory), "--input", str(tmp_path / "text")]
    assert main(call) == 2
    assert f"{tmp_path / 'text'} is UTF-16: make it UTF-8" in capsys.readouterr().err


def test_a_runaway_regular_expression_is_stopped(tmp_path, capsys):
    save_file({"a" * 60: np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    start = time.process_time()
    call = ["convert", str(tmp_path / "a.safetensors"), "--list", "--rename", "(a+)+b=c"]
    main(call)
    said = capsys.readouterr().err
    assert "takes more than 2 seconds" in said and "--rename" in said
    assert time.process_time() - start < 60


@pytest.mark.filterwarnings("ignore")
def test_a_long_line_is_told_and_cut_into_parts(directory, capsys):
    call = ["translate", "x" * 20_000, "--model", str(directory), "--max-tokens", "1"]
    assert main([*call, "--beam", "1"]) == 0
    said = capsys.readouterr().err
    assert "a line of 20,000 letters takes a while: xxx" in said
    assert "translated in parts" in said


@pytest.mark.slow
def test_a_full_disk_names_the_file(directory, tmp_path):
    """A limit on the size of files stands for the full disk."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "MLX_TRANSFORMER_BLAS": "off"}
    out = tmp_path / "out.html"
    code = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from mlx_transformer.__main__ import main\nsys.exit(main())"
    )
    arguments = ["attention", "seven", "--model", str(directory), "--out", str(out)]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 1
    assert str(out) in result.stderr.splitlines()[-1]
