"""`score`: log-probabilities that agree with the model's own logits."""

import json
import math
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_transformer.__main__ import main
from mlx_transformer.decoding.translator import Translator, load
from tests.tiny_directory import write_model

PAIRS = [
    ("five hundred and one", "fünfhunderteins"),
    ("seven", "sieben"),
    ("", ""),
    ("six", "acht"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), seed=3)


def log_probability(translator: Translator, source: str, target: str) -> tuple[float, int]:
    """Token by token over the softmax, unbatched"""
    tokenizer = translator.tokenizer
    expected = [*tokenizer.encode_target(target), 2]
    source_ids = mx.array([[*tokenizer.encode_source(source), 2]])
    p = mx.softmax(translator.model(source_ids, mx.array([[1, *expected[:-1]]]))[0], axis=-1)
    return sum(math.log(p[i, word].item()) for i, word in enumerate(expected)), len(expected)


def test_files(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, texts in zip(("source", "target"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    files = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    assert main(["score", "--model", str(model), *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    translator = load(model)
    expected = [log_probability(translator, *pair) for pair in PAIRS]
    for pair, (logp, tokens) in zip(found["pairs"], expected, strict=True):
        assert pair["logp"] == pytest.approx(logp, rel=1e-5)
        assert pair["tokens"] == tokens
        assert pair["perplexity"] == pytest.approx(math.exp(-logp / tokens), rel=1e-5)
    total, tokens = (sum(column) for column in zip(*expected, strict=True))
    assert found["total"]["logp"] == pytest.approx(total, rel=1e-5)
    assert found["total"]["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-5)


def test_a_pair(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--model", str(model), *PAIRS[0]]) == 0
    line, total = capsys.readouterr().out.splitlines()
    logp, tokens = log_probability(load(model), *PAIRS[0])
    assert float(line.split("\t")[0]) == pytest.approx(logp, abs=1e-3)
    assert line.split("\t")[1] == str(tokens)
    assert line.endswith("\tfünfhunderteins")
    assert total.endswith("\ttotal of 1")


def test_mistakes_are_one_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no").write_text("")
    (tmp_path / "one").write_text("one\n")
    (tmp_path / "two").write_text("one\ntwo\n")
    files = ["--source", str(tmp_path / "one"), "--target", str(tmp_path / "two")]
    for arguments, said in (
        (["five"], "give a text and its translation"),
        (files, "has 1 lines and"),
        (["--source", str(tmp_path / "no"), "--target", str(tmp_path / "no")], "no is empty"),
        (["--source", "-", "--target", "-"], "standard input can be only one of the two"),
        ([" ".join(["seven"] * 80), "sieben"], "more than the model's 64"),
    ):
        assert main(["score", "--model", str(model), *arguments]) == 2
        assert said in capsys.readouterr().err
