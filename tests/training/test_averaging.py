"""The mean of whole models."""

from pathlib import Path

import numpy as np
import pytest

from mlx_transformer.__main__ import main
from mlx_transformer.storage import load_model, named_parameters
from tests.tiny_directory import write_model


def models(folder: Path, *changes: dict[str, object]) -> list[str]:
    found = []
    for seed, change in enumerate(changes):
        path = folder / str(seed)
        path.mkdir()
        found.append(str(write_model(path, seed, **change)))
    return found


def test_every_weight_is_the_mean_of_the_models(tmp_path):
    paths = models(tmp_path, {}, {"dropout": 0.3}, {})
    assert main(["average", *paths, "--out", str(tmp_path / "mean")]) == 0
    *each, mean = (named_parameters(load_model(Path(p))) for p in [*paths, tmp_path / "mean"])
    for name, weight in mean.items():
        expected = sum(np.array(weights[name], "f8") for weights in each) / 3
        np.testing.assert_allclose(np.array(weight), expected, atol=1e-6, err_msg=name)
    assert main(["translate", "--model", str(tmp_path / "mean"), "one"]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"d_ff": 48}, "not of the same kind"), ({"gaps": ["<mask>"]}, "another vocabulary")],
)
def test_others_are_refused(tmp_path, capsys, change, sentence):
    paths = models(tmp_path, {}, change)
    assert main(["average", *paths, "--out", str(tmp_path / "mean")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


def test_a_quantised_model_is_refused(tmp_path, capsys):
    (path,) = models(tmp_path, {"d_model": 64})
    small = str(tmp_path / "small")
    assert main(["convert", path, small, "--quantize", "8"]) == 0
    assert main(["average", path, small, "--out", str(tmp_path / "mean")]) == 2
    assert "is quantised" in capsys.readouterr().err
