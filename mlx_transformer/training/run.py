"""A run: made from a recipe, trained in its directory, resumed, ended in one averaged model."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.objectives import Objective, objective_for
from mlx_transformer.data.prepare import PreparationReport, TellPairs, prepare, prepared
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import Recipe, TrainingConfig, ValidationConfig, load_recipe
from mlx_transformer.storage import (
    built_aside,
    is_model_directory,
    load_model,
    locked,
    replace_text,
    save_model,
    undo_unfinished,
)
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer, with_languages
from mlx_transformer.training.checkpoint import Checkpoints, Progress, average
from mlx_transformer.training.memory import agreed_micro_batches
from mlx_transformer.training.report import MetricsLog, Reporter
from mlx_transformer.training.run_directory import RunDirectory
from mlx_transformer.training.step import TrainingState, initial_state
from mlx_transformer.training.trainer import Hooks, Interruption, Outcome, Trainer
from mlx_transformer.training.validation import Translate, Validator

# The verb of a model with both halves, or one.
USES = {None: "translate", "encoder": "fill", "decoder": "complete"}
# Changing these would make the saved state, or the position in the data, wrong.
FIXED_SECTIONS = ("data", "tokenizer", "model")
FIXED_KEYS = (
    "training.seed",
    "training.batch_tokens",
    "training.dtype",
    "training.memory",
    "training.micro_batches",
)


@dataclass(frozen=True)
class Run:
    path: Path
    recipe: Recipe

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "Run":
        """A new run. It may take the place of one that has saved nothing yet."""
        run = cls(path, recipe)
        if run.checkpoints.paths():
            raise InputError(
                f"{path} already holds a run: resume it, or choose another place",
                options=["resume"],
            )
        run._check_nothing_is_lost()
        path.mkdir(parents=True, exist_ok=True)
        if run.files.start.exists():
            shutil.rmtree(run.files.start)
        if recipe.model.start is not None:
            run._copy_start(recipe.model.start)
        run._write_recipe()
        return run

    @classmethod
    def open(cls, path: Path, overrides: Iterable[str] = ()) -> "Run":
        """An existing run, some keys of its recipe replaced."""
        files = RunDirectory(path)
        if not files.recipe.is_file():
            raise InputError(
                f"{path} holds no run (it has no run.toml): start one with mlx-transformer train"
            )
        overrides = list(overrides)
        for override in overrides:
            key = override.partition("=")[0].strip()
            if key.partition(".")[0] in FIXED_SECTIONS or key in FIXED_KEYS:
                raise InputError(f"{key} cannot change within a run: start a new one")
        run = cls(path, load_recipe(files.recipe, overrides))
        if overrides:
            run._write_recipe()
        return run

    @property
    def files(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.files.checkpoints)

    def _check_nothing_is_lost(self) -> None:
        """Folders of a run are replaced; in the place of one may stand somebody's own."""
        files = self.files
        if files.recipe.is_file():
            return
        for folder in (files.model, files.best, files.start):
            left = folder == files.start and is_model_directory(folder)  # killed while making it
            if folder.exists() and not left:
                raise InputError(f"{folder} is there, and of no run: choose another place")

    def tokenizer(self) -> Tokenizer:
        return self._in_its_languages(load_tokenizer(self.files.data))

    def _in_its_languages(self, tokenizer: Tokenizer) -> Tokenizer:
        """A model of several languages is told which ones the recipe trains it on."""
        data, tags = self.recipe.data, tokenizer.tags
        source = data.source_language if len(tags.sources) > 1 else None
        target = data.target_language if len(tags.targets) > 1 else None
        try:
            return tokenizer.between(source, target)
        except InputError:
            if tags.optional:  # T5 learns any pair, without a prefix that it knows
                return tokenizer
            raise

    def objective(self, config: ModelConfig) -> Objective | None:
        """What the model learns from plain text; None: to translate pairs."""
        if self.recipe.data.is_plain_text:
            return objective_for(config, self.tokenizer())
        if config.alone is not None:
            raise InputError(
                f"the {config.alone} alone learns from plain text: give data.text, not pairs"
            )
        return None

    def same_tokenizer(self, config: ModelConfig, fingerprint: str | None) -> str:
        """The fingerprint of the run's tokenizer, which must be `fingerprint` if that is known."""
        found = load_tokenizer(self.files.data, config).fingerprint
        if fingerprint not in (None, found):
            raise InputError(
                f"the tokenizer in {self.files.data} is not the one that this run was trained "
                "with: put that back, or start a new run"
            )
        return found

    def prepare(self, progress: TellPairs) -> PreparationReport:
        """Text to ids, unless that is done; ids that were trained on stay what they are."""
        done = prepared(self.files.data)
        if done is not None and self.checkpoints.paths():
            return done
        start = self.files.start
        tokenizer = self._in_its_languages(load_tokenizer(start)) if start.exists() else None
        return prepare(self.recipe, self.files.data, tokenizer, progress)

    def restore(self, warn: Callable[[str], None]) -> tuple[ModelConfig, TrainingState, Progress]:
        """The newest whole checkpoint, or where a new run begins."""
        found = self.checkpoints.newest(warn)
        if found is not None:
            state, progress, config = found
            return config, state, progress
        model = self._first_model()
        return model.config, initial_state(model, self.recipe.training), Progress()

    def cut_into(self, micro_batches: int, *, write: bool) -> "Run":
        """This run with its batches cut so; written down, because it stays so for ever."""
        training = replace(self.recipe.training, micro_batches=micro_batches)
        run = replace(self, recipe=replace(self.recipe, training=training))
        if write:
            run._write_recipe()
        return run

    def write_model(self, model: Transformer, directory: Path) -> None:
        """A model directory that every verb can use, and that says its languages."""
        data, tokenizer = self.recipe.data, self.tokenizer()
        if not data.is_plain_text:
            tokenizer = with_languages(tokenizer, data.source_language, data.target_language)
        write_model(model, tokenizer, directory, self._card(model.config, directory))

    def average(self, last: int, directory: Path) -> list[Path]:
        """Write the mean of the last checkpoints as a model; returns which those were."""
        paths = self.checkpoints.paths()[-last:]
        if not paths:
            raise InputError(f"{self.path} has no checkpoint yet: train it first")
        model = Transformer(ModelConfig.load(paths[-1] / "config.json"))
        model.load_weights(list(average(paths).items()))
        self.write_model(model, directory)
        return paths

    def _first_model(self) -> Transformer:
        start = self.files.start
        if start.exists():
            return load_model(start)
        tokenizer = self.tokenizer()
        sizes = tokenizer.source_vocab_size, tokenizer.target_vocab_size
        mx.random.seed(self.recipe.training.seed)
        return Transformer(self.recipe.model_config(*sizes))

    def _copy_start(self, start: Path) -> None:
        model = load_unquantized(start)
        model.config = replace(model.config, **self.recipe.model.overrides)
        tokenizer = load_tokenizer(start, model.config)
        write_model(model, tokenizer, self.files.start, f"A copy of {start}.\n")

    def _write_recipe(self) -> None:
        replace_text(self.files.recipe, self.recipe.to_toml())

    def _card(self, config: ModelConfig, directory: Path) -> str:
        data, start = self.recipe.data, self.recipe.model.start
        tuned = f", fine-tuned from `{start}`" if start is not None else ""
        title = f"{data.source_language} to {data.target_language}"
        verb = USES[config.alone]
        return (
            f"# {directory.parent.name if data.is_plain_text else title}\n\n"
            f"A Transformer trained with mlx-transformer{tuned}:\n\n"
            f'    mlx-transformer {verb} --model {directory} "..."\n\n'
            f"The recipe it was trained with:\n\n```toml\n{self.recipe.to_toml()}```\n"
        )


