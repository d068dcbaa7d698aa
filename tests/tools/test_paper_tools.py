"""The tools that measure, train and draw for docs/paper.md."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import paper_figures
import paper_page
import pytest
import table1
import table3

from mlx_transformer import load
from mlx_transformer.config import PRESETS, preset

TOOLS = Path(paper_page.__file__).parent


def test_exponents():
    lengths = [64, 128, 256, 512, 1024]
    assert table1.exponent(lengths, [3 * n**2 for n in lengths]) == pytest.approx(2)
    # only the longest are fitted
    assert table1.exponent(lengths, [9e9, *lengths[1:]]) == pytest.approx(1)


def test_memory_and_operations_grow_as_the_paper_says():
    gc.collect()  # what other tests left would be freed while this one measures
    lengths = [256, 512, 1024, 2048]
    for name, layer in table1.layers().items():
        costs = [table1.cost(layer, n, passes=1) for n in lengths]
        memory = table1.exponent(lengths, table1.curve(costs, "megabytes"))
        operations = table1.exponent(lengths, table1.curve(costs, "operations"))
        assert memory == pytest.approx(2 if name == "self-attention" else 1, abs=0.1)
        assert operations == pytest.approx(1 if name == "recurrent" else 0, abs=0.01)
        # and as the page says
        [row] = re.findall(rf"\| {name} \| (.*) \|", paper_page.written("table 1").split("\n\n")[1])
        at_1024 = float(row.split(" | ")[table1.LENGTHS.index(1024)])
        assert costs[2].megabytes == pytest.approx(at_1024, rel=0.05)


def test_paths_between_positions():
    layers = table1.layers()
    assert table1.layers_between(layers["self-attention"], 9) == 1
    assert table1.layers_between(layers["convolutional"], 9) == 8


def test_the_table_is_the_paper_s():
    assert {*table3.PAPER} <= {*PRESETS}
    assert len(table3.PAPER) == 20
    small = table3.scaled(preset("base"))
    assert (small.d_model, small.d_ff, small.d_k, small.encoder_layers) == (64, 256, 8, 3)
    assert (small.h, small.dropout) == (8, 0.1)
    narrow = table3.scaled(preset("B-dk16"))
    assert (narrow.d_k, narrow.d_v) == (2, 8)


@pytest.mark.parametrize(
    ("paper", "ours", "said"),
    [
        (5.0, [2.3, 2.4], "reproduces: worse"),
        (4.5, [1.7, 1.9], "reproduces: better"),
        (5.0, [1.7, 1.9], "does not reproduce: better here"),
        (5.0, [1.9, 2.15], "the paper: worse; here too close to call"),
        (4.92, [2.3], "the paper: no difference; here worse"),
        (4.91, [2.1], "the paper: no difference; here none either"),
    ],
)
def test_a_direction_counts_where_every_run_agrees(paper, ours, said):
    assert table3.verdict(paper, 4.92, ours, base=[2.0, 2.2]) == said


def page_table() -> dict[str, list[str]]:
    """The cells of docs/paper.md's table by row"""
    rows = re.findall(r"^\| `(.+?)` \| (.*) \|$", paper_page.written("table 3"), re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows}


def test_the_page_s_table_says_what_follows_from_its_numbers():
    rows = page_table()
    assert len(rows) >= 11
    base = [float(one) for one in rows["base"][7].split()]
    for name, cells in rows.items():
        assert cells[:7] == table3.sizes(name, vocab_size=256)
        assert (float(cells[9]), float(cells[10])) == table3.PAPER[name]
        ours = [float(one) for one in cells[7].split()]
        if name != "base":
            assert cells[11] == table3.verdict(table3.PAPER[name][0], 4.92, ours, base)
    said = [cells[11].partition(":")[0] for cells in rows.values()]
    told = f"{said.count('reproduces')} directions reproduce, {said.count('does not reproduce')} do"
    assert told in paper_page.written("table 3")


@pytest.mark.slow
def test_rows_are_trained_once_and_make_a_table(tmp_path):
    command = [sys.executable, str(TOOLS / "table3.py"), "--out", tmp_path]
    command += ["--rows", "C-N2", "--steps", "2", "--set", "validation.sentences=0"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("training ") == 2
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and "training " not in again.stderr
    assert again.stdout == first.stdout
    _, _, base, shallow = first.stdout.splitlines()
    assert base.startswith("| `base` | 3 | 64 | 256 | 8 | 8 | 8 |")
    assert shallow.startswith("| `C-N2` | 1 |")


def test_the_best_head_is_found():
    weights = np.zeros((2, 3, 4))
    weights[:, 1, 2] = [0.4, 0.6]
    weights[0, 0, 0] = 0.9  # better in one sentence only
    found = paper_figures.best_head(weights, 0.1)
    assert (found.layer, found.head, found.mean) == (2, 3, pytest.approx(0.5))


@pytest.mark.slow
def test_figures_3_to_5_are_those_of_the_model_that_ships():
    written, (made, _) = paper_page.written("figures 3 to 5"), paper_figures.report(load())
    number = re.compile(r"\d\.\d\d")
    assert number.sub("", made).strip() == number.sub("", written).strip(), (
        "the weights have changed: run python tools/paper_figures.py"
    )
    values = ([float(value) for value in number.findall(text)] for text in (made, written))
    assert np.allclose(*values, atol=0.015)
