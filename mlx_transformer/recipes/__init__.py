"""A recipe: everything that turns raw parallel text into a trained model, in one TOML file.

Five sections, one dataclass each: [data], [tokenizer], [model], [training], [validation]. A recipe
is a path or the name of one shipped in `mlx_transformer/recipes`; any key can be replaced from the
command line as `section.key=value`.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

from mlx_transformer.config import ModelConfig, preset
from mlx_transformer.errors import InputError, naming
from mlx_transformer.inputs.checks import above_zero, at_least, below_one, must_be, nearest, typed

SUFFIX = ".toml"
SPLITS = ("train", "valid", "test")
MAX_WEIGHT = 1000
# What the tokenizer decides, so a recipe may not.
FROM_TOKENIZER = ("vocab_size", "target_vocab_size", "pad_id", "start_id", "eos_id")
REGULARISATION = ("dropout", "label_smoothing")  # what a recipe may change of a model it tunes


@dataclass(frozen=True)
class FilePair:
    """Two text files, one sentence a line, aligned by line number."""

    source: Path
    target: Path
    weight: float = 1.0  # how often each pair is in the training text; 0.5: every second pair

    def __post_init__(self) -> None:
        if not 0 < self.weight <= MAX_WEIGHT:
            raise InputError(
                f"the weight of {self.source} must be above 0 and at most {MAX_WEIGHT}, "
                f"not {self.weight}"
            )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """[data]: which text, and which pairs of it are left out.

    In TOML a corpus is a prefix ("train" for train.en and train.de), {prefix = ..., weight = ...}
    or {source = ..., target = ..., weight = ...}, and a split is one corpus or a list; `dir` says
    where they are.
    """

    source_language: str = "source"
    target_language: str = "target"
    train: tuple[FilePair, ...] = ()
    valid: tuple[FilePair, ...] = ()
    test: tuple[FilePair, ...] = ()
    task: Literal["numbers", "grammar"] | None = None  # generated text instead of files
    text: str | None = None  # a file of plain text instead of pairs, a text a line
    max_length: int = 256  # tokens of a sentence with its end token; longer pairs are dropped
    max_ratio: float = 9.0  # of the longer to the shorter side of a training pair
    variants: float = 0.0  # training pairs added as people type them, as a share of the text
    other_names: float = 0.0  # share of the training pairs whose names and numbers are exchanged

    def __post_init__(self) -> None:
        files = bool(self.train or self.valid or self.test)
        if self.task is None and self.text is None and not self.train:
            raise InputError(
                "[data] names no training text: give data.train, data.text or data.task"
            )
        if self.task is not None and (files or self.text is not None):
            raise InputError(f"data.task {self.task!r} makes its own text: give no files with it")
        if self.text is not None and files:
            raise InputError("data.text is plain text: give no pairs of files with it")
        at_least(2, self, "max_length", section="data.")
        at_least(1, self, "max_ratio", section="data.")
        must_be(
            "between 0 and 1",
            lambda share: 0 <= share <= 1,
            self,
            "variants",
            "other_names",
            section="data.",
        )

    @property
    def is_plain_text(self) -> bool:
        """One side, of which a model learns by itself."""
        return self.text is not None or self.task == "grammar"


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """[tokenizer]: the SentencePiece model, or one a side, learned from the training text."""

    type: Literal["bpe", "unigram"] = "bpe"
    joint: bool = True  # one vocabulary for both languages
    vocab_size: int = 8000  # of each model
    character_coverage: float = 1.0

    def __post_init__(self) -> None:
        at_least(8, self, "vocab_size", section="tokenizer.")
        must_be(
            "between 0.9 and 1",
            lambda share: 0.9 <= share <= 1,
            self,
            "character_coverage",
            section="tokenizer.",
        )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """[training]: batches, optimiser, schedule, checkpoints."""

    seed: int = 1
    max_steps: int = 100_000
    batch_tokens: int = 4096  # at most so many source and so many target tokens in a batch
    accumulate: int = 1  # batches in one update
    memory: float | str = "auto"  # GB that an update may take; "auto": what the device has
    micro_batches: int | None = None  # into which a batch is cut; left out: as memory demands
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    schedule: Literal["paper", "inverse_sqrt", "cosine", "constant"] = "paper"
    warmup: int = 4000
    learning_rate: float | None = None  # the peak; the paper's schedule has its own
    min_learning_rate: float = 0.0  # where cosine ends
    clip_norm: float | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    gradient_checkpointing: bool = False
    log_every: int = 50
    save_every: int = 1000
    keep_last: int = 5
    average_last: int = 5  # checkpoints in the final model; 1 takes the last as it is

    def __post_init__(self) -> None:
        at_least(0, self, "seed", "warmup", section="training.")
        at_least(1, self, "max_steps", "batch_tokens", "accumulate", section="training.")
        at_least(1, self, "micro_batches", section="training.")
        must_be('"auto" or a number of GB above 0', _is_memory, self, "memory", section="training.")
        at_least(
            1, self, "log_every", "save_every", "keep_last", "average_last", section="training."
        )
        at_least(0, self, "min_learning_rate", section="training.")
        above_zero(self, "eps", "learning_rate", "clip_norm", section="training.")
        below_one(self, "beta1", "beta2", section="training.")
        self._check_schedule()
        if self.average_last > self.keep_last:
            raise InputError(
                f"training.average_last {self.average_last} needs as many checkpoints kept, "
                f"but training.keep_last is {self.keep_last}"
            )

    def _check_schedule(self) -> None:
        if self.schedule == "paper":
            if self.learning_rate is not None:
                raise InputError(
                    "training.learning_rate follows from d_model and warmup with schedule "
                    "'paper': leave it out, or choose schedule 'inverse_sqrt'"
                )
            at_least(1, self, "warmup", section="training.")
        elif self.learning_rate is None:
            raise InputError(f"schedule {self.schedule!r} needs training.learning_rate, its peak")
        elif self.min_learning_rate > self.learning_rate:
            raise InputError("training.min_learning_rate is above training.learning_rate")


def _is_memory(value: float | str) -> bool:
    return value == "auto" if isinstance(value, str) else value > 0


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """[validation]: how often, on what, and when to stop early."""

    every: int = 1000  # steps
    metric: Literal["bleu", "chrf", "exact"] = "bleu"  # what the best model is best in
    sentences: int = 500  # translated to be judged; 0 for the loss alone
    beam: int = 4
    alpha: float = 0.6  # of the paper's length penalty
    patience: int | None = None  # validations without a better loss before training stops

    def __post_init__(self) -> None:
        at_least(1, self, "every", "beam", "patience", section="validation.")
        at_least(0, self, "sentences", "alpha", section="validation.")


@dataclass(frozen=True)
class ModelSection:
    """[model]: a preset of `config.PRESETS` and the settings that differ from it.

    With `start` it is that model, with its own tokenizer, whose training goes on.
    """

    preset: str = "base"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    start: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe, resolved: paths absolute, every key present and valid."""

    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelSection = ModelSection()
    training: TrainingConfig = TrainingConfig()
    validation: ValidationConfig = ValidationConfig()

    def __post_init__(self) -> None:
        if self.model.start is None:
            size = self.tokenizer.vocab_size
            config = self.model_config(size, size)  # a wrong one is said here, not after preparing
            if config.alone is not None and not self.data.is_plain_text:
                raise InputError(
                    f"the {config.alone} alone learns from plain text: give data.text, not pairs"
                )

    def model_config(self, source_vocab_size: int, target_vocab_size: int) -> ModelConfig:
        """The model of [model], sized for a tokenizer trained by this recipe."""
        values = {"shared_embeddings": self.tokenizer.joint} | dict(self.model.overrides)
        config = preset(
            self.model.preset,
            **values,
            vocab_size=source_vocab_size,
            target_vocab_size=target_vocab_size,
        )
        if self.data.max_length > config.max_length:
            raise InputError(
                f"data.max_length {self.data.max_length} is more than "
                f"model.max_length {config.max_length}"
            )
        return config

    def tuning(self, start: Path) -> "Recipe":
        """This recipe for a model that is there already, without what that model decides."""
        kept = {k: v for k, v in self.model.overrides.items() if k in REGULARISATION}
        model = ModelSection(overrides=kept, start=start.resolve())
        return replace(self, tokenizer=TokenizerConfig(), model=model)

    def unused_in_tuning(self) -> list[str]:
        """What this recipe says and `tuning` leaves out."""
        keys = [f"model.{key}" for key in self.model.overrides if key not in REGULARISATION]
        if self.model.preset != ModelSection.preset:
            keys.insert(0, "model.preset")
        return ["[tokenizer]", *keys] if self.tokenizer != TokenizerConfig() else keys

    def to_toml(self) -> str:
        """TOML that loads back to an equal recipe from anywhere."""
        sections = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        model = sections["model"]
        first = {"preset": model["preset"]}
        if self.model.start is not None:
            del sections["tokenizer"]
            first = {"start": model["start"]}
        sections["model"] = first | model["overrides"]
        lines = []
        for name, table in sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
            lines.append("")
        return "\n".join(lines)


