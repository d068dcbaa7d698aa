"""`mlx-transformer bench` on models that take no time."""

import json
import subprocess
import sys

import pytest

from mlx_transformer.__main__ import main
from mlx_transformer.cli import bench
from mlx_transformer.config import preset
from mlx_transformer.measuring import benchmark
from mlx_transformer.model import Transformer
from mlx_transformer.storage import count_parameters, quantize, save_model


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(benchmark, "SENTENCES", 4)
    monkeypatch.setattr(benchmark, "LENGTH", 5)
    monkeypatch.setattr(bench, "VOCABULARY", 60)


@pytest.mark.slow
def test_json_of_presets(quick, capsys):
    assert main(["bench", "--presets", "tiny", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["machine"]["chip"]
    assert found["machine"]["mlx"].startswith("0.")
    assert [speed["model"] for speed in found["speeds"]] == ["tiny"]
    (speed,) = found["speeds"]
    assert 0 < speed["first_translation_seconds"] < 60
    for work in ("train", "greedy", "beam"):
        assert speed[work]["tokens_per_second"] > 0
        assert speed[work]["share_of_limit"] > 0
        assert speed[work]["peak_megabytes"] > speed["parameters"] * 4 / 1e6
    assert err.splitlines() == [  # where there is no terminal for a bar
        f"tiny: {stage}" for stage in ("greedy", "beam 4", "first translation", "train")
    ]


@pytest.mark.usefixtures("any_device")
@pytest.mark.slow
def test_table_of_a_quantised_model(quick, tmp_path, capsys):
    directory = tmp_path / "four-bits"
    directory.mkdir()
    config = preset("tiny", vocab_size=64, max_length=4, quantization=4)
    model = Transformer(config)
    quantize(model, 4)
    save_model(model, directory)
    assert main(["bench", "--model", str(directory)]) == 0
    head, blank, *rows = capsys.readouterr().out.splitlines()
    assert "chip " in head and "mlx 0." in head and not blank
    assert {len(row) for row in rows} == {len(rows[0])}  # columns
    cells = dict([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert cells[""] == "four-bits"
    assert cells["parameters"] == f"{count_parameters(config):,}"
    assert cells["train, tokens/s"] == "-"  # which a quantised model cannot
    assert float(cells["beam 4, tokens/s"].replace(",", "")) > 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--presets", "bas"], "did you mean 'base'"),
        (["--model", "nowhere"], "there is no model nowhere"),
        (["--model", "nowhere", "--presets", "tiny"], "not allowed with"),
    ],
)
def test_a_wrong_call_is_a_sentence(args, words):
    done = subprocess.run(
        [sys.executable, "-m", "mlx_transformer", "bench", *args], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
