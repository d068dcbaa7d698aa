"""An installation with a model for each direction: every way to ask for one finds the right one."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mlx_transformer.decoding.translator import load
from tests.cli.terminal import Terminal
from tests.decoding.random_models import ending_model
from tests.serve.running import running
from tests.tiny_directory import write_model

PACKAGE = Path(__file__).parents[1] / "mlx_transformer"
TEXT = "five hundred and one"
DIRECTIONS = ("en-de", "de-en")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with small models in the place of those that ship."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(
        PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("weights", "__pycache__")
    )
    for seed, name in enumerate(DIRECTIONS):
        place = folder / PACKAGE.name / "weights" / name
        place.mkdir(parents=True)
        write_model(place, seed, make=ending_model, length=6)
    return folder


@pytest.fixture(scope="module")
def wanted(installation: Path) -> dict[str, str]:
    """What each of the two makes of the text."""
    weights = installation / PACKAGE.name / "weights"
    found = {name: load(weights / name).translate(TEXT).text for name in DIRECTIONS}
    assert found["en-de"] != found["de-en"]
    return found


@pytest.fixture
def elsewhere(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Commands started from a folder that is no checkout use the installation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(installation))
    yield


def command(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "mlx_transformer", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    ("flags", "direction"),
    [
        ([], "en-de"),
        (["--from", "de", "--to", "en"], "de-en"),
        (["--to", "English"], "de-en"),
        (["--from", "German"], "de-en"),
        (["--to", "de"], "en-de"),
        (["--reverse"], "de-en"),
        (["--from", "de", "--to", "en", "--reverse"], "en-de"),
        (["--model", "de-en"], "de-en"),
        (["--model", "de-en", "--reverse"], "en-de"),
    ],
)
def test_translate_finds_the_direction(elsewhere, wanted, flags, direction):
    assert command("translate", *flags, TEXT).strip() == wanted[direction]


def test_models_lists_them(elsewhere):
    listed = [line.split() for line in command("models").splitlines()[:2]]  # the cache follows
    assert [(row[0], " ".join(row[-3:])) for row in listed] == [
        ("en-de", "en to de"),
        ("de-en", "de to en"),
    ]


def test_serve_offers_both_directions(elsewhere, wanted):
    with running() as server:
        languages = httpx.get(f"{server.address}/languages", trust_env=False).json()
        assert {each["code"]: each["targets"] for each in languages} == {
            "de": ["de", "en"],
            "en": ["de", "en"],
        }
        for name in DIRECTIONS:
            source, target = name.split("-")
            answer = server.translate(TEXT, source=source, target=target).json()
            assert answer == {"translatedText": wanted[name]}


@pytest.mark.slow
def test_the_prompt_turns_round(elsewhere, wanted, tmp_path):
    prompt = Terminal("translate", "--from", "de", "--to", "en", state=tmp_path)
    assert "de-en: type a text" in prompt.wait_for(Terminal.PROMPT)
    assert prompt.answer(TEXT).splitlines()[0] == wanted["de-en"]
    assert prompt.answer(":reverse").endswith("en-de")
    assert prompt.answer(TEXT).splitlines()[0] == wanted["en-de"]
    assert prompt.answer(":model de-en") == "de-en"
    assert prompt.answer(TEXT).splitlines()[0] == wanted["de-en"]
    assert prompt.close() == 0
