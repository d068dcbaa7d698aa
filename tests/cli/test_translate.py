"""`translate`: texts, files, pipes and everything that must not break it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlx_transformer.__main__ import main
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.translator import Translator, load
from tests.cli.terminal import Terminal
from tests.decoding.random_models import ending_model
from tests.tiny_directory import write_model

LINES = ["five hundred and one", "", "seven. Eight thousand!", "   ", "twelve"]
NASTY = [
    b"",
    b" \t",
    b"one " * 3000,
    "👩‍👩‍👧 🎉".encode(),
    b"\x01\x02 five \x1b[31m\x7f",
    "\u202e שלום شكرا".encode(),
    b"one\x00two",
    b"\xff\xfe\xfa five \xc3",
    "ᚠᛇᚻ ᛒᛦᚦ".encode(),
    "one\u2028two\x85three\x0bfour".encode(),
    b"six\r",
    b"last line, no end",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), make=ending_model, length=6)


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return load(model)


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_text(model: Path, translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    text = "five hundred. Twenty!\n\nsix"
    assert main(["translate", "--model", str(model), "--beam", "2", text]) == 0
    expected = translator.translate(text, SearchOptions(beam=2)).text
    assert capsys.readouterr().out == expected + "\n"


def test_a_pipe_is_line_in_line_out(
    model: Path,
    translator: Translator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipe(monkeypatch, "\n".join(LINES).encode())
    assert main(["translate", "--model", str(model)]) == 0
    expected = [found.text for found in translator.translate(LINES)]
    shown = capsys.readouterr()
    assert shown.out.split("\n") == [*expected, ""]
    assert expected[0] and not expected[1] and not expected[3]
    assert "5 sentences" in shown.err.splitlines()[-1]
    assert "tokens/s, peak memory" in shown.err.splitlines()[-1]


def test_files(model: Path, translator: Translator, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\ufeff" + "\r\n".join(LINES) + "\r\n", encoding="utf-8", newline="")
    arguments = ["--input", str(source), "--output", str(target), "--beam", "1"]
    assert main(["translate", "--model", str(model), *arguments]) == 0
    expected = [found.text for found in translator.translate(LINES, SearchOptions(beam=1))]
    assert target.read_text(encoding="utf-8").split("\n") == [*expected, ""]


def test_nasty_lines_are_lines(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, b"\n".join(NASTY))
    assert main(["translate", "--model", str(model), "--max-tokens", "5"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.split("\n")) == len(NASTY) + 1
    assert "1 line was not UTF-8" in shown.err
    assert "and was translated in parts" in shown.err
    assert "Traceback" not in shown.err


def test_no_input_no_output(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, b"")
    assert main(["translate", "--model", str(model)]) == 0
    assert capsys.readouterr().out == ""


def test_json_has_scores_and_alignment(
    model: Path, translator: Translator, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "five hundred and one"
    assert main(["translate", "--model", str(model), "--json", "--nbest", "2", text]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = translator.translate(text, SearchOptions(nbest=2), attention=True)
    assert found["source"] == text
    assert found["translation"] == expected.text == found["nbest"][0]["translation"]
    assert found["score"] == pytest.approx(expected.score)
    assert found["nbest"][1]["translation"] == expected.alternatives[0].text
    assert [tuple(link) for link in found["alignment"]] == expected.alignment
    assert found["tokens"] == expected.tokens


def test_nbest_lists_number_their_lines(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, b"one\ntwo\n")
    assert main(["translate", "--model", str(model), "--nbest", "6", "--max-tokens", "6"]) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [number for number, _, _ in rows] == ["0"] * 6 + ["1"] * 6
    scores = [float(score) for _, _, score in rows]
    assert scores[:6] == sorted(scores[:6], reverse=True)


def test_sampling_repeats_with_its_seed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []
    for seed in ("1", "1", "2"):
        arguments = ["--sample", "--temperature", "2", "--top-k", "50", "--seed", seed]
        assert main(["translate", "--model", str(model), *arguments, "five hundred"]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--beam", "0", "x"], 2, "beam must be from 1 to 1,000"),
        (["--top-k", "3", "x"], 2, "--top-k is for sampling: add --sample"),
        (["--nbest", "4", "--beam", "2", "x"], 2, "nbest 4 needs a beam at least as wide"),
        (["--input", "/nowhere/x"], 2, "no file /nowhere/x"),
        (["--input", "/etc/hostname", "x"], 2, "give a text or --input FILE, not both"),
        (["--input", "/etc/hostname", "--output", "/etc/hostname"], 2, "is the input"),
        (["--output", "/nowhere/x", "x"], 1, "No such file or directory: /nowhere/x"),
        (["--input", "/etc"], 2, "/etc is a folder: name a text file in it"),
    ],
)
def test_mistakes_are_one_sentence(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    assert main(["translate", "--model", str(model), *arguments]) == status
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_a_directory_without_model_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", "--model", str(tmp_path), "x"]) == 2
    assert "is not a model directory" in capsys.readouterr().err


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mlx_transformer", "translate", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_ctrl_c_leaves_the_finished_lines(
    model: Path, translator: Translator, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    lines = [f"{number} hundred and one" for number in range(20_000)]
    source.write_text("\n".join(lines))
    process = start("--model", str(model), "--input", str(source), "--output", str(target))
    end = time.monotonic() + 60
    while not (target.exists() and target.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in said and b"Traceback" not in said
    written = target.read_text().split("\n")
    assert written.pop() == ""  # the last line is whole
    assert 0 < len(written) < len(lines)
    some = [0, len(written) // 2, len(written) - 1]
    assert [written[i] for i in some] == [translator.translate(lines[i]).text for i in some]


@pytest.mark.slow
def test_a_pipe_is_answered_before_it_ends(model: Path) -> None:
    process = start("--model", str(model))
    assert process.stdin is not None and process.stdout is not None
    for _ in range(2):
        process.stdin.write(b"five hundred\n")
        process.stdin.flush()
        assert process.stdout.readline()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.slow
def test_output_is_utf8_whatever_the_locale(model: Path) -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mlx_transformer",
            "translate",
            "--model",
            str(model),
            "--json",
            "ü",
        ],
        capture_output=True,
        env=environment,
        check=True,
    )
    assert json.loads(done.stdout.decode("utf-8"))["source"] == "ü"


@pytest.mark.slow
def test_on_a_terminal_no_bar_comes_between_the_lines(
    model: Path, translator: Translator, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n", encoding="utf-8")
    terminal = Terminal(
        "translate", "--model", str(model), "--input", str(tmp_path / "in.txt"), state=tmp_path
    )
    shown = terminal.wait_for("2 sentences")
    terminal.close()
    expected = [found.text for found in translator.translate(["one", "two"])]
    assert "\n".join(expected) in shown
    assert "lines" not in shown and "it/s" not in shown


def test_a_prefix_a_least_length_and_an_ngram_block_can_be_typed(
    model: Path, translator: Translator, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "five hundred and one"
    flags = ["--prefix", "drei", "--min-tokens", "9", "--no-repeat-ngram", "2"]
    assert main(["translate", "--model", str(model), *flags, "--max-tokens", "12", text]) == 0
    options = SearchOptions(min_tokens=9, no_repeat_ngram=2, max_tokens=12)
    expected = translator.translate(text, options, prefix="drei").text
    assert capsys.readouterr().out == expected + "\n"
    assert expected.startswith("drei")
    assert expected != translator.translate(text, max_tokens=12).text