def shipped_recipes() -> list[str]:
    """Names of the recipes in the package."""
    folder = resources.files("mlx_transformer") / "recipes"
    return sorted(f.name[: -len(SUFFIX)] for f in folder.iterdir() if f.name.endswith(SUFFIX))


def first_line(name: str) -> str:
    """What a shipped recipe says of itself."""
    return _read(name)[0].partition("\n")[0].removeprefix("#").strip(" :")


def load_recipe(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe and replace keys of it by `section.key=value`.

    Paths in a file are relative to data.dir, and that to the file (in a shipped recipe: to the
    current directory); paths in `overrides` are relative to the current directory.
    """
    text, home = _read(str(name_or_path))
    with naming(f"recipe {name_or_path}"):
        try:
            sections = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"not valid TOML: {error}") from error
        _check_names(sections)
        given = _parse_overrides(overrides)
        merged = {name: sections.get(name, {}) | given.get(name, {}) for name in _KEYS}
        merged["data"] = _resolve_data(merged["data"], home, given.get("data", {}))
        model = merged.pop("model")
        start = _start(model, Path.cwd() if "start" in given.get("model", {}) else home)
        settings = {k: v for k, v in model.items() if k not in ("preset", "start")}
        return Recipe(
            model=ModelSection(_preset(model), settings, start),
            **{name: _section(name, table) for name, table in merged.items()},
        )


def _read(name: str) -> tuple[str, Path]:
    """The text of a recipe and the directory its paths are relative to."""
    if name.endswith(SUFFIX) or "/" in name:
        path = Path(name).expanduser()
        try:
            return path.read_text(encoding="utf-8"), path.absolute().parent
        except UnicodeDecodeError as error:
            raise InputError(f"recipe {name} is not UTF-8 text: {error}") from error
    known = shipped_recipes()
    if name not in known:
        raise InputError(
            f"no recipe is called {name!r}{nearest(name, known) or '.'} "
            f"Shipped: {', '.join(known)}; a recipe of your own is a path that ends in {SUFFIX}"
        )
    file = resources.files("mlx_transformer") / "recipes" / (name + SUFFIX)
    return file.read_text(encoding="utf-8"), Path.cwd()


def _parse_overrides(overrides: Iterable[str]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot):
            raise InputError(f"{override!r} is not of the form section.key=value")
        sections.setdefault(section, {})[key] = _toml_value(text.strip())
    _check_names(sections)
    return sections


def _toml_value(text: str) -> Any:
    """`text` as a TOML value; as it stands where it is none, so that a path needs no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _check_names(sections: Mapping[str, Any]) -> None:
    """Refuse an unknown section or key, with the nearest right one."""
    for section, table in sections.items():
        if section not in _KEYS:
            raise InputError(f"unknown section [{section}]{nearest(section, list(_KEYS))}")
        if not isinstance(table, dict):
            raise InputError(f"{section!r} must be a section, [{section}], not {table!r}")
        for key in table:
            if key in _KEYS[section]:
                continue
            if section == "model" and key in FROM_TOKENIZER:
                raise InputError(f"model.{key} follows from the tokenizer: leave it out")
            elsewhere = [f"{other}.{key}" for other in _KEYS if key in _KEYS[other]]
            hint = f"; did you mean {elsewhere[0]!r}?" if elsewhere else ""
            raise InputError(
                f"unknown key {section + '.' + key!r}{hint or nearest(key, _KEYS[section])}"
            )


def _resolve_data(
    table: Mapping[str, Any], home: Path, overridden: Mapping[str, Any]
) -> dict[str, Any]:
    """[data] with every split a tuple of `FilePair`s with absolute paths, and without `dir`."""
    table = dict(table)
    languages = [table.get(f"{side}_language", side) for side in ("source", "target")]
    where = table.pop("dir", ".")
    if not isinstance(where, str):
        raise InputError(f"data.dir must be text, not {where!r}")
    folder = _absolute(where, Path.cwd() if "dir" in overridden else home)
    if "text" in overridden:
        table.pop("task", None)  # one's own text instead
    if isinstance(table.get("text"), str):
        base = Path.cwd() if "text" in overridden else folder
        table["text"] = str(_absolute(table["text"], base))
    for split in SPLITS:
        if split in table:
            listed = table[split] if isinstance(table[split], list) else [table[split]]
            base = Path.cwd() if split in overridden else folder
            table[split] = tuple(_file_pair(split, item, languages, base) for item in listed)
    return table


def _file_pair(split: str, item: object, languages: list[str], base: Path) -> FilePair:
    corpus: dict[str, Any] = dict(item) if isinstance(item, dict) else {"prefix": item}
    weight = corpus.pop("weight", 1.0)
    names: list[Any] = []
    if corpus.keys() == {"prefix"} and isinstance(corpus["prefix"], str):
        names = [f"{corpus['prefix']}.{language}" for language in languages]
    elif corpus.keys() == {"source", "target"}:
        names = [corpus["source"], corpus["target"]]
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f'data.{split} must list prefixes such as "train" or pairs such as '
            f'{{source = "a.en", target = "a.de"}}, not {item!r}'
        )
    if type(weight) not in (int, float):  # not isinstance: true is not a number
        raise InputError(f"a weight in data.{split} must be a number, not {weight!r}")
    if split != "train" and weight != 1:
        raise InputError(f"data.{split} is measured as it is: leave the weight out")
    source, target = (_absolute(name, base) for name in names)
    return FilePair(source, target, float(weight))


