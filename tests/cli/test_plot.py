"""`mlx-transformer plot`, as a user types it."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from mlx_transformer.cli.plot import positions, schedule
from mlx_transformer.errors import InputError
from tests.tiny_directory import write_half, write_model


def command(*args: object, where=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_transformer", "plot", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=where,
    )


def words(path) -> set[str]:
    return {element.text for element in ElementTree.parse(path).iter() if element.text}


def write_run(folder, *lines: str):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


RECORDS = [
    json.dumps({"kind": "training", "step": step, "perplexity": 90 / step, "learning_rate": 1e-3})
    for step in (1, 2, 3)
]


def test_runs_are_compared_and_a_line_cut_short_is_left_out(tmp_path):
    one = write_run(tmp_path / "one", *RECORDS)
    two = write_run(tmp_path / "two", *RECORDS, '{"kind": "trai')
    done = command(one, two, "--out", tmp_path / "both.svg")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'both.svg'}\n"), done.stderr
    assert {str(one), str(two), "training perplexity"} <= words(tmp_path / "both.svg")
    strange = write_run(tmp_path / "three", "no", "[1]", *RECORDS)
    done = command(strange)
    assert done.returncode == 0 and "2 lines are no records" in done.stderr
    assert command(one).stdout == f"{one / 'curves.png'}\n"
    assert (one / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_schedule_is_that_of_the_paper():
    steps, rates = schedule("wmt14-en-de-base")
    assert (steps[0], steps[-1]) == (1, 100_000)
    expected = 512**-0.5 * np.minimum(steps**-0.5, steps * 4000**-1.5)
    assert np.allclose(rates, expected, rtol=1e-6)
    assert steps[rates.argmax()] == 4000


def test_schedules_and_positions_have_names_of_their_own(tmp_path):
    done = command("--schedule", "numbers", "wmt14-en-de-big", where=tmp_path)
    assert (done.returncode, done.stdout) == (0, "schedule.png\n"), done.stderr
    assert command("--positions", "tiny", where=tmp_path).stdout == "positions.png\n"
    assert {path.name for path in tmp_path.iterdir()} == {"schedule.png", "positions.png"}


def test_the_architecture_of_a_preset_or_a_model(tmp_path):
    folder = write_model(tmp_path, d_ff=72)
    done = command("--architecture", folder, "--out", tmp_path / "model.svg")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'model.svg'}\n"), done.stderr
    assert "w_1 32 → 72   w_2 72 → 32" in words(tmp_path / "model.svg")
    assert command("--architecture", where=tmp_path).stdout == "architecture.png\n"


def test_the_position_table_is_that_of_the_paper(tmp_path):
    [table] = positions("base").values()
    assert table.shape == (128, 512)
    for position, i in ((0, 0), (5, 3), (127, 255)):
        angle = position / 10000 ** (2 * i / 512)
        assert np.allclose(table[position, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)])


def test_learned_positions_are_those_of_both_stacks(tmp_path):
    folder = write_model(tmp_path, positions="learned", position_offset=2)
    encoder, decoder = positions(str(folder)).values()
    assert encoder.shape == decoder.shape == (64, 32)
    assert not np.array_equal(encoder, decoder)
    half = write_half(tmp_path, "decoder", positions="learned", position_offset=2)
    [(title, table)] = positions(str(half)).items()
    assert title.endswith("the decoder") and table.shape == (64, 32)


def test_relative_positions_have_no_table(tmp_path):
    folder = write_model(tmp_path, positions="relative")
    with pytest.raises(InputError, match="has no table of positions"):
        positions(str(folder))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give one or several runs, or --schedule RECIPE, or --positions PRESET"),
        (["a", "--positions", "base"], "give one or several runs"),
        (["nowhere"], "nowhere is no training run"),
        (["empty"], "nothing to draw yet"),
        (["--positions", "bass"], "did you mean 'base'"),
        (["--architecture", "bass"], "did you mean 'base'"),
        (["--positions", "E-learned"], "are learned: give a trained model's directory"),
        (["--schedule", "nubmers"], "no recipe is called"),
        (["--positions", "base", "--out", "a.pdf"], "ends in .png or .svg, not 'a.pdf'"),
    ],
)
def test_a_wrong_call_is_a_sentence_and_exit_2(tmp_path, args, words):
    write_run(tmp_path / "empty", "")
    done = command(*args, where=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
