"""The verb: what it prints, where, and with which exit status."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
import torch
from torch import nn

from mlx_transformer.__main__ import main
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import load_tokenizer
from tests.tiny_directory import pieces, write_model


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


def test_what_cannot_be_used_in_the_end_is_said_before(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (tmp_path / "words").write_text("Good morning.\n")
    for more, said in (
        (["--upload", "mine"], "a model on the hub is called ORG/NAME, not 'mine'"),
        (["--source-vocab", str(tmp_path / "words")], "words is no vocabulary that we read"),
    ):
        assert main(["convert", str(checkpoint), str(out), *OPTIONS, *more]) == 2
        assert said in capsys.readouterr().err
        assert not out.exists()


def test_a_model_that_ships_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "de-en", "de-en-8bit", "--quantize", "8"]) == 0
    assert load_model(tmp_path / "de-en-8bit").config.quantization == 8
    assert main(["convert", "de-en-8bits", "other"]) == 2
    assert "no file or folder de-en-8bits; did you mean de-en-8bit?" in capsys.readouterr().err


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
        (["missing.pt", "out"], 2, "there is no file or folder missing.pt"),
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


def test_vocabularies_come_along(tmp_path: Path) -> None:
    net = nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    parts = nn.ModuleDict({"net": net, "embedding": nn.Embedding(120, 8)})
    torch.save(parts.state_dict(), tmp_path / "a.pt")
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(pieces())
    (tmp_path / "a.txt").write_text("word 1\n")
    cases = {
        "one": (["--source-vocab", "a.model"], {"tokenizer.model": "a.model"}),
        "two": (
            ["--source-vocab", "a.model", "--target-vocab", "b.model"],
            {"source.model": "a.model", "target.model": "b.model"},
        ),
        "words": (["--source-vocab", "a.txt"], {"dict.txt": "a.txt"}),
    }
    for out, (arguments, expected) in cases.items():
        arguments = [a if a.startswith("--") else str(tmp_path / a) for a in arguments]
        call = ["convert", str(tmp_path / "a.pt"), str(tmp_path / out), *OPTIONS, *arguments]
        assert main(call) == 0
        for name, given in expected.items():
            assert (tmp_path / out / name).read_bytes() == (tmp_path / given).read_bytes()


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


def test_an_unknown_checkpoint_is_named_and_renaming_offered_where_it_can_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vit").mkdir()
    torch.save({"vit.pooler.weight": torch.zeros(2, 2)}, tmp_path / "vit" / "model.pt")
    (tmp_path / "vit" / "config.json").write_text('{"model_type": "vit"}')
    assert main(["convert", str(tmp_path / "vit"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "is a 'vit' model: of no family we know" in said and "--rename" not in said
    keys = {"net.enc.0.up": torch.zeros(2, 2), "net.dec.0.up": torch.zeros(2, 2)}
    torch.save(keys, tmp_path / "own.pt")
    assert main(["convert", str(tmp_path / "own.pt"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "net.enc.0.up" in said and "--rename" in said
    assert "encoder.layers.0.linear1.weight" in said


def test_what_lies_beside_the_weights_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning's hyper_parameters, and a vocab.json of characters."""
    net = nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    parts = nn.ModuleDict({"net": net, "embedding": nn.Embedding(9, 8)})
    said = {"nhead": 4, "norm_first": True, "pad_idx": 0, "bos_idx": 1, "eos_idx": 2}
    saved = {"state_dict": parts.state_dict(), "hyper_parameters": said}
    torch.save(saved, tmp_path / "last.ckpt")
    vocab = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *"abcd "])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    assert main(["convert", str(tmp_path / "last.ckpt"), str(tmp_path / "out")]) == 0
    config = load_model(tmp_path / "out").config
    assert (config.h, config.norm, config.eos_id) == (4, "pre", 2)
    assert load_tokenizer(tmp_path / "out", config).encode_source("ab") == [4, 5]


def test_our_own_torch_export_comes_back_without_flags(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", norm="pre", activation="gelu", norm_eps=1e-6)
    model, exported = tmp_path / "model", tmp_path / "exported"
    assert main(["export", str(model), str(exported), "--format", "torch"]) == 0
    assert main(["convert", str(exported / "model.pt"), str(tmp_path / "back")]) == 0
    ids = mx.array([[5, 6, 2]]), mx.array([[1, 7]])
    before, after = (load_model(each)(*ids) for each in (model, tmp_path / "back"))
    assert mx.allclose(before, after, atol=1e-5)