@contextmanager
def held(path: Path) -> Iterator[None]:
    """One run directory, one trainer; what a killed one left half saved is cleared away."""
    path.mkdir(parents=True, exist_ok=True)
    files = RunDirectory(path)
    with locked(files.lock, f"{path} is being trained"):
        Checkpoints(files.checkpoints).undo_unfinished()
        undo_unfinished(files.best)
        yield


def train(
    run: Run,
    translate: Translate,
    reporter: Reporter,
    interruption: Interruption,
    group: mx.distributed.Group,
) -> Outcome:
    """Train a run, from wherever it is, to its end or until interrupted."""
    config, state, progress = run.restore(reporter.message)
    progress = replace(progress, tokenizer=run.same_tokenizer(config, progress.tokenizer))
    if group.rank() == 0:
        MetricsLog(run.files.metrics).cut(progress.step, reporter.message)
    _say_what_comes(run.recipe.training, progress.step, reporter)

    batches = _training_batches(run, config, group)
    if run.recipe.training.micro_batches is None and progress.step == 0:
        pieces = agreed_micro_batches(config, run.recipe.training, batches.shapes, group)
        run = run.cut_into(pieces, write=group.rank() == 0)
    recipe = run.recipe
    hooks = Hooks(
        reporter,
        _validator(run, "valid", recipe.validation, config, translate),
        lambda best: run.write_model(best, run.files.best),
        interruption,
    )
    trainer = Trainer(
        config, state, batches, recipe.training, recipe.validation, run.files, hooks, group
    )
    del state  # the trainer has its own copy: free this one
    with interruption:
        outcome = trainer.train(progress)
    if outcome != "interrupted" and group.rank() == 0:
        *_, newest = run.average(recipe.training.average_last, run.files.model)
        _test(run, int(newest.name.removeprefix("step-")), translate, reporter)
    return outcome


