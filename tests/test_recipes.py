"""Recipes: what is read, where files are looked for, and how a mistake is named."""

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.config import preset
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import (
    DataConfig,
    FilePair,
    ModelSection,
    Recipe,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
    first_line,
    load_recipe,
    shipped_recipes,
)

MINIMAL = """
[data]
source_language = "en"
target_language = "de"
train = "train"
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "recipe.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_minimal_recipe_is_the_papers_base_model(write, tmp_path):
    recipe = load_recipe(write(MINIMAL))
    assert recipe.data.train == (FilePair(tmp_path / "train.en", tmp_path / "train.de"),)
    assert recipe.model_config(37_000, 37_000) == preset("base")
    training = recipe.training
    assert (training.beta1, training.beta2, training.eps) == (0.9, 0.98, 1e-9)
    assert (training.schedule, training.warmup) == ("paper", 4000)
    assert (recipe.validation.beam, recipe.validation.alpha) == (4, 0.6)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_is_valid_and_says_what_it_is_in_a_line(name):
    load_recipe(name)
    assert 20 < len(first_line(name)) < 100


@pytest.mark.parametrize(
    ("size", "steps", "averaged", "dropout"),
    [("base", 100_000, 5, 0.1), ("big", 300_000, 20, 0.3)],
)
def test_the_wmt_recipes_are_the_papers_settings(size, steps, averaged, dropout):
    recipe = load_recipe(f"wmt14-en-de-{size}")
    training = recipe.training
    assert (training.max_steps, training.average_last) == (steps, averaged)
    assert (training.batch_tokens, training.accumulate) == (25_000, 1)
    assert (training.schedule, training.warmup, training.learning_rate) == ("paper", 4000, None)
    assert (training.beta1, training.beta2, training.eps) == (0.9, 0.98, 1e-9)
    assert recipe.tokenizer == TokenizerConfig(type="bpe", joint=True, vocab_size=37_000)
    assert recipe.model_config(37_000, 37_000) == preset(size)
    assert recipe.model_config(37_000, 37_000).dropout == dropout
    assert (recipe.validation.beam, recipe.validation.alpha) == (4, 0.6)


# Where files are looked for


def test_paths_are_relative_to_dir_and_that_to_the_recipe(write, tmp_path):
    recipe = load_recipe(
        write(
            """
            [data]
            dir = "text"
            source_language = "en"
            target_language = "de"
            train = ["news", {source = "a.txt", target = "/elsewhere/b.txt"}]
            valid = "dev"
            """
        )
    )
    text = tmp_path / "text"
    assert recipe.data.train == (
        FilePair(text / "news.en", text / "news.de"),
        FilePair(text / "a.txt", Path("/elsewhere/b.txt")),
    )
    assert recipe.data.valid == (FilePair(text / "dev.en", text / "dev.de"),)
    assert recipe.data.test == ()


def test_paths_of_a_shipped_recipe_and_of_overrides_are_relative_to_here(
    write, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    shipped = load_recipe("multi30k-en-de").data.train[0].source
    assert shipped == here / "data/multi30k/train.en"
    moved = load_recipe("multi30k-en-de", ["data.dir=m30k"]).data.valid[0].target
    assert moved == here / "m30k/val.de"
    mine = load_recipe(write(MINIMAL), ["data.train=other"]).data.train[0].source
    assert mine == here / "other.en"


def test_home_and_environment_variables_are_expanded(write, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("CORPORA", "/corpora")
    path = write(MINIMAL)
    assert load_recipe(path, ["data.dir=~/text"]).data.train[0].source == Path(
        "/home/someone/text/train.en"
    )
    assert load_recipe(path, ["data.dir=$CORPORA/x"]).data.train[0].target == Path(
        "/corpora/x/train.de"
    )


# Overrides


def test_override_values_are_toml_and_otherwise_text(write):
    recipe = load_recipe(
        write(MINIMAL),
        [
            "training.max_steps=5_00",
            "training.schedule=cosine",
            'training.dtype = "bfloat16"',
            "training.learning_rate=1e-3",
            "tokenizer.joint=false",
            "model.d_model=128",
            'data.valid=[{source="/v.en", target="/v.de"}]',
        ],
    )
    assert recipe.training.max_steps == 500
    assert recipe.training.schedule == "cosine"
    assert recipe.training.dtype == "bfloat16"
    assert recipe.training.learning_rate == 1e-3
    assert recipe.data.valid == (FilePair(Path("/v.en"), Path("/v.de")),)
    config = recipe.model_config(100, 200)
    assert (config.d_model, config.vocab_size, config.target_size) == (128, 100, 200)
    assert not config.shared_embeddings  # two vocabularies cannot share one matrix


def test_the_last_override_of_a_key_counts(write):
    overrides = ["training.max_steps=1", "training.max_steps=2"]
    assert load_recipe(write(MINIMAL), overrides).training.max_steps == 2


# Mistakes


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_step=5", "unknown key 'training.max_step'; did you mean 'max_steps'?"),
        ("training.dropout=0.1", "unknown key 'training.dropout'; did you mean 'model.dropout'?"),
        ("trainig.max_steps=5", "unknown section [trainig]; did you mean 'training'?"),
        ("model.d_modle=5", "unknown key 'model.d_modle'; did you mean 'd_model'?"),
        ("model.vocab_size=5", "model.vocab_size follows from the tokenizer"),
        ("model.eos_id=5", "model.eos_id follows from the tokenizer"),
        ("max_steps=5", "'max_steps=5' is not of the form section.key=value"),
        ("training.max_steps", "is not of the form section.key=value"),
        ("training.max_steps=many", "training.max_steps must be a whole number, not 'many'"),
        ("training.max_steps=1.5", "training.max_steps must be a whole number, not 1.5"),
        ("training.max_steps=true", "training.max_steps must be a whole number, not True"),
        ("training.max_steps=0", "training.max_steps must be at least 1, not 0"),
        ("training.beta2=1.0", "training.beta2 must be in [0, 1), not 1.0"),
        ("training.eps=0", "training.eps must be above 0, not 0.0"),
        ("training.clip_norm=nan", "training.clip_norm must be above 0, not nan"),
        ("training.schedule=linear", "training.schedule must be one of 'paper', 'inverse_sqrt'"),
        ("training.schedule=constant", "schedule 'constant' needs training.learning_rate"),
        ("training.learning_rate=0.1", "follows from d_model and warmup with schedule 'paper'"),
        ("training.warmup=0", "training.warmup must be at least 1, not 0"),
        ("training.gradient_checkpointing=1", "must be true or false, not 1"),
        ("training.average_last=9", "training.average_last 9 needs as many checkpoints kept"),
        ("tokenizer.vocab_size=3", "tokenizer.vocab_size must be at least 8, not 3"),
        ("tokenizer.character_coverage=0.5", "must be between 0.9 and 1, not 0.5"),
        ("tokenizer.type=word", "tokenizer.type must be one of 'bpe', 'unigram', not 'word'"),
        ("model.preset=bsae", "unknown preset 'bsae'; did you mean 'base'?"),
        ("model.preset=5", "model.preset must be text, not 5"),
        ("model.d_model=[1]", "d_model must be a whole number, not a list"),
        ("model.max_length=64", "data.max_length 256 is more than model.max_length 64"),
        ("data.max_ratio=0.5", "data.max_ratio must be at least 1, not 0.5"),
        ("data.max_ratio=nan", "data.max_ratio must be at least 1, not nan"),
        ("data.train=[]", "[data] names no training text"),
        ("data.train=5", 'data.train must list prefixes such as "train"'),
        ('data.valid={source="x"}', 'data.valid must list prefixes such as "train"'),
        ('data.valid={source="x", target=5}', 'data.valid must list prefixes such as "train"'),
        ("data.dir=5", "data.dir must be text, not 5"),
        ("data.source_language=5", "data.source_language must be text, not 5"),
        ("data.task=numbers", "data.task 'numbers' makes its own text"),
        ("data.task=letters", "data.task must be one of 'numbers', 'grammar', not 'letters'"),
        ("validation.beam=0", "validation.beam must be at least 1, not 0"),
        ("validation.patience=0", "validation.patience must be at least 1, not 0"),
    ],
)
def test_a_mistake_is_named(write, override, words):
    path = write(MINIMAL)
    with pytest.raises(InputError) as error:
        load_recipe(path, [override])
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[data", "not valid TOML"),
        ("data = 5", "'data' must be a section, [data], not 5"),
        ("train = 'x'", "unknown section [train]"),
        ("[data]\ntrain = 'x'\n[validation]\nevry = 5", "'validation.evry'; did you mean 'every'?"),
        ("", "[data] names no training text"),
    ],
)
def test_a_broken_file_is_named(write, text, words):
    path = write(text)
    with pytest.raises(InputError) as error:
        load_recipe(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_recipe(path)


def test_an_unknown_name_lists_the_shipped_ones():
    with pytest.raises(InputError) as error:
        load_recipe("mutli30k-en-de")
    assert "did you mean 'multi30k-en-de'?" in str(error.value)
    assert "wmt14-en-de-big" in str(error.value)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_recipe(tmp_path / "none.toml")


# Writing


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_survives_writing(name, write):
    recipe = load_recipe(name, ["training.seed=7"])
    assert load_recipe(write(recipe.to_toml())) == recipe


texts = st.text(st.characters(exclude_categories=["Cs"]))
paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/$~"), min_size=1)


@given(texts, paths, st.floats(1, allow_nan=False), st.booleans(), st.sampled_from([None, 3]))
def test_any_recipe_survives_writing(tmp_path_factory, language, name, ratio, joint, patience):
    if name in (".", ".."):
        name = "dots"
    pair = FilePair(Path("/") / name, Path("/x") / name)
    recipe = Recipe(
        data=DataConfig(source_language=language, train=(pair, pair), max_ratio=ratio),
        tokenizer=TokenizerConfig(joint=joint),
        model=ModelSection("tiny", {"dropout": 0.25, "norm": "pre", "attention_bias": False}),
        training=TrainingConfig(schedule="cosine", learning_rate=ratio, clip_norm=None),
        validation=replace(ValidationConfig(), patience=patience),
    )
    path = tmp_path_factory.mktemp("recipe") / "run.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(path) == recipe


def test_written_paths_are_absolute_and_load_from_anywhere(write, tmp_path, monkeypatch):
    recipe = load_recipe(write(MINIMAL))
    values = tomllib.loads(recipe.to_toml())
    assert values["data"]["train"] == [
        {
            "source": str(tmp_path / "train.en"),
            "target": str(tmp_path / "train.de"),
            "weight": 1.0,
        }
    ]
    (tmp_path / "run").mkdir()
    copy = write(recipe.to_toml(), "run/run.toml")
    monkeypatch.chdir(os.sep)
    assert load_recipe(copy) == recipe