def _absolute(path: str, base: Path) -> Path:
    return (base / Path(os.path.expandvars(path)).expanduser()).resolve()


def _preset(table: Mapping[str, Any]) -> str:
    name = table.get("preset", ModelSection.preset)
    if not isinstance(name, str):
        raise InputError(f"model.preset must be text, not {name!r}")
    return name


def _start(table: Mapping[str, Any], base: Path) -> Path | None:
    start = table.get("start")
    if start is not None and not isinstance(start, str):
        raise InputError(f"model.start must be the path of a model, not {start!r}")
    return None if start is None else _absolute(start, base)


def _section(name: str, table: Mapping[str, Any]) -> Any:
    """Build the dataclass of a section, checking every value against the type of its field."""
    hints = get_type_hints(_SECTIONS[name])
    values = {
        # Tuples are files, checked where they are resolved.
        key: value if get_origin(hints[key]) is tuple else typed(f"{name}.{key}", value, hints[key])
        for key, value in table.items()
    }
    return _SECTIONS[name](**values)


def _plain(value: Any) -> Any:
    """Dataclasses, paths and tuples as TOML has them; None is a key left out."""
    if is_dataclass(value):
        items = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: _plain(item) for name, item in items if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):  # JSON's escapes are TOML's, but TOML also wants DEL escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


_SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "training": TrainingConfig,
    "validation": ValidationConfig,
}
_KEYS: dict[str, list[str]] = {
    "data": [f.name for f in fields(DataConfig)] + ["dir"],
    "tokenizer": [f.name for f in fields(TokenizerConfig)],
    "model": ["preset", "start"]
    + [f.name for f in fields(ModelConfig) if f.name not in FROM_TOKENIZER],
    "training": [f.name for f in fields(TrainingConfig)],
    "validation": [f.name for f in fields(ValidationConfig)],
}
