"""The tools that compare with other frameworks: a quick run of each, and what both stand on."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def sides(monkeypatch):
    """tools/bench_sides.py, which is no package's"""
    monkeypatch.syspath_prepend(TOOLS)
    import bench_sides

    monkeypatch.setattr(bench_sides, "SETTLE", 0)
    return bench_sides


WORKER = """
import sys
sys.path.insert(0, {tools!r})
from bench_sides import serve
def load(workspace):
    print("a library that prints")
    done = []
    def work():
        (workspace / "log").open("a").write(sys.argv[2] + " ")
        done.append(1)
        return len(done)
    return {{"work": work, "fail": lambda: 1 / 0}}
serve({{"a": load, "b": load}}, *sys.argv[2:])
"""


@pytest.fixture
def worker(tmp_path) -> str:
    path = tmp_path / "worker.py"
    path.write_text(WORKER.format(tools=str(TOOLS)))
    return str(path)


def test_sides_work_in_turn_and_the_first_round_does_not_count(sides, worker, tmp_path):
    with sides.Side(worker, "a", tmp_path) as a, sides.Side(worker, "b", tmp_path) as b:
        answers = sides.in_turn([(a, "work"), (b, "work")], 2, "title")
    assert (tmp_path / "log").read_text().split() == ["a", "b"] * 3
    assert [answer.result for answer in answers] == [3, 3]
    assert all(0 <= answer.seconds < 5 for answer in answers)


def test_a_side_that_fails_ends_the_run_with_a_sentence(sides, worker, tmp_path, capfd):
    with pytest.raises(SystemExit), sides.Side(worker, "a", tmp_path) as a:
        a.ask("fail")
    told = capfd.readouterr().err
    assert "ZeroDivisionError" in told
    assert "the a side failed at 'fail'" in told


def test_a_section_replaces_its_like_and_no_other(sides, tmp_path):
    path = tmp_path / "BENCHMARKS.md"
    for title, body in (("A", "one"), ("B", "two"), ("A", "| three |"), ("B", "two")):
        sides.write_section(path, title, body)
    assert path.read_text() == f"{sides.BEGINNING}\n## A\n\n| three |\n\n## B\n\ntwo\n"


@pytest.fixture
def text(tmp_path) -> Path:
    """Made-up text under the names of Multi30k's files"""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(200)]
    for split, lines in (("train", 2000), ("val", 20), ("test_2016_flickr", 20)):
        for language in ("en", "de"):
            text = [" ".join(draw.choices(words, k=draw.randint(3, 20))) for _ in range(lines)]
            (tmp_path / f"{split}.{language}").write_text("\n".join(text) + "\n")
    return tmp_path


def run(tool: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / tool), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_training_beside_pytorch(text):
    done = run("bench_train.py", "--quick", "--data", text, "--write", text / "table.md")
    assert done.returncode == 0, done.stderr
    *_, ratios = done.stdout.splitlines()
    assert re.fullmatch(r"tiny \d+\.\d\dx PyTorch, \d+% of the limit", ratios)
    written = (text / "table.md").read_text()
    assert re.search(r"\| `tiny` \| [\d,]+ \| [\d,]+ \| \d+\.\d\dx \| \d+% \|", written)
    assert re.search(r"\d{4}-\d\d-\d\d, .+, commit \w+.*; float32; mlx .+, torch .+\.", written)


@pytest.mark.slow
def test_translating_beside_transformers_and_ctranslate2(text):
    done = run("bench_decode.py", "--quick", "--data", text, "--write", text / "table.md")
    assert done.returncode == 0, done.stderr
    *_, ratios = done.stdout.splitlines()
    each = r"\d+\.\d\dx transformers, \d+\.\d\dx CTranslate2, \d+\.\d\dx CTranslate2 int8"
    assert re.fullmatch(rf"beam 4: {each}; one sentence, greedy: {each}", ratios)
    assert "100.0% of transformers, 100.0% of CTranslate2," in done.stdout
    assert "`mlx-transformer --help`" in (text / "table.md").read_text()


def test_search_scoring_and_loss_over_a_vocabulary_beside_their_products():
    sizes = "--vocabulary 1000 --d-model 64 --layers 1 --rounds 1"
    done = run("bench_vocabulary.py", *sizes.split())
    assert done.returncode == 0, done.stderr
    title, *rows = done.stdout.splitlines()
    assert title == "1,000 words, d_model 64, 1 decoder layers"
    measured = ("the loss and its gradients", "a greedy step", "a step with beam 4", "scoring")
    for row, what in zip(rows, measured, strict=True):
        assert re.fullmatch(rf"{what}: -?\d+ ms, its products \d+ ms, -?\d+\.\d\dx", row)


@pytest.mark.parametrize("tool", ["bench_train.py", "bench_decode.py"])
def test_missing_text_is_a_sentence(tool, tmp_path):
    done = run(tool, "--data", tmp_path / "nowhere")
    assert done.returncode == 1
    assert "name --data DIR" in done.stderr
    assert "Traceback" not in done.stderr
