"""Two trainers, closed terminals, data and tokenizers that change under a run: nothing is lost."""

import json
import shutil
import signal
import subprocess

import numpy as np
import pytest

from mlx_transformer.__main__ import main
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.text import open_text
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.recipes import load_recipe
from mlx_transformer.storage import locked
from mlx_transformer.training.checkpoint import Checkpoints
from mlx_transformer.training.report import MetricsLog, Sample, ValidationReport
from tests.training.rough_nights import rough_night
from tests.training.tasks import command, overrides, tiny_task, train, weights

SHORT = overrides(
    training_max_steps=10,
    training_save_every=5,
    training_keep_last=2,
    training_average_last=2,
    validation_every=10,
    validation_sentences=0,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run that nothing disturbed; tests copy it and leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    call = ["train", str(tiny_task(folder)), "--out", str(folder / "run"), *SHORT]
    assert main(call) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path / "run"


def resume(run, capsys, **more):
    """Exit status and what was said; by default there is still something to do."""
    settings = overrides(**({"training_max_steps": 12, "validation_every": 100} | more))
    status = main(["train", "--resume", str(run), *settings])
    return status, capsys.readouterr().err


# One run, one trainer


def test_a_lock_names_its_process_and_dies_with_it(tmp_path):
    holder = (
        "import sys\nfrom pathlib import Path\nfrom mlx_transformer.storage import locked\n"
        "with locked(Path(sys.argv[1]), 'it'):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    python = command()[0]
    lock = tmp_path / "lock"
    with subprocess.Popen(
        [python, "-c", holder, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        taken = pytest.raises(RunError, match=rf"^it is taken by process {process.pid}: wait")
        with taken, locked(lock, "it is taken"):
            pass
        process.kill()
        process.wait()
        with locked(lock, "it is taken"):
            assert lock.exists()
    assert not lock.exists()


def test_a_second_trainer_is_refused_and_changes_nothing(run, capsys):
    before = weights(run)
    with locked(run / ".lock", ""):
        status, said = resume(run, capsys)
        assert status == 1 and "is being trained by process" in said
        assert main(["train", "numbers", "--out", str(run)]) == 1
    assert weights(run) == before
    assert resume(run, capsys, training_max_steps=10)[0] == 0


def test_a_second_preparation_is_refused(tmp_path, capsys):
    recipe, out = tiny_task(tmp_path), tmp_path / "prepared"
    with locked(tmp_path / ".prepared.lock", ""):
        assert main(["prepare", str(recipe), "--out", str(out)]) == 1
    assert "is being prepared by process" in capsys.readouterr().err
    assert main(["prepare", str(recipe), "--out", str(out)]) == 0
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


@pytest.mark.slow
def test_a_closed_terminal_saves_and_resuming_ends_as_if_it_had_not(finished, tmp_path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("train", finished / "task.toml", "--out", run, *SHORT),
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line.startswith("step 5"):
            process.send_signal(signal.SIGHUP)
            process.stderr.close()  # whoever listened is gone: writing fails from here on
            break
    assert process.wait() == 128 + signal.SIGHUP
    assert Checkpoints(run / "checkpoints").paths()
    result = train("--resume", run)
    assert result.returncode == 0, result.stderr
    assert weights(run) == weights(finished / "run")


# Data under a run


@pytest.mark.parametrize(("kind", "size"), [("ids", 16), ("offsets", 16), ("offsets", 0)])
def test_data_that_shrank_is_a_sentence(run, capsys, kind, size):
    with (run / "data" / f"train.source.{kind}").open("r+b") as file:
        file.truncate(size)
    status, said = resume(run, capsys)
    assert status == 2 and "is damaged: delete it and prepare again" in said


def test_offsets_that_shrink_after_they_were_read_change_nothing(run):
    corpus = ParallelCorpus.open(run / "data", "train")
    before = [corpus.source[i].tolist() for i in range(len(corpus))]
    with (run / "data" / "train.source.offsets").open("r+b") as file:
        file.truncate(16)
    assert [corpus.source[i].tolist() for i in range(len(corpus))] == before


def test_data_that_shrinks_while_it_is_read_is_a_sentence(run):
    corpus = ParallelCorpus.open(run / "data", "train")
    _, _, config = Checkpoints(run / "checkpoints").newest(pytest.fail)
    stream = Batches(corpus, config, 128).stream()
    next(stream)
    with (run / "data" / "train.target.ids").open("r+b") as file:
        file.truncate(4)
    with pytest.raises(InputError, match="is damaged"):
        next(stream)
    with pytest.raises(InputError, match="is damaged"):  # at whatever moment: reading notices
        corpus.target[len(corpus) - 1]


def test_ids_that_the_model_has_not_are_a_sentence(run, capsys):
    path = run / "data" / "train.source.ids"
    ids = np.fromfile(path, np.uint16)
    np.full_like(ids, 60_000).tofile(path)
    status, said = resume(run, capsys)
    assert status == 2 and "has the id 60000, but the model knows" in said


def test_sentences_out_of_order_are_a_sentence(run, capsys):
    path = run / "data" / "train.source.offsets"
    offsets = np.fromfile(path, np.int64)
    offsets[1], offsets[2] = offsets[2], offsets[1]
    offsets.tofile(path)
    status, said = resume(run, capsys)
    assert status == 2 and "is damaged" in said


def test_a_replaced_tokenizer_is_refused(run, tmp_path, capsys):
    other = tiny_task(tmp_path / "other", reverse=True)
    settings = overrides(tokenizer_vocab_size=30)
    assert main(["prepare", str(other), "--out", str(tmp_path / "prepared"), *settings]) == 0
    shutil.copy(tmp_path / "prepared" / "tokenizer.model", run / "data" / "tokenizer.model")
    status, said = resume(run, capsys)
    assert status == 2 and "is not the one that this run was trained with" in said


def test_a_text_that_changes_while_it_is_read_is_a_sentence(tmp_path):
    text = open_text(load_recipe(str(tiny_task(tmp_path, pairs=5000))).data, "train")
    pairs = text.pairs()
    next(pairs)
    (tmp_path / "train.out").write_text("a b\n")
    with pytest.raises(InputError, match="changed while it was read"):
        list(pairs)


# metrics.jsonl


def report(step, text):
    return ValidationReport(step, 1.0, 2.0, 0.0, samples=[Sample(text, text, text)])


def test_text_that_looks_like_a_line_end_breaks_no_record(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        log.append(report(step, "one\u2028two\u0085three\x1e"))
    log.cut(2, pytest.fail)
    records = log.read(pytest.fail)
    assert [record["step"] for record in records] == [1, 2]
    assert records[0]["samples"][0]["source"] == "one\u2028two\u0085three\x1e"


def test_strange_lines_are_left_out_and_said(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = json.dumps({"kind": "training", "step": 1})
    old = json.dumps({"kind": "training", "step": 2, "text": "a\u2028b"}, ensure_ascii=False)
    path.write_text(
        f"no\n[1]\n{good}\n\xff\n{old}\n" + '{"kind": "tr', encoding="latin-1", errors="replace"
    )
    said = []
    MetricsLog(path).cut(5, said.append)
    assert [record["step"] for record in MetricsLog(path).read(pytest.fail)] == [1, 2]
    assert len(said) == 1 and "3 lines are no records" in said[0]


# Checkpoints


def test_what_a_killed_save_left_is_gone_when_the_run_goes_on(run, capsys):
    checkpoints, best = run / "checkpoints", run / "best"
    before = sorted(path.name for path in run.rglob("*"))
    best.rename(run / ".best.old")  # killed between the two renames
    (checkpoints / "step-00000010").rename(checkpoints / ".step-00000010.old")
    for left in (checkpoints / ".step-00000007.partial", run / ".best.partial"):
        left.mkdir()
        (left / "config.json").write_text("{")
    status, said = resume(run, capsys, training_max_steps=10)
    assert status == 0 and "going on after step 10" in said
    assert sorted(path.name for path in run.rglob("*")) == before


def test_a_checkpoint_without_its_checksums_counts_as_damaged(run, capsys):
    path = run / "checkpoints" / "step-00000010" / "progress.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"sha256": {}}))
    said = []
    _, progress, _ = Checkpoints(run / "checkpoints").newest(said.append)
    assert progress.step == 5
    assert "step-00000010 is damaged" in said[0] and "the one before is used" in said[0]


@pytest.mark.slow
def test_what_is_not_there_is_not_spoken_of(run, finished, tmp_path, capsys):
    for path in (run / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(b"")
    status, said = resume(run, capsys)
    assert status == 1 and said.count("the one before is used") == 1
    assert "no checkpoint in" in said and "is whole: delete them to begin anew" in said
    wild = overrides(training_schedule="constant", training_learning_rate=1e38)
    status = main(
        ["train", str(finished / "task.toml"), "--out", str(tmp_path / "new"), *SHORT, *wild]
    )
    assert status == 1 and "begin again with a lower" in capsys.readouterr().err


# All of it in one night


@pytest.mark.slow
def test_a_rough_night_ends_byte_for_byte_as_a_quiet_one(tmp_path):
    met = rough_night(tmp_path, kills=3, seed=1)
    assert met["second trainer refused"] >= 1 and met["full disk said"] == 1
