"""Raw text to a prepared directory: learn the tokenizer, drop bad pairs, write ids.

Everything streams in chunks, so that memory does not grow with the corpus. The directory is built
aside and renamed: it is either complete or not there.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

from mlx_transformer.config import ModelConfig
from mlx_transformer.data import subwords
from mlx_transformer.data.corpus import MANIFEST, SIDES, SentenceWriter, id_dtype, read_manifest
from mlx_transformer.data.objectives import gaps_for
from mlx_transformer.data.text import BadLine, Pair, ParallelText, open_text
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import SPLITS, DataConfig, Recipe
from mlx_transformer.storage import built_aside, locked
from mlx_transformer.tokenizer import Tokenizer, sentencepiece_tokenizer, text_tokenizer

FORMAT = 1  # of a prepared directory; another number is prepared again
CHUNK = 10_000  # pairs held in memory at once
LEARN = "learn the vocabulary"
NOT_UTF8 = "invalid UTF-8"
MOST_NOT_UTF8 = 0.05  # of the training pairs: more means another encoding, not a bad line

# Called with what is being done, how many pairs are done, and of how many.
TellPairs = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SplitReport:
    """What became of one split."""

    pairs: int
    source_tokens: int  # pieces, without end tokens
    target_tokens: int
    dropped: dict[str, int]  # why -> how many pairs
    invalid_lines: list[str]  # where the first few lines that are not UTF-8 are


@dataclass(frozen=True)
class PreparationReport:
    """What is in a prepared directory; `reused` where nothing had to be done."""

    source_vocab_size: int
    target_vocab_size: int
    splits: dict[str, SplitReport]
    reused: bool = False


def prepare(
    recipe: Recipe,
    out: Path,
    tokenizer: Tokenizer | None = None,
    progress: TellPairs = lambda stage, done, total: None,
) -> PreparationReport:
    """Make `out` a prepared directory of the recipe's data, unless it is one already.

    Given a tokenizer, as in fine-tuning, that is used instead of learning one.
    """
    texts = {split: open_text(recipe.data, split) for split in SPLITS}
    fingerprint = _fingerprint(recipe, tokenizer)
    if (found := _existing(out)) is not None and found["fingerprint"] == fingerprint:
        return replace(_read_report(found["report"]), reused=True)

    out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.resolve().with_name(f".{out.resolve().name}.lock")
    with locked(lock, f"{out} is being prepared"), built_aside(out) as aside:
        if tokenizer is None:
            tokenizer = _learn_tokenizer(texts["train"], recipe, progress)
        tokenizer.save(aside)
        write = _write_texts if recipe.data.is_plain_text else _write_split
        splits = {
            split: write(aside, split, text, recipe.data, tokenizer, progress)
            for split, text in texts.items()
            if text.count
        }
        report = PreparationReport(tokenizer.source_vocab_size, tokenizer.target_vocab_size, splits)
        _check_training(splits["train"])
        _write_manifest(aside, recipe.data, tokenizer, fingerprint, report)
    return report


def _check_training(found: SplitReport) -> None:
    dropped = found.dropped
    if (bad := dropped.get(NOT_UTF8, 0)) > MOST_NOT_UTF8 * (found.pairs + sum(dropped.values())):
        raise InputError(
            f"{bad:,} training pairs are not UTF-8 ({found.invalid_lines[0]}): convert the text, "
            "from Latin-1 by `iconv -f LATIN1 -t UTF-8`"
        )
    if found.pairs == 0:
        reasons = ", ".join(f"{n} {reason}" for reason, n in dropped.items())
        raise InputError(f"no training pair is left: {reasons}")


def prepared(directory: Path) -> PreparationReport | None:
    """What a prepared directory holds, without a look at the text it was made of.

    For a run that has begun: its ids must stay what they are, wherever the text has gone.
    """
    if not (directory / MANIFEST).is_file():
        return None
    return replace(_read_report(read_manifest(directory)["report"]), reused=True)


def _existing(out: Path) -> dict[str, Any] | None:
    """The manifest in `out`; refuses to replace a directory that is something else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / MANIFEST).is_file():
        raise InputError(f"{out} exists and is no prepared data: choose another place")
    manifest = read_manifest(out)
    return manifest if manifest["format"] == FORMAT else manifest | {"fingerprint": None}


