"""The prompt, typed into through a real pseudo-terminal."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mlx_transformer
from mlx_transformer.cli.attention_map import attention_map
from mlx_transformer.convert.export_marian import export_marian
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.translator import Translation, load
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import load_tokenizer
from tests.cli.terminal import Terminal
from tests.decoding.random_models import ending_model
from tests.hub_server import HubServer
from tests.tiny_directory import write_model

pytestmark = pytest.mark.slow

TEXT = "five hundred and one"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two directions, and a model that never ends a sentence."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("en-de", "de-en", "endless"):
        (folder / name).mkdir()
    # The first on which greedy and beam search disagree, so that a test can tell them apart.
    for seed in range(50):
        write_model(folder / "en-de", seed, make=ending_model, length=6)
        translator = load(folder / "en-de")
        texts = {translator.translate(TEXT, SearchOptions(beam=beam)).text for beam in (1, 4)}
        if len(texts) == 2:
            break
    write_model(folder / "de-en", seed + 1, make=ending_model, length=6)
    write_model(folder / "endless", eos_bias=-1e9, max_length=20_000)
    return folder


@pytest.fixture
def prompt(models: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal("translate", "--model", str(models / "en-de"), state=tmp_path)
    assert "en-de: type a text, or :help" in terminal.wait_for(Terminal.PROMPT)
    yield terminal
    assert terminal.close() == 0


def test_texts_are_translated_as_the_options_say(prompt: Terminal, models: Path) -> None:
    def first_line(typed: str) -> str:
        return prompt.answer(typed).splitlines()[0]

    translator = load(models / "en-de")
    expected = {n: translator.translate(TEXT, SearchOptions(beam=n)).text for n in (4, 8, 1)}
    assert expected[1] != expected[4]
    assert first_line(TEXT) == expected[4]
    assert prompt.answer(":beam 8") == "beam 8"
    assert first_line(TEXT) == expected[8]
    assert prompt.answer(":beam 1") == "beam 1"
    assert first_line(TEXT) == expected[1]
    assert prompt.answer(":alpha 1.5") == "alpha 1.5"
    assert prompt.answer(":nbest 3") == "nbest 3, beam 3"
    best = translator.translate(TEXT, SearchOptions(beam=3, nbest=3, alpha=1.5))
    listed = [line.strip() for line in prompt.answer(TEXT).splitlines()[:3]]
    assert listed == [f"{e.score:.3f}  {e.text}" for e in [best, *best.alternatives]]
    assert "(now 3)" in prompt.answer(":help")
    assert prompt.answer(":nbest 9") == "nbest 9, beam 9"
    assert prompt.answer(":nbest 1") == "nbest 1, beam 1"  # as it was before
    assert prompt.answer(":nbest 5") == "nbest 5, beam 5"
    assert prompt.answer(":beam 6") == "beam 6"
    assert prompt.answer(":nbest 1") == "nbest 1, beam 6"  # as it was asked for
    assert prompt.answer(":time") == prompt.answer(":time on") == "time on"
    assert re.search(r"^\d+ tokens, \d+ ms, \d+ tokens/s$", prompt.answer(TEXT), re.MULTILINE)
    assert prompt.answer(":temperature 0.5") == "sample on, temperature 0.5"
    assert prompt.answer(":sample") == "sample off"
    assert prompt.answer(":sample 1.5") == "sample on, temperature 1.5"
    assert prompt.answer(":top-k 50") == "sample on, top-k 50"
    assert prompt.answer(":top-p 0.9") == "sample on, top-p 0.9"
    assert "(now 1.5)" in prompt.answer(":help")
    assert first_line(TEXT) != first_line(TEXT)


def test_a_translation_is_looked_into(prompt: Terminal, models: Path, tmp_path: Path) -> None:
    translator = load(models / "en-de")
    found = translator.translate(TEXT, attention=True)
    assert prompt.answer(TEXT) == found.text
    assert prompt.answer(":attention") == attention_map(found, 100).strip()
    picture = tmp_path / "seen.html"
    assert prompt.answer(f":attention {picture}") == str(picture)
    assert "</html>" in picture.read_text()
    (score,) = translator.score([TEXT], ["drei"])
    said = f"log-probability {score.logp:.3f}, perplexity {score.perplexity:.3f}"
    assert prompt.answer(":score drei") == said
    (score,) = translator.score([TEXT], [found.text])
    assert f"perplexity {score.perplexity:.3f}" in prompt.answer(":score")
    prompt.answer(f"seven. {TEXT.capitalize()}")
    last = translator.translate(TEXT.capitalize(), attention=True)
    *shown, note = prompt.answer(":attention").splitlines()
    assert "\n".join(shown) == attention_map(last, 100).strip()
    assert note == "(the last of 2 sentences; :attention FILE draws them all)"


def test_paths_are_completed_and_q_leaves(prompt: Terminal, models: Path) -> None:
    prompt.type(":mo\t")
    prompt.wait_for("del")  # completed a moment later
    prompt.type(f" {models}/de-\t")
    prompt.wait_for("en")
    assert prompt.answer("") == str(models / "de-en")
    prompt.type(":q\r")
    assert prompt.process.wait(timeout=60) == 0


def test_a_text_the_model_knows_nothing_of_gets_a_hint(prompt: Terminal) -> None:
    assert "the model knows nothing of this text: 你好" in prompt.answer("你好")
    assert "knows nothing" not in prompt.answer("你好 seven")


def test_models_are_changed(prompt: Terminal, models: Path) -> None:
    here, back = (load(models / name).translate(TEXT).text for name in ("en-de", "de-en"))
    assert here != back
    assert prompt.answer(":reverse").endswith("de-en")
    assert prompt.answer(TEXT) == back
    assert prompt.answer(f":model {models / 'en-de'}") == str(models / "en-de")
    assert prompt.answer(TEXT).splitlines()[0] == here


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with a model as OPUS-MT's are; what is downloaded and converted stays in `tmp_path`."""
    original, folder = tmp_path / "original", tmp_path / "published"
    for each in (original, folder):
        each.mkdir()
    write_model(original, seed=3)
    export_marian(load_model(original), load_tokenizer(original), folder)
    server = HubServer()
    server.models["org/tiny-de-en"] = folder
    for name, value in {
        "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


def test_a_model_of_the_hub_is_taken_by_name(
    hub: HubServer, prompt: Terminal, models: Path, tmp_path: Path
) -> None:
    here = load(models / "en-de").translate(TEXT).text
    back = mlx_transformer.load(hub.models["org/tiny-de-en"]).translate(TEXT).text
    assert here != back
    said = prompt.answer(":model org/tiny-de-en")
    steps = "downloading org/tiny-de-en", "\nconfig.json: ", "converting org/tiny-de-en, this once"
    assert [*map(said.index, steps)] == sorted(map(said.index, steps))
    assert re.search(r"model\.safetensors: +\d+%\|", said)  # the bar
    assert said.endswith("org/tiny-de-en")
    assert prompt.answer(TEXT).splitlines()[0] == back
    asked = hub.requests.total()
    hub.stop()
    prompt.answer(f":model {models / 'en-de'}")
    assert prompt.answer(TEXT).splitlines()[0] == here
    assert prompt.answer(":model org/tiny-de-en") == "org/tiny-de-en"  # without a network
    assert prompt.answer(TEXT).splitlines()[0] == back
    again = Terminal("translate", "--model", "org/tiny-de-en", state=tmp_path)
    assert "tiny-de-en: type a text, or :help" in again.wait_for(Terminal.PROMPT)
    assert again.answer(TEXT).splitlines()[0] == back
    assert again.close() == 0 and hub.requests.total() == asked


def test_a_model_that_cannot_be_had_leaves_the_one_before(
    hub: HubServer, prompt: Terminal, models: Path, tmp_path: Path
) -> None:
    here = load(models / "en-de").translate(TEXT).text
    led, damaged = tmp_path / "led", tmp_path / "damaged"
    for folder in (led, damaged):
        shutil.copytree(hub.models["org/tiny-de-en"], folder)
    config = led / "config.json"
    config.write_text(config.read_text().replace('"marian"', '"led"'))
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    hub.models |= {"org/led": led, "org/damaged": damaged, "org/gated": led}
    hub.gated = {"org/gated"}
    for name, sentence in {
        "org/nothing": "no such model on the hub",
        "org/gated": "org/gated is gated: accept its terms at",
        "org/tiny-de-en@v9": "org/tiny-de-en has no revision 'v9'",
        "org/led": "org/led is LED",
        "org/damaged": "org/damaged: ",
    }.items():
        said = prompt.answer(f":model {name}")
        assert sentence in said and "Traceback" not in said
        assert prompt.answer(TEXT).splitlines()[0] == here
        assert str(models / "en-de") in prompt.answer(":help")
    hub.stop()
    assert "cannot be reached for org/tiny-de-en" in prompt.answer(":model org/tiny-de-en")
    assert prompt.answer(TEXT).splitlines()[0] == here
    assert not [*(tmp_path / "cache").rglob("*.safetensors")]


def test_mistakes_are_one_sentence(prompt: Terminal) -> None:
    for typed, said in {
        ":attention": "translate something first",
        ":score x": "translate a text first",
        ":beam": "give a number, as in :beam 8",
        ":beam many": "give a number, as in :beam 8",
        ":beam 0": "beam must be from 1 to 1,000, not 0",
        ":modle x": "there is no command :modle; did you mean ':model'?",
        ":model": "name a model, as in :model weights/en-de",
        ":model /nowhere": "there is no model /nowhere",
    }.items():
        answer = prompt.answer(typed)
        assert said in answer
        assert "Traceback" not in answer
    assert "there is no command" not in prompt.answer(" :five hundred")


def test_ctrl_c_stops_the_translation_and_not_the_program(models: Path, tmp_path: Path) -> None:
    arguments = ("--model", str(models / "endless"), "--sample", "--max-tokens", "20000")
    terminal = Terminal("translate", *arguments, state=tmp_path)
    terminal.wait_for(Terminal.PROMPT)
    terminal.type("five hundred\r")
    terminal.wait_for("\x1b[?2004l")
    terminal.wait_for(" ")  # words stream long before the end
    terminal.interrupt()
    assert "(stopped)" in terminal.wait_for(Terminal.PROMPT)
    assert terminal.answer(":beam 2") == "beam 2"
    assert terminal.close() == 0


def test_history_is_kept_and_quit_leaves(models: Path, tmp_path: Path) -> None:
    first = Terminal("translate", "--model", str(models / "en-de"), state=tmp_path)
    first.wait_for(Terminal.PROMPT)
    answer = first.answer("seven hundred")
    first.type(":quit\r")
    assert first.process.wait(timeout=60) == 0
    second = Terminal("translate", "--model", str(models / "en-de"), state=tmp_path)
    second.wait_for(Terminal.PROMPT)
    assert second.answer("\x1b[A\x1b[A") == answer
    assert second.close() == 0


def test_no_model_beside_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # somebody's may hold one
    (tmp_path / "en-fr").mkdir()
    write_model(tmp_path / "en-fr")
    terminal = Terminal("translate", "--model", str(tmp_path / "en-fr"), state=tmp_path)
    terminal.wait_for(Terminal.PROMPT)
    assert "there is no model fr-en beside" in terminal.answer(":reverse")
    assert terminal.close() == 0


def test_the_map_has_words_along_both_sides() -> None:
    translation = Translation(
        text="der kleine Hund",
        score=0.0,
        logp=0.0,
        tokens=["▁der", "▁klei", "ne", "▁Hund"],
        source_tokens=["▁the", "▁dog"],
        complete=True,
        attention=np.array([[0.9, 0.1], [0.3, 0.3], [0.5, 0.1], [0.0, 1.0]]),
    )
    assert attention_map(translation, 80).splitlines() == [
        "       t d",
        "       h o",
        "       e g",
        "   der ██",
        "kleine ▒▒░░",
        "  Hund   ██",
    ]
    narrow = attention_map(translation, 9).split("\n\n")
    assert [panel.splitlines()[-1].rstrip() for panel in narrow] == ["  Hund", "  Hund ██"]


def test_other_languages_take_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model does not know a language, the machine may have one or two that do."""
    for name, seed in (("de-fr", 1), ("fr-es", 2), ("fr-en", 3)):
        (tmp_path / name).mkdir()
        write_model(tmp_path / name, seed, make=ending_model, length=6)
    monkeypatch.setenv("MLX_TRANSFORMER_MODELS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    terminal = Terminal("translate", "--model", str(tmp_path / "de-fr"), state=tmp_path)
    terminal.wait_for(Terminal.PROMPT)
    said = terminal.answer(":to Spanish")
    assert "by way of French" in said and said.endswith("de to es")
    middle = load(tmp_path / "de-fr").translate(TEXT)
    expected = load(tmp_path / "fr-es").translate(middle.text)
    assert terminal.answer(TEXT) == expected.text
    assert "two models in a row" in terminal.answer(":score")
    assert terminal.answer(":from fr").endswith("fr to es")
    assert terminal.answer(TEXT) == load(tmp_path / "fr-es").translate(TEXT).text
    assert "no model on this machine translates from fr to pl" in terminal.answer(":to pl")
    assert terminal.answer(":to de").endswith("fr to de")  # by the model that ships
    assert terminal.answer(":reverse").endswith("de to fr")
    assert terminal.close() == 0
