"""Models found by their languages, where programs keep theirs."""

import json
from pathlib import Path

import pytest

from mlx_transformer import hub
from mlx_transformer.storage import default_model


def test_models_are_found_by_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ARGOS_PACKAGES_DIR", raising=False)
    argos = tmp_path / "data" / "argos-translate" / "packages" / "translate-zh_en-1_9"
    firefox = tmp_path / "cache" / "fxtranslate" / "models" / "en-pt"
    for folder in (argos, firefox):
        folder.mkdir(parents=True)
    (argos / "metadata.json").write_text(json.dumps({"from_code": "zh", "to_code": "en"}))
    assert hub.find("zh", "en") == hub.find("Chinese", "English") == argos
    assert hub.find("en", "Portuguese") == firefox
    assert hub.find("en", "de") == default_model()
    assert hub.find("pt", "en") is None