def _fingerprint(recipe: Recipe, tokenizer: Tokenizer | None) -> str:
    """Changes whenever preparing again could give something else."""
    parts: list[Any] = [repr(recipe.data)]
    if tokenizer is None:
        parts += [repr(recipe.tokenizer), _gaps(recipe)]
    else:
        parts.append({n: hashlib.sha256(b).hexdigest() for n, b in tokenizer.files.items()})
    pairs = [pair for split in SPLITS for pair in getattr(recipe.data, split)]
    paths = [path for pair in pairs for path in (pair.source, pair.target)]
    for path in [*paths, *([] if recipe.data.text is None else [Path(recipe.data.text)])]:
        status = path.stat()
        parts.append([status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _gaps(recipe: Recipe) -> list[str]:
    """What the vocabulary of plain text has besides words; of pairs, nothing"""
    if not recipe.data.is_plain_text:
        return []
    return gaps_for(_model_config(recipe), recipe.data.max_length)


def _model_config(recipe: Recipe) -> ModelConfig:
    size = recipe.tokenizer.vocab_size
    return recipe.model_config(size, size)


def _learn_tokenizer(text: ParallelText, recipe: Recipe, progress: TellPairs) -> Tokenizer:
    config = recipe.tokenizer

    def learn(*sides: int) -> bytes:
        model = subwords.learn(_sample(text, sides, progress), config, _gaps(recipe))
        progress(LEARN, text.count, text.count)
        return model

    if recipe.data.is_plain_text:
        half = _model_config(recipe)
        return text_tokenizer(learn(0), (half.first_id,) if half.alone else ())
    if config.joint:
        return sentencepiece_tokenizer(learn(0, 1))
    return sentencepiece_tokenizer(learn(0), learn(1))


def _sample(text: ParallelText, sides: tuple[int, ...], progress: TellPairs) -> Iterator[str]:
    """Lines to learn a vocabulary from: all, or evenly spaced ones of a large corpus."""
    step = ceil(text.count * len(sides) / subwords.MAX_SENTENCES)
    for i, pair in enumerate(islice(text.pairs(), 0, None, step)):
        if i % CHUNK == 0:
            progress("read", i * step, text.count)
        yield from (line for side in sides if isinstance(line := pair[side], str))
    progress("read", text.count, text.count)
    progress(LEARN, 0, text.count)


@dataclass
class _Filter:
    """Decides which pairs stay, and counts the others by reason."""

    data: DataConfig
    training: bool
    dropped: Counter[str] = field(default_factory=Counter)
    invalid_lines: list[str] = field(default_factory=list)

    def lines(self, pairs: list[Pair]) -> list[tuple[str, str]]:
        """Pairs that are text on both sides."""
        kept = []
        for source, target in pairs:
            if isinstance(source, str) and isinstance(target, str):
                if source.strip() and target.strip():
                    kept.append((source, target))
                else:
                    self.dropped["empty"] += 1
            else:
                self.dropped[NOT_UTF8] += 1
                self.invalid_lines += [str(x) for x in (source, target) if isinstance(x, BadLine)]
        del self.invalid_lines[20:]
        return kept

    def fits(self, source: list[int], target: list[int]) -> bool:
        """Whether a pair of pieces stays; lengths count the end token."""
        short, long = sorted((len(source) + 1, len(target) + 1))
        if short == 1:
            self.dropped["empty"] += 1
        elif long > self.data.max_length:
            self.dropped["too long"] += 1
        elif self.training and long > self.data.max_ratio * short:
            self.dropped["badly proportioned"] += 1
        else:
            return True
        return False


def _write_split(
    directory: Path,
    split: str,
    text: ParallelText,
    data: DataConfig,
    tokenizer: Tokenizer,
    progress: TellPairs,
) -> SplitReport:
    frame = tokenizer.frame
    keep = _Filter(data, training=split == "train")
    pairs = source_tokens = target_tokens = done = 0
    remaining = text.pairs()
    dtypes = [id_dtype(tokenizer.source_vocab_size), id_dtype(tokenizer.target_vocab_size)]
    with (
        SentenceWriter(directory, f"{split}.source", dtypes[0]) as sources,
        SentenceWriter(directory, f"{split}.target", dtypes[1]) as targets,
    ):
        while chunk := list(islice(remaining, CHUNK)):
            lines = keep.lines(chunk)
            encoded = zip(
                _led(frame.before, tokenizer.encode_source_batch([source for source, _ in lines])),
                _led(frame.start, tokenizer.encode_target_batch([target for _, target in lines])),
                lines,
                strict=True,
            )
            kept = [item for item in encoded if keep.fits(item[0], item[1])]
            source_tokens += sources.append([source for source, _, _ in kept])
            target_tokens += targets.append([target for _, target, _ in kept])
            if split != "train":
                _append_lines(directory, split, [pair for _, _, pair in kept])
            pairs += len(kept)
            done += len(chunk)
            progress(f"encode {split}", done, text.count)
    dropped = dict(keep.dropped)
    return SplitReport(pairs, source_tokens, target_tokens, dropped, keep.invalid_lines)


def _write_texts(
    directory: Path,
    split: str,
    text: ParallelText,
    data: DataConfig,
    tokenizer: Tokenizer,
    progress: TellPairs,
) -> SplitReport:
    """One side of pieces, without what stands around them; what is too long is cut."""
    keep = _Filter(data, training=split == "train")
    texts = tokens = done = 0
    remaining = text.pairs()
    room = data.max_length - len(tokenizer.frame.source([], 0))
    with SentenceWriter(
        directory, f"{split}.source", id_dtype(tokenizer.source_vocab_size)
    ) as writer:
        while chunk := list(islice(remaining, CHUNK)):
            lines = [line for line, _ in keep.lines(chunk)]
            encoded = tokenizer.encode_source_batch(lines)
            parts = [ids[i : i + room] for ids in encoded for i in range(0, len(ids), max(room, 1))]
            tokens += writer.append(parts)
            texts += len(parts)
            done += len(chunk)
            progress(f"encode {split}", done, text.count)
    return SplitReport(texts, tokens, tokens, dict(keep.dropped), keep.invalid_lines)


def _led(start: tuple[int, ...], sentences: list[list[int]]) -> list[list[int]]:
    """Sentences behind what a frame puts before them; empty ones stay empty, to be dropped."""
    return [[*start, *ids] if ids else [] for ids in sentences]


def _append_lines(directory: Path, split: str, lines: list[tuple[str, str]]) -> None:
    for side, name in enumerate(SIDES):
        with (directory / f"{split}.{name}.txt").open("a", encoding="utf-8", newline="") as file:
            file.writelines(pair[side] + "\n" for pair in lines)


def _write_manifest(
    directory: Path,
    data: DataConfig,
    tokenizer: Tokenizer,
    fingerprint: str,
    report: PreparationReport,
) -> None:
    sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    manifest = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        **{f"{s}_dtype": id_dtype(size).name for s, size in zip(SIDES, sizes, strict=True)},
        "text": data.is_plain_text,
        "source_end": tokenizer.frame.after,
        "report": asdict(report),
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _read_report(values: dict[str, Any]) -> PreparationReport:
    splits = {name: SplitReport(**split) for name, split in values["splits"].items()}
    return PreparationReport(**(values | {"splits": splits}))
