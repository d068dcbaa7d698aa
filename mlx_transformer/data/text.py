"""Raw parallel text, line by line: from files, or generated."""

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlx_transformer.data import grammar, mixture, numbers
from mlx_transformer.errors import InputError, naming
from mlx_transformer.recipes import DataConfig, FilePair


@dataclass(frozen=True)
class BadLine:
    """Stands for a line that is not UTF-8."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path} line {self.number}"


Pair = tuple[str | BadLine, str | BadLine]
HELD_OUT = (33, 66)  # of each hundred lines of plain text, which are not trained on


@dataclass(frozen=True)
class ParallelText:
    """Pairs of lines that can be gone through again and again, and how many there are."""

    count: int
    pairs: Callable[[], Iterator[Pair]]


def open_text(data: DataConfig, split: str) -> ParallelText:
    """The text of a split; complains about files that are missing, empty or not parallel."""
    if data.task == "numbers":
        return ParallelText(numbers.SIZES[split], lambda: iter(numbers.pairs(split)))
    if data.task == "grammar":
        texts = grammar.sentences(split)
        return ParallelText(len(texts), lambda: zip(texts, texts, strict=True))
    if data.text is not None:
        return _plain_text(Path(data.text), split)
    files: tuple[FilePair, ...] = getattr(data, split)
    with naming(f"data.{split}"):
        counts = [mixture.share_of(_count_pairs(pair), pair.weight) for pair in files]

    def pairs() -> Iterator[Pair]:
        for pair in files:
            yield from mixture.repeated(_parallel(pair), pair.weight)

    if split != "train":
        return ParallelText(sum(counts), pairs)

    def mixed() -> Iterator[Pair]:
        renamed = mixture.with_other_names(pairs(), data.other_names)
        return mixture.with_variants(renamed, data.variants)

    return ParallelText(sum(counts) + mixture.share_of(sum(counts), data.variants), mixed)


def _plain_text(path: Path, split: str) -> ParallelText:
    """Lines of one file: of a hundred one is for validation and one for the test."""
    with naming("data.text"):
        total = count_lines(path)

    def is_of_split(number: int) -> bool:
        return {HELD_OUT[0]: "valid", HELD_OUT[1]: "test"}.get(number % 100, "train") == split

    def lines() -> Iterator[Pair]:
        for number, line in enumerate(_lines(path)):
            if is_of_split(number):
                yield line, line

    return ParallelText(sum(map(is_of_split, range(total))), lines)


def _parallel(pair: FilePair) -> Iterator[Pair]:
    try:
        yield from zip(_lines(pair.source), _lines(pair.target), strict=True)
    except ValueError:  # one is longer, and when their lines were counted both were alike
        raise InputError(
            f"{pair.source} or {pair.target} changed while it was read: prepare again when it is "
            "whole"
        ) from None


def _count_pairs(pair: FilePair) -> int:
    source, target = count_lines(pair.source), count_lines(pair.target)
    if source != target:
        raise InputError(
            f"{pair.source} has {source:,} lines but {pair.target} has {target:,}: "
            "line n of one must be the translation of line n of the other"
        )
    if source == 0:
        raise InputError(f"{pair.source} and {pair.target} are empty")
    return source


def count_lines(path: Path) -> int:
    """Lines of a file, the last with or without its line feed."""
    if not path.is_file():
        raise InputError(f"no file {path}: put the text there, or name another")
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise InputError(f"{path} is UTF-16: make it UTF-8 (iconv -f UTF-16 -t UTF-8)")
        file.seek(0)
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _lines(path: Path) -> Iterator[str | BadLine]:
    # Bytes, so that only line feeds end a line: U+2028 and friends are text.
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                yield BadLine(path, number)
            else:
                yield text.rstrip("\r\n")
