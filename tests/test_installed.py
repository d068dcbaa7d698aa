"""Models found by their languages, where programs keep theirs; one, or two in a row."""

import json
import zipfile
from pathlib import Path

import pytest

from mlx_transformer import InputError, Pivot, Translator, load
from mlx_transformer.__main__ import main
from mlx_transformer.decoding.translator import Translation
from mlx_transformer.installed import installed, route
from mlx_transformer.storage import default_model, shipped_models
from tests.decoding.random_models import ending_model
from tests.tiny_directory import write_model

TEXTS = ["five hundred and one", "", "two"]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without models but the one that ships; returns the user's own folder of models."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLX_TRANSFORMER_MODELS", str(tmp_path / "own"))
    monkeypatch.delenv("ARGOS_PACKAGES_DIR", raising=False)
    return tmp_path / "own"


@pytest.fixture
def models(machine: Path) -> Path:
    """Random models from French to English and from English to Italian"""
    for seed, name in enumerate(("fr-en", "en-it", "it-pl", "fr-es", "es-it")):
        (machine / name).mkdir(parents=True)
        write_model(machine / name, seed, make=ending_model, length=6)
    return machine


def touch(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path.parent


def found(source: str, target: str) -> list[Path]:
    return [leg.model.path for leg in route(source, target)]


def test_models_are_found_by_language(tmp_path: Path, machine: Path) -> None:
    argos = tmp_path / "data" / "argos-translate" / "packages" / "translate-zh_en-1_9"
    said = json.dumps({"from_code": "zh", "to_code": "en"})
    touch(argos / "metadata.json", said)
    touch(argos / "model" / "model.bin")
    firefox = touch(tmp_path / "cache" / "fxtranslate" / "models" / "en-pt" / "model.enpt.bin")
    unnamed = touch(machine / "mine" / "model.csen.bin")  # as Firefox names its files
    package = machine / "anything.argosmodel"
    with zipfile.ZipFile(package, "w") as file:
        file.writestr("translate/metadata.json", said.replace("zh", "ja"))
    touch(machine / "notes-en-fr" / "notes.txt")
    touch(machine / "damaged.argosmodel", "not a zip")
    assert found("zh", "en") == found("Chinese", "English") == [argos]
    assert found("en", "Portuguese") == [firefox]
    assert found("en", "de") == [default_model()]
    assert [leg.model.path for leg in route(None, "pt")] == [firefox]
    assert found("cs", "en") == [unnamed]
    assert found("ja", "en") == [package]
    assert found("ja", "German") == [package, default_model()]
    assert found("pt", "en") == found("en", "fr") == found("ja", "fr") == []
    assert len(list(installed())) == 4 + len(shipped_models())


def test_models_lists_them_with_their_languages(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = touch(machine / "mine" / "model.csen.bin")
    assert main(["models"]) == 0
    rows_shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [str(folder), "0.0", "MB", str(machine), "cs", "to", "en"] in rows_shown
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows[str(folder)]["sources"] == ["cs"] and rows[str(folder)]["targets"] == ["en"]
    assert rows[default_model().name]["targets"] == ["de"]


def in_turn(models: Path, *names: str) -> list[Translation]:
    """What the models write one after the other"""
    texts = TEXTS
    for name in names:
        translations = load(models / name).translate(texts, beam=2)
        texts = [translation.text for translation in translations]
    return translations


def test_two_models_in_a_row(models: Path) -> None:
    """English comes before Spanish, though both are ways."""
    with pytest.warns(UserWarning, match="by way of English"):
        pivot = load(source="French", target="it")
    assert isinstance(pivot, Pivot)
    expected = in_turn(models, "fr-en", "en-it")
    results = pivot.translate(TEXTS, beam=2, attention=True)
    assert [r.text for r in results] == [e.text for e in expected]
    assert [r.score for r in results] == [e.score for e in expected]
    assert len({r.text for r in results}) == 3
    assert "".join(pivot.stream(TEXTS[0], beam=2)) == expected[0].text
    first = load(models / "fr-en").translate(TEXTS[0], beam=2, attention=True)
    second = load(models / "en-it").translate(first.text, beam=2, attention=True)
    assert results[0].source_tokens == first.source_tokens
    assert first.alignment and second.alignment and results[0].alignment is not None
    for source, target in results[0].alignment:
        assert any((source, m) in first.alignment for m, t in second.alignment if t == target)
    assert isinstance(load(source="it", target="pl"), Translator)
    with pytest.raises(InputError, match="no model on this machine translates from fr to pl"):
        load(source="fr", target="pl")  # that would take three


def test_translate_goes_through_two(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    languages = ["--from", "fr", "--to", "it"]
    assert main(["translate", *languages, "--beam", "2", TEXTS[0]]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == in_turn(models, "fr-en", "en-it")[0].text
    assert f"by way of English, with {models / 'fr-en'} and then {models / 'en-it'}" in said.err
    assert main(["translate", *languages, "--reverse", "x"]) == 2
    assert "no model on this machine translates from it to fr" in capsys.readouterr().err
    assert main(["score", *languages, "x", "y"]) == 2
    assert "two models in a row" in capsys.readouterr().err
