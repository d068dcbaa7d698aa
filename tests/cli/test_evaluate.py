"""`evaluate` agrees with sacrebleu and counts exact matches, for a model and for a file."""

import json
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER

from mlx_transformer.__main__ import main
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.translator import load
from tests.decoding.random_models import ending_model
from tests.tiny_directory import write_model

SOURCES = ["five hundred and one", "seven", "", "twelve thousand"]
REFERENCES = ["fünfhunderteins", "sieben", "", "zwölftausend und mehr"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (tmp_path / "reference").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    return tmp_path


def expected(hypotheses: list[str]) -> dict[str, object]:
    results: dict[str, object] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())):
        results[name] = pytest.approx(metric.corpus_score(hypotheses, [REFERENCES]).score)
        results[name + "_signature"] = str(metric.get_signature())
    right = [a == b for a, b in zip(hypotheses, REFERENCES, strict=True)].count(True)
    return results | {"exact": pytest.approx(25 * right), "exact_signature": f"{right} of 4"}


def test_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model").mkdir()
    model = write_model(folder / "model", make=ending_model, length=6)
    files = ["--source", str(folder / "source"), "--reference", str(folder / "reference")]
    arguments = [*files, "--model", str(model), "--beam", "2", "--json"]
    assert main(["evaluate", *arguments]) == 0
    results = json.loads(capsys.readouterr().out)
    translations = load(model).translate(SOURCES, SearchOptions(beam=2))
    assert results.pop("seconds") > 0
    assert results.pop("sentences") == 4
    assert results == expected([found.text for found in translations])


def test_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hypotheses = ["fünfhunderteins", "acht", "", "zwölftausend und weniger"]
    (folder / "mine").write_text("\n".join(hypotheses), encoding="utf-8")
    files = ["--hypothesis", str(folder / "mine"), "--reference", str(folder / "reference")]
    assert main(["evaluate", *files]) == 0
    right = expected(hypotheses)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["BLEU", "chrF2", "TER", "exact"]
    for line, name in zip(shown, ("bleu", "chrf", "ter", "exact"), strict=True):
        assert float(line.split()[1]) == pytest.approx(right[name].expected, abs=0.005)  # type: ignore[attr-defined]
        assert line.split(maxsplit=2)[2] == right[name + "_signature"]


def test_mistakes_are_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "short").write_text("one\n")
    reference = ["--reference", str(folder / "reference")]
    for arguments, said in (
        (reference, "give either --source FILE to translate, or --hypothesis FILE"),
        (["--reference", "-", "--source", "-"], "standard input can be only one of the two"),
        ([*reference, "--hypothesis", str(folder / "short")], "has 1 lines and"),
    ):
        assert main(["evaluate", *arguments]) == 2
        assert said in capsys.readouterr().err