def _say_what_comes(training: TrainingConfig, step: int, reporter: Reporter) -> None:
    if step > 0:
        reporter.message(f"going on after step {step} of {training.max_steps}")
    if training.warmup > training.max_steps:
        reporter.message(
            f"training.warmup {training.warmup:,} is beyond training.max_steps "
            f"{training.max_steps:,}: the learning rate never reaches its peak"
        )
    if device.builds_kernels():
        reporter.message("the first steps build kernels: up to a minute each, once")


def _training_batches(run: Run, config: ModelConfig, group: mx.distributed.Group) -> Batches:
    return Batches(
        ParallelCorpus.open(run.files.data, "train"),
        config,
        run.recipe.training.batch_tokens,
        seed=run.recipe.training.seed,
        rank=group.rank(),
        size=group.size(),
        objective=run.objective(config),
    )


def _validator(
    run: Run, split: str, settings: ValidationConfig, config: ModelConfig, translate: Translate
) -> Validator | None:
    corpus = ParallelCorpus.open(run.files.data, split)
    if len(corpus) == 0:
        return None
    objective = run.objective(config)
    batches = Batches(corpus, config, run.recipe.training.batch_tokens, objective=objective)
    if objective is not None and objective.aligned:
        settings = replace(settings, sentences=0)  # nothing is written: the loss says it all
    elif objective is not None:
        corpus = _with_lines(corpus, batches, run.tokenizer())
    return Validator(corpus, batches, settings, translate)


def _with_lines(corpus: ParallelCorpus, batches: Batches, tokenizer: Tokenizer) -> ParallelCorpus:
    """Plain text with gaps and what is missing, as lines to translate and to compare with"""
    examples = [batches.example(text, epoch=0) for text in range(len(corpus))]
    read, expected = (tokenizer.decode_batch(side) for side in zip(*examples, strict=True))
    return replace(corpus, source_lines=read, target_lines=expected)


def _test(run: Run, step: int, translate: Translate, reporter: Reporter) -> None:
    """Judge the finished model by every sentence of the recipe's test set."""
    model, settings = load_model(run.files.model), run.recipe.validation
    if settings.sentences > 0:
        settings = replace(settings, sentences=sys.maxsize)
    validator = _validator(run, "test", settings, model.config, translate)
    if validator is not None:
        report = replace(validator(model, step), split="test")
        MetricsLog(run.files.metrics).append(report)
        reporter.tested(report)


def load_unquantized(directory: Path) -> Transformer:
    """In float32: rounded weights are no place to go on from."""
    model = load_model(directory, mx.float32)
    if model.config.quantization is not None:
        raise InputError(f"{directory} is quantised: name the model it was made from")
    return model


def write_model(model: Transformer, tokenizer: Tokenizer, directory: Path, card: str) -> None:
    """Weights, config, tokenizer and card, at once or not at all."""
    with built_aside(directory) as aside:
        save_model(model, aside)
        tokenizer.save(aside)
        (aside / "README.md").write_text(card, encoding="utf-8")
