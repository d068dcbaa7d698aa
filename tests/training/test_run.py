"""Whole runs through the command: learning, stopping, dying, going on, and bad days."""

import json
import random
import resource
import shutil
import signal
import subprocess
import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from mlx_transformer.__main__ import main
from mlx_transformer.decoding.translator import load
from mlx_transformer.hub import languages_of
from mlx_transformer.recipes import shipped_recipes
from mlx_transformer.training.run import Run
from tests.tiny_directory import write_model
from tests.training.tasks import (
    command,
    metrics,
    overrides,
    tiny_task,
    train,
    weights,
    write_task,
)

SHORT = overrides(
    training_max_steps=30,
    training_save_every=10,
    training_keep_last=3,
    training_average_last=2,
    validation_every=15,
    validation_sentences=4,
)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True], ids=["copy", "reverse"])
def test_copy_and_reverse_are_learned(tmp_path, reverse, capsys):
    recipe = write_task(tmp_path, reverse=reverse)
    run = tmp_path / "run"
    steps = overrides(training_max_steps=800, training_schedule="cosine", validation_every=800)
    assert main(["train", str(recipe), "--out", str(run), *steps]) == 0
    assert capsys.readouterr().out == f"{run / 'model'}\n"
    assert metrics(run, "validation")[-1]["bleu"] == pytest.approx(100)
    (found,) = load(run / "model").translate(["a c e g i k"])
    assert found.text == ("k i g e c a" if reverse else "a c e g i k")


@pytest.mark.slow
def test_a_student_with_a_recurrent_decoder_learns_to_reverse(tmp_path):
    recipe = write_task(tmp_path, reverse=True)
    run = tmp_path / "run"
    steps = overrides(
        model_decoder_cell="ssru",
        training_max_steps=400,
        training_schedule="cosine",
        validation_every=400,
    )
    assert main(["train", str(recipe), "--out", str(run), *steps]) == 0
    assert metrics(run, "validation")[-1]["bleu"] > 95


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run that nothing disturbed; tests copy it and leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    result = train(tiny_task(folder), "--out", folder / "run", *SHORT)
    assert result.returncode == 0, result.stderr
    return folder


def test_a_run_leaves_what_it_promises(finished):
    run = finished / "run"
    assert sorted(path.name for path in run.iterdir()) == [
        "best", "checkpoints", "curves.png", "data", "metrics.jsonl", "model", "run.toml",
    ]  # fmt: skip
    steps = [f"step-{step:08d}" for step in (10, 20, 30)]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == steps
    for model in ("best", "model"):
        names = sorted(path.name for path in (run / model).iterdir())
        assert names == ["README.md", "config.json", "model.safetensors", "tokenizer.model"]
    assert [record["step"] for record in metrics(run, "training")] == [5, 10, 15, 20, 25, 30]
    (first, last) = metrics(run, "validation")
    assert (first["step"], last["step"]) == (15, 30)
    assert last["signature"].startswith("nrefs:1|") and len(last["samples"]) == 3


@pytest.mark.slow
def test_the_test_set_is_scored_at_the_end_and_once(finished, tmp_path):
    """In this task it is the validation set, of which all 50 sentences are judged now."""
    (tested,) = metrics(finished / "run", "test")
    assert tested["step"] == 30
    model = load(finished / "run" / "model")
    sources, references = (
        (finished / f"valid.{side}").read_text().splitlines() for side in ("in", "out")
    )
    translations = [found.text for found in model.translate(sources, beam=1)]
    assert tested["bleu"] == pytest.approx(BLEU().corpus_score(translations, [references]).score)
    shutil.copytree(finished / "run", tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert len(metrics(tmp_path / "run", "test")) == 1


def test_a_recipe_says_what_it_is_judged_by(tmp_path, capsys):
    recipe, run = tiny_task(tmp_path), tmp_path / "run"
    settings = overrides(training_max_steps=1, validation_sentences=2, validation_metric="exact")
    assert main(["train", str(recipe), "--out", str(run), *settings]) == 0
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "validation at" in line)
    assert "exact 0.00" in said and "BLEU" not in said
    (record,) = metrics(run, "validation")
    assert (record["exact"], record["bleu"]) == (0, None)


