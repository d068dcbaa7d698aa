"""The verb: what it prints, where, and with which exit status."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mlx_transformer.__main__ import main
from mlx_transformer.storage import load_model
from tests.tiny_directory import pieces


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    parts = {
        "net": nn.Transformer(8, 2, 1, 1, 12, batch_first=True),
        "embedding": nn.Embedding(9, 8),
    }
    torch.save(nn.ModuleDict(parts).state_dict(), tmp_path / "a.pt")
    return tmp_path / "a.pt"


OPTIONS = "--heads 2 --pad-id 0 --start-id 1 --eos-id 2".split()  # noqa: SIM905


def test_convert(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = checkpoint.parent / "out"
    more = "--norm pre --activation gelu --no-embedding-scale --dtype float16".split()  # noqa: SIM905
    assert main(["convert", str(checkpoint), str(out), *OPTIONS, *more]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert "torch: 0.00 million parameters, float16; without a tokenizer" in printed.err
    config = load_model(out).config
    assert (config.h, config.norm, config.activation, config.scale_embedding) == (
        2,
        "pre",
        "gelu",
        False,
    )


def test_list(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(checkpoint), "--list"]) == 0
    printed = capsys.readouterr()
    lines = dict(line.split(maxsplit=1) for line in printed.out.splitlines())
    assert lines["embedding.weight"].split(maxsplit=2) == [
        "float32",
        "9x8",
        "source_words.weight, target_words.weight",
    ]
    assert "(see --heads and --pad-id and --start-id and --eos-id)" in printed.err
    rename = ["--rename", "^embedding=other.thing"]
    assert main(["convert", str(checkpoint), "--list", "--rename", "linear1=up"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("UNMAPPED") == printed.out.count("\n")
    assert "of no family we know" in printed.err
    assert main(["convert", str(checkpoint), "--list", *OPTIONS, *rename]) == 0
    assert "and complete" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["missing.pt", "out"], 1, "No such file or directory: missing.pt"),
        ([], 2, "Name the model directory"),
        (["out"], 2, "(see --heads and --pad-id and --start-id and --eos-id)"),
        (["out", "--family", "fairseq"], 2, "is not a fairseq Transformer: no key ends in"),
        (["out", "--source-vocab", "missing", *OPTIONS], 2, "no vocabulary file missing"),
    ],
)
def test_mistakes(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    words: str,
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    if "missing.pt" not in arguments:
        arguments = [checkpoint.name, *arguments]
    assert main(["convert", *arguments]) == status
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1
    assert not (checkpoint.parent / "out").exists()


def test_vocabularies_come_along(checkpoint: Path) -> None:
    folder = checkpoint.parent
    for name in ("a.model", "b.model", "a.txt"):
        (folder / name).write_text(name)
    cases = {
        "one": (["--source-vocab", "a.model"], {"tokenizer.model": "a.model"}),
        "two": (
            ["--source-vocab", "a.model", "--target-vocab", "b.model"],
            {"source.model": "a.model", "target.model": "b.model"},
        ),
        "words": (["--source-vocab", "a.txt"], {"dict.txt": "a.txt"}),
    }
    for out, (arguments, expected) in cases.items():
        arguments = [a if a.startswith("--") else str(folder / a) for a in arguments]
        assert main(["convert", str(checkpoint), str(folder / out), *OPTIONS, *arguments]) == 0
        for name, content in expected.items():
            assert (folder / out / name).read_text() == content


@pytest.mark.parametrize(
    ("rows", "end", "said"),
    [
        (100, 2, "has ids up to 119, but the model has only 100 words: they do not belong"),
        (120, 3, "ends a sentence with id 2, but the model with 3: they do not belong"),
    ],
)
def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(
    rows: int, end: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    parts = nn.ModuleDict({"net": net, "embedding": nn.Embedding(rows, 8)})
    torch.save(parts.state_dict(), tmp_path / "a.pt")
    (tmp_path / "tokenizer.model").write_bytes(pieces())
    files = [tmp_path / "a.pt", tmp_path / "out", "--source-vocab", tmp_path / "tokenizer.model"]
    ids = ["--heads", 2, "--pad-id", 0, "--start-id", 1, "--eos-id", end]
    assert main(["convert", *map(str, [*files, *ids])]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
