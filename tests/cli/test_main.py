"""What all verbs have in common: how a command line is read."""

from pathlib import Path

import pytest

from mlx_transformer.__main__ import main
from tests.decoding.random_models import ending_model
from tests.tiny_directory import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), make=ending_model, length=6)


def test_options_may_stand_between_what_they_belong_to(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(model), "--format", "torch", str(out)]) == 0
    assert out.is_dir()
    copy = tmp_path / "copy"
    assert main(["convert", str(model), "--dtype", "float16", str(copy)]) == 0
    assert copy.is_dir()
    capsys.readouterr()
    assert main(["score", "one", "--model", str(model), "eins", "--json"]) == 0
    between = capsys.readouterr().out
    assert main(["score", "--model", str(model), "--json", "one", "eins"]) == 0
    assert capsys.readouterr().out == between


def test_a_text_after_two_dashes_may_begin_with_one(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", "--model", str(model), "--", "-one two"]) == 0
    dashed = capsys.readouterr().out
    assert main(["translate", "-one two", "--model", str(model)]) == 0
    assert capsys.readouterr().out == dashed != "\n"


@pytest.mark.parametrize(
    ("beam", "said"),
    [("121", "wider than the 120 words of the model"), ("100000", "beam must be from 1 to 1,000")],
)
def test_a_beam_wider_than_the_vocabulary_is_refused(
    model: Path, beam: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", "one", "--beam", beam, "--model", str(model)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--beem", "4", "Hello"], "unknown option --beem; did you mean '--beam'?"),
        (["--model=x", "--nbset=4", "Hello"], "unknown option --nbset; did you mean '--nbest'?"),
        (["Hello", "my", "friend"], "what is 'my friend'? Several words"),
        (["--beam", "four", "Hello"], "argument --beam: invalid int value: 'four'"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["translate", *arguments])
    assert stop.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert lines[0].endswith("(mlx-transformer translate --help explains the options)")