def test_the_old_name_of_start_works_with_a_hint(tmp_path, capsys):
    assert main(["train", "numbers", "--from", "/nowhere", "--out", str(tmp_path / "new")]) == 2
    hint, error = capsys.readouterr().err.splitlines()
    assert "--from is now --start" in hint
    assert "there is no model /nowhere" in error


def test_fine_tuning_in_another_direction_is_said(tmp_path, capsys):
    recipe = tiny_task(tmp_path)
    for file in [*tmp_path.glob("*.in"), *tmp_path.glob("*.out")]:
        file.rename(file.with_suffix({".in": ".en", ".out": ".de"}[file.suffix]))
    english_german = overrides(
        data_source_language="en", data_target_language="de",
        training_max_steps=1, validation_sentences=0,
    )  # fmt: skip
    for name, said in (("en-de", False), ("de-en", True)):
        model = tmp_path / name
        model.mkdir()
        write_model(model)
        source, target = name.split("-")
        languages = {"source_lang": source, "target_lang": target}
        (model / "tokenizer_config.json").write_text(json.dumps(languages))
        call = ["train", str(recipe), "--start", str(model), "--out", str(model / "run")]
        assert main([*call, *english_german]) == 0
        error = " ".join(capsys.readouterr().err.split())
        hint = "translates German to English: from this recipe it learns English to German instead"
        assert (hint in error) == said


