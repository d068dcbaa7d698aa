"""Run the original beside the converted model, and certify how far they are apart."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.families import find_family
from mlx_transformer.convert.family import Family, Logits, Options, Source
from mlx_transformer.convert.plan import REQUIRED, uses
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model, named_parameters
from mlx_transformer.tokenizer import load_tokenizer

# Of float32 logits, relative to the largest: a mix-up is a thousand times more.
TOLERANCE = 1e-4
RANDOM_SOURCES = 32
STEPS = 10
# What no tensor shows, and what a user can name.
UNSEEN = (*REQUIRED, "norm", "norm_eps", "activation", "scale_embedding")
OWN_KEYS = ("source_embedding", "target_embedding", "output", "positions")
SENTENCES = (
    "Good morning!",
    "The house at the end of the street is empty.",
    "She asked whether the train to Berlin would be late again.",
    "Wie viel kostet das, und wo kann ich bezahlen?",
    "Il pleut depuis trois jours.",
    "El niño lee un libro.",
    "I bought 3.5 kg of apples (for $4.20) on 12/05/2019.",
    "A",
)
CERTIFICATE = """\
# Parity

{verdict}

| | |
|---|---|
| original | {c.original} |
| converted | `{name}`, {c.precision} |
| logits compared | {compared} |
| largest logit | {c.largest:.4g} |
| largest difference | {c.maximum:.2e}, which is {c.relative:.2e} of the largest logit |
| mean difference | {c.mean:.2e} |
| greedy ids, random sources | {random} |
| greedy ids, sentences | {sentences} |
| versions | {versions} |
{assumed}
Both computed in float32, without dropout, on the same ids: {RANDOM_SOURCES} sources of random words
and, where there is a tokenizer, {n} sentences. {greedy}
"""
GREEDY = (
    f"Greedy ids are the best {STEPS} next words, each model\nreading its own.",
    "Greedy ids are the best words of all places.",
)


@dataclass(frozen=True)
class Certificate:
    """How far the two are apart."""

    original: str
    precision: str  # of the converted model's weights
    shape: tuple[int, ...]  # of the logits
    largest: float
    maximum: float  # difference of two logits
    mean: float
    assumed: Mapping[str, object]  # settings that the original was given, and does not prove
    random: tuple[int, int]  # sources with equal greedy ids, of how many
    sentences: tuple[int, int] | None  # without a tokenizer there are none
    one_text: bool = False  # the model reads one text, and writes none

    @property
    def relative(self) -> float:
        return self.maximum / self.largest

    @property
    def holds(self) -> bool:
        """Other precisions than float32 are not meant to be equal: there the figures speak."""
        return self.relative <= TOLERANCE or self.precision != "float32"

    def text(self, name: str) -> str:
        def equal(count: tuple[int, int] | None) -> str:
            return f"{count[0]} of {count[1]} equal" if count else "no tokenizer"

        return CERTIFICATE.format(
            c=self,
            name=name,
            verdict=self._verdict(),
            compared=" x ".join(map(str, self.shape)),
            random=equal(self.random),
            sentences=equal(self.sentences),
            versions=_versions(),
            assumed=self._assumptions(),
            RANDOM_SOURCES=RANDOM_SOURCES,
            greedy=GREEDY[self.one_text],
            n=len(SENTENCES),
        )

    def _verdict(self) -> str:
        if self.precision != "float32":
            return (
                f"Stored in {self.precision}, the logits differ from the original's by up to "
                f"{self.relative:.1e} of the largest."
            )
        if self.holds and self.assumed:
            return (
                "If what was assumed is right, the converted model computes what the original did."
            )
        if self.holds:
            return "The converted model computes what the original computes."
        return "THE CONVERTED MODEL DOES NOT COMPUTE WHAT THE ORIGINAL COMPUTES."

    def _assumptions(self) -> str:
        if not self.assumed:
            return ""
        listed = ", ".join(f"{name} {value}" for name, value in self.assumed.items())
        return (
            f"| assumed, not proven | {listed}: the file does not say so, both models were told |\n"
        )


@device.reference()  # some GPUs round float32 products
def verify(
    checkpoint: Path, directory: Path, options: Options, *, family: str | None = None
) -> Certificate:
    """Compare the model in `directory` with the checkpoint it was made from; write PARITY.md."""
    found, source = find_family(read_checkpoint(checkpoint), options, family)
    model = load_model(directory, mx.float32)
    config = model.config
    original = found.original(source, config)

    def converted(source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        hidden = model.hidden(mx.array(source_ids), mx.array(target_ids))
        return np.array(hidden if config.word_head == "none" else model.logits(hidden))

    random, sentences = _random_sources(config), _sentences(directory, config)
    target = _random_ids(config.target_size, (len(random), STEPS), config, seed=1)
    theirs = original.logits(random, target)
    ours = converted(random, target)[..., : theirs.shape[-1]]  # a word may be added for padding
    if config.alone:  # what stands at padding means nothing
        theirs, ours = (found[random != config.pad_id] for found in (theirs, ours))
    difference = np.abs(ours - theirs)
    certificate = Certificate(
        original=original.description,
        precision=_precision(directory),
        shape=ours.shape,
        # Words that must never come have logits of -10000: the best ones tell the scale.
        largest=float(np.abs(theirs.max(axis=-1)).max()),
        maximum=float(difference.max()),
        mean=float(difference.mean()),
        assumed={} if original.independent else assumptions(found, source, config),
        random=_equal_ids(original.logits, converted, random, config),
        sentences=None
        if sentences is None
        else _equal_ids(original.logits, converted, sentences, config),
        one_text=config.alone is not None,
    )
    (directory / "PARITY.md").write_text(certificate.text(directory.name), encoding="utf-8")
    return certificate


def assumptions(family: Family, source: Source, config: ModelConfig) -> dict[str, object]:
    """What was not read off the checkpoint: settings that no tensor shows, keys and new names."""
    said, options = family.settings(source), source.options
    told = {name: value for name, value in config.to_dict().items() if name in options.settings}
    unseen = {name: getattr(config, name) for name in UNSEEN if name not in said}
    if _positions_unsaid(family, source, config):
        unseen["positions"] = f"{config.positions}, {config.position_layout}"
    keys = {name: getattr(options, name) for name in OWN_KEYS if getattr(options, name)}
    renames = {f"the name {new} for": old for old, new in options.renames}
    return {**unseen, **told, **keys, **renames}


def _positions_unsaid(family: Family, source: Source, config: ModelConfig) -> bool:
    """A formula that neither a table in the file nor its family tells"""
    if config.positions != "sinusoidal" or "position_layout" in family.settings(source):
        return False
    return not any("embedding.positions" in use for use in uses(family, source).values())


def _precision(directory: Path) -> str:
    model = load_model(directory)
    if model.config.quantization is not None:
        return f"{model.config.quantization} bits"
    dtypes = {array.dtype for array in named_parameters(model).values()}
    return " and ".join(sorted(str(dtype).removeprefix("mlx.core.") for dtype in dtypes))


def _versions() -> str:
    found = []
    for name in ("mlx", "torch", "transformers"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


# Inputs


def _random_ids(size: int, shape: tuple[int, int], config: ModelConfig, seed: int) -> np.ndarray:
    """Words that are neither padding nor the end."""
    words = np.setdiff1d(np.arange(size), [config.pad_id, config.eos_id])
    return np.random.default_rng(seed).choice(words, shape)


def _random_sources(config: ModelConfig) -> np.ndarray:
    """Sources of 1 to 15 words, their end, and padding: (RANDOM_SOURCES, 16)"""
    ids = _random_ids(config.vocab_size, (RANDOM_SOURCES, 16), config, seed=0)
    lengths = 1 + np.arange(RANDOM_SOURCES) % 15
    ids[np.arange(RANDOM_SOURCES), lengths] = config.eos_id
    return np.where(np.arange(16) > lengths[:, None], config.pad_id, ids)


def _sentences(directory: Path, config: ModelConfig) -> np.ndarray | None:
    """The sentences as ids (n, S), if the model came with a tokenizer."""
    try:
        tokenizer = load_tokenizer(directory, config)
    except InputError:
        return None
    if languages := tokenizer.tags.targets:  # any one will do
        tokenizer = tokenizer.between(target=languages[0])
    batch = tokenizer.sources(SENTENCES, config.eos_id)
    return _padded(batch, config.pad_id)[:, : config.max_length]


def _padded(batch: Sequence[Sequence[int]], pad_id: int) -> np.ndarray:
    width = max(map(len, batch))
    return np.array([[*ids, *[pad_id] * (width - len(ids))] for ids in batch])


# Greedy search, by full passes


def _equal_ids(
    original: Logits, converted: Logits, source: np.ndarray, config: ModelConfig
) -> tuple[int, int]:
    """Sources for which both models write the same, of how many"""
    write = _best_words if config.alone else _greedy
    theirs, ours = (write(logits, source, config) for logits in (original, converted))
    return int((theirs == ours).all(axis=1).sum()), len(source)


def _greedy(logits: Logits, source: np.ndarray, config: ModelConfig) -> np.ndarray:
    """(B,S) -> (B,STEPS)"""
    start = config.first_id
    ids = np.full((len(source), 1), start)
    for _ in range(STEPS):
        best = logits(source, ids)[:, -1].argmax(axis=-1)
        ids = np.append(ids, best[:, None], axis=1)
    return ids[:, 1:]


def _best_words(logits: Logits, text: np.ndarray, config: ModelConfig) -> np.ndarray:
    """(B,S) -> (B,S), nothing at padding"""
    return np.where(text == config.pad_id, 0, logits(text, text).argmax(axis=-1))
