"""Models by name: from a hub on this machine, and what becomes of them when it misbehaves."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer import hub
from mlx_transformer.__main__ import main
from mlx_transformer.convert.export_marian import export_marian
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.installed import load
from mlx_transformer.storage import load_model, named_parameters
from mlx_transformer.tokenizer import load_tokenizer
from tests.hub_server import COMMIT, HubServer
from tests.tiny_directory import write_model

TEXT = "four hundred and seven"


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), seed=3)


@pytest.fixture(scope="module")
def marian(ours, tmp_path_factory) -> Path:
    """A directory as OPUS-MT's are."""
    folder = tmp_path_factory.mktemp("published") / "tiny-mt-en-de"
    folder.mkdir()
    export_marian(load_model(ours), load_tokenizer(ours), folder)
    return folder


@contextmanager
def use_hub(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """This hub is the one that is asked; its cache and ours are empty."""
    import huggingface_hub.constants as constants

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between two attempts
    yield server
    server.stop()


@pytest.fixture
def server(marian, ours, tmp_path, monkeypatch):
    with use_hub(HubServer(), tmp_path, monkeypatch) as server:
        server.models = {"org/tiny-mt-en-de": marian, "org/ours": ours}
        yield server


def left_behind(tmp_path: Path) -> list[str]:
    return [str(path) for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_first_use_downloads_and_converts_second_needs_no_network(server, marian):
    expected = load(marian).translate(TEXT).text
    told: list[str] = []
    path = hub.resolve("org/tiny-mt-en-de", tell=told.append)
    assert hub.is_ours(path)
    assert len(told) == 2 and all("org/tiny-mt-en-de" in line for line in told)
    server.stop()
    assert hub.resolve("org/tiny-mt-en-de", tell=told.append) == path
    assert len(told) == 2
    assert load("org/tiny-mt-en-de").translate(TEXT).text == expected


def test_only_what_is_needed_is_downloaded(server, marian, tmp_path):
    folder = tmp_path / "with more"
    shutil.copytree(marian, folder)
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    (folder / "tf_model.h5").write_bytes(b"and again")
    server.models["org/more"] = folder
    hub.resolve("org/more")
    fetched = {name for method, name in server.requests if method == "GET"}
    assert "model.safetensors" in fetched and "vocab.json" in fetched
    assert not fetched & {"pytorch_model.bin", "tf_model.h5", "README.md"}


def test_a_repository_in_our_format_is_used_as_it_is(server, ours):
    path = hub.resolve("org/ours")
    assert (path / "model.safetensors").read_bytes() == (ours / "model.safetensors").read_bytes()
    assert (path / "model.safetensors").resolve().is_relative_to(Path(path).parents[4] / "hf")
    server.stop()
    assert hub.resolve("org/ours") == path


def test_the_precision_asked_for_is_what_is_kept(server):
    half = load_model(hub.resolve("org/tiny-mt-en-de", "float16"))
    full = load_model(hub.resolve("org/tiny-mt-en-de"))
    assert {array.dtype for array in named_parameters(half).values()} == {mx.float16}
    assert {array.dtype for array in named_parameters(full).values()} == {mx.float32}
    assert [entry.name for entry in hub.cached()] == ["org/tiny-mt-en-de"] * 2


def test_a_revision_is_a_model_of_its_own(server):
    first = hub.resolve("org/tiny-mt-en-de")
    assert hub.resolve(f"org/tiny-mt-en-de@{COMMIT}") != first
    with pytest.raises(InputError, match="org/tiny-mt-en-de has no revision 'v9'"):
        hub.resolve("org/tiny-mt-en-de@v9")


def test_a_path_that_exists_wins_over_a_name(server, ours, tmp_path, monkeypatch):
    shutil.copytree(ours, tmp_path / "org" / "ours")
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("org/ours") == Path("org/ours")
    assert not server.requests


def test_a_cut_connection_is_resumed(server, marian):
    size = (marian / "model.safetensors").stat().st_size
    server.cut_after["model.safetensors"] = size // 2
    path = hub.resolve("org/tiny-mt-en-de")
    assert server.requests["GET", "model.safetensors"] == 2
    converted = named_parameters(load_model(path))
    expected = named_parameters(load_model(hub.resolve(marian)))
    for name, array in expected.items():
        np.testing.assert_array_equal(np.array(converted[name]), np.array(array))


def test_a_wrong_hash_is_said_and_the_next_attempt_is_clean(server, tmp_path):
    server.spoiled = {"model.safetensors"}
    with pytest.raises(RunError, match=r"model\.safetensors of org/tiny-mt-en-de arrived damaged"):
        hub.resolve("org/tiny-mt-en-de")
    assert not left_behind(tmp_path)
    server.spoiled = set()
    assert hub.is_ours(hub.resolve("org/tiny-mt-en-de"))


def test_what_the_hub_does_not_have_is_said(server, tmp_path):
    with pytest.raises(InputError, match="no directory org/nothing here, and no such model"):
        hub.resolve("org/nothing")
    server.gated = {"org/tiny-mt-en-de"}
    with pytest.raises(InputError, match=r"gated: accept its terms at .*org/tiny-mt-en-de.*HF_TOK"):
        hub.resolve("org/tiny-mt-en-de")
    assert not left_behind(tmp_path)


def test_a_mistyped_path_is_told_what_is_near(server, ours, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ours, tmp_path / "weights" / "en-de")
    for typed in ("weigths/en-de", "weights/en-dee", "weigths/en_de", f"{tmp_path}/weigth/en-de"):
        with pytest.raises(InputError, match=r"; did you mean .*weights/en-de\?"):
            load(typed)
    with pytest.raises(InputError, match="there is no model en-dee here; did you mean 'en-de'"):
        load("en-dee")  # one that ships
    with pytest.raises(InputError, match=r"no such model on the hub .*; did you mean 'de-en'"):
        load("elsewhere/de-en")
    shutil.copytree(ours, tmp_path / "org" / "tiny-mt-en-dee")
    assert hub.is_ours(hub.resolve("org/tiny-mt-en-de"))  # is near, too, but the hub has it
    for name in ("org/nothing", "weights/en-fr"):
        with pytest.raises(InputError, match=r"HF_TOKEN\)$"):
            load(name)
    server.stop()
    with pytest.raises(RunError, match=r"; did you mean weights/en-de\?"):
        load("weigths/en-de")


def test_no_network_is_said(server, tmp_path):
    server.stop()
    with pytest.raises(
        RunError, match=r"cannot be reached for org/tiny-mt-en-de .*no such directory"
    ):
        hub.resolve("org/tiny-mt-en-de")
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("name", ["../../evil.json", "/etc/evil.json", "a/../../b.json", "..\\x"])
def test_a_name_that_leads_elsewhere_is_refused(server, name, tmp_path):
    server.extra_names = [name]
    with pytest.raises(InputError, match="would lie outside its folder: nothing was fetched"):
        hub.resolve("org/tiny-mt-en-de")
    assert not server.requests and not left_behind(tmp_path)


def test_an_interrupted_conversion_leaves_nothing(server, tmp_path, monkeypatch):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("mlx_transformer.convert.conversion.write_safetensors", interrupted)
        hub.resolve("org/tiny-mt-en-de")
    assert not left_behind(tmp_path) and not hub.cached()
    assert hub.is_ours(hub.resolve("org/tiny-mt-en-de"))


def test_a_full_disk_is_a_sentence(server, tmp_path, monkeypatch):
    def full(path: object, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch, pytest.raises(RunError, match="No space left"):
        patch.setattr("mlx_transformer.convert.conversion.write_safetensors", full)
        hub.resolve("org/tiny-mt-en-de")
    with monkeypatch.context() as patch, pytest.raises(RunError, match="no space left on the disk"):
        patch.setattr("huggingface_hub.hf_hub_download", full)
        hub.resolve("org/tiny-mt-en-de")
    assert not left_behind(tmp_path)


# Checkpoints on the disk


def test_a_foreign_directory_is_a_model(server, marian, ours, tmp_path):
    folder = tmp_path / "opus-mt-en-de"
    shutil.copytree(marian, folder)
    path = hub.resolve(folder)
    assert hub.resolve(folder) == path
    assert path.name == "opus-mt-en-de" and hub.is_ours(path)
    same = SearchOptions(max_tokens=20)
    assert load(folder).translate(TEXT, same).text == load(ours).translate(TEXT, same).text
    (folder / "model.safetensors").touch()
    assert hub.resolve(folder) != path
    assert len(hub.cached()) == 1, "what was made of the older file is gone"


def test_weights_in_a_folder_of_their_own_are_a_model_of_their_own(server, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place / "model" / "checkpoints").mkdir(parents=True)
        (tmp_path / place / "model" / "checkpoints" / "checkpoint_best.pt").write_text(place)
    assert hub._stamp(tmp_path / "a" / "model") != hub._stamp(tmp_path / "b" / "model")


def test_what_a_checkpoint_leaves_open_is_said_to_convert(server, tmp_path, capsys):
    from torch import nn, save

    words = {"emb.weight": nn.Embedding(9, 8).weight}
    save(nn.Transformer(8, 2, 1, 1, 16).state_dict() | words, tmp_path / "mine.pt")
    assert main(["translate", "--model", str(tmp_path / "mine.pt"), TEXT]) == 2
    said = capsys.readouterr().err
    assert "give h and pad_id and start_id and eos_id" in said
    assert f"mlx-transformer convert {tmp_path / 'mine.pt'} ..." in said and "--h" not in said


def test_what_is_no_model_is_said_as_ever(tmp_path):
    with pytest.raises(InputError, match="is not a model directory: it has no"):
        load(tmp_path)


# The verbs


def test_verbs_take_names(server, marian, capsys):
    assert main(["translate", "--model", "org/tiny-mt-en-de", TEXT]) == 0
    translation = capsys.readouterr().out
    assert translation.strip() == load(marian).translate(TEXT).text
    assert main(["score", "--model", "org/tiny-mt-en-de", TEXT, "vier"]) == 0
    assert main(["info", "org/tiny-mt-en-de", "--languages"]) == 0
    listed = capsys.readouterr().out
    assert "en           English" in listed and "de           German" in listed
    assert main(["translate", "--model", "org/nothing", TEXT]) == 2
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1


def test_a_converted_model_goes_to_the_hub(server, tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "out")
    server.uploaded["me/tiny-8bit"] = {}
    call = ["convert", "org/tiny-mt-en-de", out, "--dtype", "float16", "--upload", "me/tiny-8bit"]
    assert main(call) == 0
    sent = server.uploaded["me/tiny-8bit"]
    assert {"config.json", "model.safetensors", "vocab.json", "README.md"} <= sent.keys()
    folder = tmp_path / "published"
    folder.mkdir()
    for name, content in sent.items():
        (folder / name).write_bytes(content)
    server.models["me/tiny-8bit"] = folder
    capsys.readouterr()
    # The command on the card works.
    [command] = [
        line.split() for line in sent["README.md"].decode().split("\n") if " --model" in line
    ]
    assert main([*command[1:-1], "--max-tokens", "9", TEXT]) == 0
    assert capsys.readouterr().out.strip()


def test_what_cannot_be_uploaded_is_complete_here(server, tmp_path, capsys):
    out = tmp_path / "out"
    server.gated.add("you/not-yours")
    assert main(["convert", "org/tiny-mt-en-de", str(out), "--upload", "you/not-yours"]) == 1
    said = capsys.readouterr().err
    assert "you/not-yours was not uploaded" in said and "hf auth login" in said
    assert "no such directory" not in said and (out / "model.safetensors").is_file()


def test_models_lists_and_removes(server, capsys):
    hub.resolve("org/tiny-mt-en-de")
    assert main(["models"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["org/tiny-mt-en-de", "marian"] in [row[:4:3] for row in rows]
    assert main(["models", "remove", "org/tiny"]) == 2
    assert "it holds org/tiny-mt-en-de" in capsys.readouterr().err
    assert main(["models", "remove", "org/tiny-mt-en-de"]) == 0
    assert hub.cached() == []


def test_languages_of_one_direction(server, capsys):
    model = ["translate", "--model", "org/tiny-mt-en-de"]
    assert main([*model, "--from", "English", "--to", "deu", TEXT]) == 0
    assert main([*model, "--to", "Germn", TEXT]) == 2
    assert "did you mean de (German)?" in capsys.readouterr().err
    assert main([*model, "--reverse", TEXT]) == 2
    assert "no directory org/tiny-mt-de-en here" in capsys.readouterr().err


def test_errors_name_what_was_typed(server, tmp_path, capsys):
    folder = tmp_path / "led"
    shutil.copytree(server.models["org/tiny-mt-en-de"], folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"marian"', '"led"'))
    server.models["org/led"] = folder
    with pytest.raises(InputError, match=r"^org/led is LED"):
        hub.resolve("org/led")
    assert main(["convert", "org/tiny-mt-en-de", str(tmp_path / "out")]) == 0
    assert "`org/tiny-mt-en-de`" in (tmp_path / "out" / "README.md").read_text()