def test_recipes_are_listed_and_shown(capsys):
    assert main(["train", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == shipped_recipes()
    assert all(len(line.split()) > 3 for line in listed)
    assert main(["train", "--show", "numbers", "--set", "training.max_steps=7"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["training"]["max_steps"] == 7
    assert shown["training"]["beta2"] == 0.98
    assert shown["data"]["task"] == "numbers"


@pytest.mark.slow
def test_a_missing_file_and_a_warmup_without_end_name_their_keys(tmp_path, capsys):
    recipe = tiny_task(tmp_path)
    (tmp_path / "valid.in").unlink()
    call = ["train", str(recipe), "--out", str(tmp_path / "run")]
    assert main(call) == 2
    assert f"data.valid: no file {tmp_path / 'valid.in'}" in capsys.readouterr().err
    (tmp_path / "valid.in").write_text((tmp_path / "valid.out").read_text())
    steps = overrides(training_max_steps=1, validation_sentences=0)
    assert main([*call, *steps]) == 0
    said = "training.warmup 100 is beyond training.max_steps 1"
    assert said in capsys.readouterr().err


def test_the_final_model_is_the_average_of_the_last_checkpoints(finished):
    run = finished / "run"
    final, *last = (
        load(path).model.parameters()["source_words"]["weight"]
        if path.name == "model"
        else _weight(path)
        for path in (run / "model", *sorted((run / "checkpoints").iterdir())[-2:])
    )
    assert np.allclose(final, (last[0] + last[1]) / 2, atol=1e-7)


def _weight(path):
    from mlx_transformer.storage import load_model

    return load_model(path).parameters()["source_words"]["weight"]


@pytest.mark.filterwarnings("ignore:a translation reached its length limit")
def test_average_makes_a_model_that_translates(finished, tmp_path, capsys):
    out = tmp_path / "average"
    assert main(["average", str(finished / "run"), "--last", "3", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n" and "step-00000010, step-00000020" in shown.err
    assert isinstance(load(out).translate(["a b c"])[0].text, str)
    assert main(["average", str(out), str(out), "--last", "2", "--out", str(tmp_path / "x")]) == 2
    assert "--last" in capsys.readouterr().err
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    assert main(["average", str(run), "--out", str(run)]) == 2
    assert "exists: name a directory to make" in capsys.readouterr().err
    assert Run.open(run).checkpoints.paths()


@pytest.mark.parametrize("name", ["model", "best", "start"])
def test_a_folder_of_ones_own_is_not_replaced(name, tmp_path, capsys):
    recipe, mine = tiny_task(tmp_path), tmp_path / "place" / name / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    assert main(["train", str(recipe), "--out", str(tmp_path / "place"), *SHORT]) == 2
    assert f"{name} is there, and of no run: choose another place" in capsys.readouterr().err
    assert mine.read_text() == "precious"


def test_a_model_says_the_languages_it_was_trained_for(finished, tmp_path):
    run = Run.open(finished / "run")
    assert languages_of(finished / "run" / "model") == ([], [])  # "in" and "out" are none
    data = replace(run.recipe.data, source_language="en", target_language="de")
    replace(run, recipe=replace(run.recipe, data=data)).average(1, tmp_path / "model")
    assert languages_of(tmp_path / "model") == (["en"], ["de"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_resuming_ends_as_if_it_had_not(finished, tmp_path, number):
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("train", finished / "task.toml", "--out", run, *SHORT),
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line.startswith("step 15"):
            process.send_signal(number)
            break
    rest = process.stderr.read()
    assert process.wait() == 128 + number
    assert f"go on with: mlx-transformer train --resume {run}" in rest
    result = train("--resume", run)
    assert result.returncode == 0, result.stderr
    assert weights(run) == weights(finished / "run")
    assert _figures(run) == _figures(finished / "run")


def _figures(run):
    """metrics.jsonl without what differs from time to time."""
    return [
        {key: record[key] for key in ("step", "loss", "perplexity")}
        for kind in ("training", "validation")
        for record in metrics(run, kind)
    ]


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_ends_byte_for_byte_the_same(finished, tmp_path):
    kill_and_resume(finished, tmp_path / "run", kills=4, seed=0)


def kill_and_resume(finished, run, kills, seed):
    """kill -9 after a random time, again and again, then let it end."""
    draw = random.Random(seed)
    start = time.monotonic()
    subprocess.run(command("info", "tiny"), capture_output=True, check=True)
    startup = time.monotonic() - start
    for _ in range(kills):
        process = subprocess.Popen(
            command("train", *_how_to_go_on(finished, run)), stderr=subprocess.DEVNULL
        )
        time.sleep(draw.uniform(startup, 4 * startup))
        process.kill()
        process.wait()
    result = train(*_how_to_go_on(finished, run))
    assert result.returncode == 0, result.stderr
    assert weights(run) == weights(finished / "run")


def _how_to_go_on(finished, run):
    if (run / "run.toml").exists():
        return ["--resume", run]
    return [finished / "task.toml", "--out", run, *SHORT]


@pytest.mark.slow
def test_a_run_can_be_made_longer(finished, tmp_path):
    shutil.copytree(finished / "run", tmp_path / "run")
    result = train("--resume", tmp_path / "run", *overrides(training_max_steps=40))
    assert result.returncode == 0, result.stderr
    assert "going on after step 30 of 40" in result.stderr
    assert metrics(tmp_path / "run", "training")[-1]["step"] == 40
    again = train("--resume", tmp_path / "run")  # there is nothing left to do
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    with (run / "checkpoints" / "step-00000030" / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    result = train("--resume", run)
    assert result.returncode == 0, result.stderr
    assert "step-00000030 is damaged: model.safetensors" in result.stderr
    assert weights(run) == weights(finished / "run")


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_named_and_never_saved(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    more = overrides(
        training_max_steps=60, training_schedule="constant", training_learning_rate=1e38
    )
    result = train("--resume", run, *more)
    assert result.returncode == 1
    assert "not finite at step 3" in result.stderr  # 31 or 32, as soon as the weights are gone
    assert max(path.name for path in (run / "checkpoints").iterdir()) == "step-00000030"
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_training_stops_early_when_nothing_improves(finished, tmp_path):
    run = tmp_path / "run"
    still = overrides(
        training_learning_rate=1e-20, validation_every=2, validation_patience=3,
        training_max_steps=100, validation_sentences=0,
    )  # fmt: skip
    result = train(finished / "task.toml", "--out", run, *still)
    assert result.returncode == 0, result.stderr
    assert [record["step"] for record in metrics(run, "validation")] == [2, 4, 6, 8]
    assert (run / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_fine_tuning_starts_from_the_model_with_its_tokenizer(finished, tmp_path):
    model, run = finished / "run" / "model", tmp_path / "tuned"
    started = tmp_path / "started"
    shutil.copytree(model, started)
    recipe = tiny_task(tmp_path / "other", reverse=True, d_model=32)
    slow = overrides(training_learning_rate=1e-20, training_max_steps=2)
    result = train(recipe, "--start", started, "--out", run, *slow)
    assert result.returncode == 0, result.stderr
    name = "model.safetensors"
    assert "[tokenizer], model.preset, model.d_model" in result.stderr.replace("\n", " ")
    recorded = tomllib.loads((run / "run.toml").read_text(encoding="utf-8"))
    assert "tokenizer" not in recorded
    assert recorded["model"] == {"start": str(started), "dropout": 0.1}
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert f"fine-tuned from `{started}`" in card and "vocab_size" not in card
    assert (run / "model" / name).read_bytes() == (model / name).read_bytes()
    assert (run / "data" / "tokenizer.model").read_bytes() == (
        model / "tokenizer.model"
    ).read_bytes()
    shutil.rmtree(started)  # the run has its own copy
    shutil.rmtree(run / "checkpoints")
    assert train("--resume", run).returncode == 0


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_loses_nothing(tmp_path):
    run = tmp_path / "run"
    steps = [overrides(training_max_steps=n, validation_every=100) for n in (5, 10)]
    # A model large enough for its checkpoint, not its tokenizer, to be what does not fit.
    result = train(tiny_task(tmp_path, d_model=96), "--out", run, *steps[0])
    assert result.returncode == 0, result.stderr
    before = weights(run)
    fits = (run / "checkpoints" / "step-00000005" / "optimizer.safetensors").stat().st_size - 1

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (fits, fits))

    result = train("--resume", run, *steps[1], preexec_fn=limit_files)
    assert result.returncode == 1
    sentence = result.stderr.splitlines()[-1]
    assert "could not save" in sentence and "step-00000010" in sentence, result.stderr
    after = weights(run)
    assert all(after[name] == before[name] for name in before if not name.startswith("best"))
    assert not list((run / "checkpoints").glob(".*"))  # and nothing half is left
    assert train("--resume", run).returncode == 0  # with room again


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "give a recipe and --out RUN, or --resume RUN"),
        (["numbers"], "give a recipe and --out RUN, or --resume RUN"),
        (["numbers", "--resume", "x"], "--resume RUN needs nothing else"),
        (["--resume", "/nowhere"], "/nowhere holds no run"),
        (
            ["numbers", "--out", "{run}"],
            "already holds a run: resume it, or choose another place (see --resume)",
        ),
        (["--resume", "{run}", "--set", "training.seed=2"], "training.seed cannot change"),
        (["--resume", "{run}", "--set", "model.h=4"], "model.h cannot change within a run"),
        (["--resume", "{run}", "--set", "training.max_step=4"], "did you mean 'max_steps'"),
        (["numbers", "--start", "/nowhere", "--out", "{new}"], "there is no model /nowhere"),
        (["numbers", "--start", "{run}", "--out", "{new}"], "is a training run: its model is"),
    ],
)
def test_a_wrong_call_is_one_sentence(finished, tmp_path, capsys, args, sentence):
    places = {"run": finished / "run", "new": tmp_path / "new"}
    assert main(["train", *(arg.format(**places) for arg in args)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_a_recipe_with_a_mistake_can_be_started_again_in_the_same_place(tmp_path, capsys):
    recipe = tiny_task(tmp_path)
    call = ["train", str(recipe), "--out", str(tmp_path / "run"), "--set", "training.max_steps=1"]
    text = (tmp_path / "train.in").read_text()
    (tmp_path / "train.in").unlink()
    assert main(call) == 2
    assert "no file" in capsys.readouterr().err
    (tmp_path / "train.in").write_text(text)
    assert main([*call, "--set", "validation.sentences=0"]) == 0


def test_output_that_cannot_be_written_is_one_sentence(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for out in ("/proc/run", tmp_path / "file" / "run"):
        assert main(["train", "numbers", "--out", str(out)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert str(out) in line


def test_checkpoints_hold_no_pickle(finished):
    for path in (finished / "run" / "checkpoints").rglob("*.json"):
        json.loads(path.read_text())
    names = {path.name for path in (finished / "run" / "checkpoints").rglob("*") if path.is_file()}
    assert {name.rpartition(".")[2] for name in names} == {"json", "safetensors"}
