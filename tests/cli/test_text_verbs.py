"""`complete`, `embed`, `fill`, and `score` of texts."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlx_transformer import load_completer, load_text_encoder
from mlx_transformer.__main__ import main
from tests.cli.terminal import Terminal
from tests.tiny_directory import write_half

LINES = ["five hundred", "zwei", "one hundred and seven thousand"]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_half(tmp_path_factory.mktemp("gpt"), "decoder")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_half(tmp_path_factory.mktemp("bert"), "encoder", word_head="transform")


@pytest.fixture
def lines(tmp_path: Path) -> str:
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    return str(tmp_path / "lines.txt")


def said(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main([str(arg) for arg in args]) == 0
    return capsys.readouterr().out


def test_complete(gpt: Path, lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    completer = load_completer(gpt)
    options = ["--beam", 1, "--max-tokens", 9]
    expected = completer.complete(LINES, beam=1, max_tokens=9)
    texts = [each.prompt + each.text for each in expected]
    assert said(capsys, "complete", "--model", gpt, LINES[0], *options) == texts[0] + "\n"
    out = said(capsys, "complete", "--model", gpt, "--input", lines, *options)
    assert out.splitlines() == texts
    out = said(capsys, "complete", "--model", gpt, LINES[1], "--json", *options)
    assert json.loads(out)["text"] == expected[1].text
    out = said(capsys, "complete", "--model", gpt, "seven", "--nbest", 2)
    assert len(out.splitlines()) == 2 and out.startswith("0 ||| seven")


@pytest.mark.slow
def test_complete_at_a_prompt(gpt: Path, tmp_path: Path) -> None:
    completer = load_completer(gpt)
    found = completer.complete("seven", max_tokens=9, beam=2, nbest=2)
    calls = ("complete", "--model", str(gpt), "--max-tokens", "9", "--beam", "1")
    terminal = Terminal(*calls, state=tmp_path)
    assert "Type how a text begins, or :help" in terminal.wait_for(Terminal.PROMPT)
    greedy = completer.complete("seven", max_tokens=9, beam=1).text
    assert terminal.answer("seven") == f"seven{greedy}".strip()
    said = terminal.answer(":help")
    assert ":beam N" in said and ":reverse" not in said
    assert terminal.answer(":nbest 2") == "nbest 2, beam 2"
    listed = [line.strip() for line in terminal.answer("seven").splitlines()]
    assert listed == [f"{e.score:.3f}  seven{e.text}" for e in [found, *found.alternatives]]
    assert terminal.answer(":nbest 1") == "nbest 1, beam 1"
    assert terminal.answer(":time") == "time on"
    assert "tokens/s" in terminal.answer("seven")
    assert "there is no command :bea; did you mean ':beam'?" in terminal.answer(":bea 3")
    assert terminal.answer(":sample") == "sample on"
    assert terminal.answer("seven") != terminal.answer("seven")
    terminal.type(":quit\r")
    assert terminal.process.wait(timeout=60) == 0


def test_scores_of_texts(gpt: Path, lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    scores = load_completer(gpt).score(LINES)
    out = json.loads(said(capsys, "score", "--model", gpt, "--source", lines, "--json"))
    assert [each["logp"] for each in out["texts"]] == pytest.approx([s.logp for s in scores])
    out = said(capsys, "score", "--model", gpt, LINES[0]).splitlines()
    assert out[0].startswith(f"{scores[0].logp:.3f}"[:-1]) and out[0].endswith(LINES[0])


def test_embed(bert: Path, lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = load_text_encoder(bert).embed(LINES)
    out = said(capsys, "embed", "--model", bert, *LINES)
    found = [list(map(float, line.split())) for line in out.splitlines()]
    np.testing.assert_allclose(found, vectors, rtol=1e-5)
    said(capsys, "embed", "--model", bert, "--input", lines, "--output", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), vectors, rtol=1e-5)
    out = said(capsys, "embed", "--model", bert, "--compare", LINES[0], LINES[0], LINES[1])
    cosines = [float(line.split("\t")[0]) for line in out.splitlines()]
    assert cosines[0] == 1 and cosines[1] < 1
    (row,) = map(json.loads, said(capsys, "embed", "--model", bert, "zwei", "--json").splitlines())
    np.testing.assert_allclose(row["vector"], vectors[1], rtol=1e-5, atol=1e-6)


def test_fill(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (gap,) = load_text_encoder(bert).fill("seven <mask>", 2)
    out = said(capsys, "fill", "--model", bert, "seven <mask>", "--nbest", 2)
    assert out.splitlines() == [f"{g.probability:.4f}\t{g.word}\t{g.text}" for g in gap]
    out = said(capsys, "fill", "--model", bert, "seven <mask>", "--nbest", 1)
    assert out == gap[0].text + "\n"
    out = said(capsys, "fill", "--model", bert, "<mask> and <mask>", "--json")
    assert len(json.loads(out)["gaps"]) == 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["complete", "a", "--input", "b"], "give a text or --input FILE, not both"),
        (["complete", "--input", "nowhere"], "no file nowhere"),
        (["embed", "a", "--compare"], "--compare needs two texts"),
        (["embed", "a", "--output", "a.txt"], "must end in .npy"),
        (["fill"], "give a text with <mask> in it, or --input FILE"),
        (["fill", "a <mask>", "--nbest", "0"], "--nbest must be at least 1"),
    ],
)
def test_a_wrong_call_is_a_sentence(
    args: list[str], sentence: str, gpt: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gpt if args[0] == "complete" else bert
    assert main([*args, "--model", str(model)]) == 2
    assert sentence in capsys.readouterr().err
