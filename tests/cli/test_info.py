"""The command as a user types it: `info`, and what all verbs share."""

import json
import subprocess
import sys

import pytest

from mlx_transformer.config import preset
from mlx_transformer.model import Transformer
from mlx_transformer.storage import save_model


def command(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_transformer", *map(str, args)], capture_output=True, text=True
    )


def test_info_of_a_preset_as_json():
    facts = json.loads(command("info", "base", "--vocab-size", "37000", "--json").stdout)
    assert facts["parameters"] == 63_082_496
    assert facts["config"]["d_ff"] == 2048


def test_info_of_a_model_directory(tmp_path):
    save_model(Transformer(preset("tiny")), tmp_path)
    facts = json.loads(command("info", tmp_path, "--json").stdout)
    assert facts["dtype"] == "float32"
    assert facts["megabytes"] == round(facts["parameters"] * 4 / 1e6, 2)
    assert f"{facts['parameters']:,}" in command("info", tmp_path).stdout


def test_info_of_a_recipe_of_ones_own(tmp_path):
    shown = command("train", "--show", "numbers").stdout
    (tmp_path / "mine.toml").write_text(shown)
    mine, shipped = (
        command("info", name, "--json") for name in (tmp_path / "mine.toml", "numbers")
    )
    assert mine.stdout == shipped.stdout and '"parameters"' in mine.stdout, mine.stderr
    save_model(Transformer(preset("tiny")), tmp_path)
    (tmp_path / "tune.toml").write_text(shown.replace('preset = "tiny"', f'start = "{tmp_path}"'))
    tuned, model = (command("info", name, "--json") for name in (tmp_path / "tune.toml", tmp_path))
    assert tuned.stdout == model.stdout and '"parameters"' in tuned.stdout, tuned.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["info", "bas"], "did you mean 'base'"),
        (["info", "number"], "no preset, recipe or model number; did you mean 'numbers'?"),
        (["info", "en-dee"], "did you mean 'en-de'?"),
        (["info", "nowhere"], "no preset, recipe or model nowhere; --help lists presets"),
        (["info", "base", "--vocab-size", "0"], "vocab_size must be at least 1"),
        (["info", "base", "--vocab-size", "many"], "invalid int value"),
        (["info", "."], "no config.json"),
        (["info"], "required"),
        (["inform"], "did you mean 'info'"),
        (["--nonsense"], "unknown option --nonsense"),
        ([], "VERB"),
    ],
)
def test_a_wrong_call_exits_2_without_a_traceback(args, words):
    done = command(*args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_wrong_config_file_exits_2(tmp_path):
    save_model(Transformer(preset("tiny")), tmp_path)
    (tmp_path / "config.json").write_text('{"heads": 8}')
    done = command("info", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unknown model setting 'heads'" in done.stderr
    assert "Traceback" in command("info", tmp_path, "--debug").stderr


def test_help_does_not_wait_for_mlx():
    code = "import sys; from mlx_transformer.__main__ import main\ntry: main(['--help'])\n"
    code += "finally: print('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "translate" in done.stdout
