"""Text files and pipes as lines: only a line feed ends one, and no byte is ever an error."""

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from mlx_transformer.cli.output import tell
from mlx_transformer.errors import InputError

STDIN = "-"
_BLOCK = 1 << 16


def standard_input() -> TextIO:
    if sys.stdin is None:
        raise InputError("standard input is closed: there is no text to read")
    return sys.stdin


def is_file(text: str) -> bool:
    """Whether somebody may have meant a file; a long text is no name at all."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def check_files(text: str | None, output: str | None) -> None:
    """There is a text file, and the output is another one.

    To be asked before a model is loaded, and before the output is emptied.
    """
    if text is None or text == STDIN:
        return
    if not Path(text).exists():
        raise InputError(f"no file {text}")
    if Path(text).is_dir():
        raise InputError(f"{text} is a folder: name a text file in it")
    if output is not None and Path(output).exists() and Path(output).samefile(text):
        raise InputError(f"--output {output} is the input: name another file")


class Lines:
    """The lines of a file or of standard input (`-`), in blocks as they arrive.

    Bytes that are not UTF-8 become U+FFFD; how many lines had such bytes is said in the end.
    """

    def __init__(self, path: str) -> None:
        check_files(path, None)
        self.path = path
        self._invalid = 0

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks():
            yield from block

    def count(self) -> int | None:
        """How many lines there are, where that can be known beforehand"""
        if self.path == STDIN or not Path(self.path).is_file():
            return None
        with Path(self.path).open("rb") as file:
            return sum(1 for _ in file)

    def blocks(self) -> Iterator[list[str]]:
        """What there is to read at a time: a pipe that is written line by line is read so."""
        try:
            if self.path == STDIN:
                yield from self._blocks(standard_input().buffer)
            else:
                with Path(self.path).open("rb") as file:
                    yield from self._blocks(file)
        finally:
            if self._invalid:
                count = "1 line was" if self._invalid == 1 else f"{self._invalid:,} lines were"
                tell(f"{count} not UTF-8; bad bytes were replaced")

    def _blocks(self, file: BinaryIO) -> Iterator[list[str]]:
        rest, first = b"", True
        while block := file.read1(_BLOCK):  # type: ignore[attr-defined]
            if first and (rest + block)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                name = "the text" if self.path == STDIN else self.path
                raise InputError(f"{name} is UTF-16: make it UTF-8 (iconv -f UTF-16 -t UTF-8)")
            *lines, rest = (rest + block).split(b"\n")
            if lines:
                yield self._texts(lines, first)
                first = False
        if rest:
            yield self._texts([rest], first)

    def _texts(self, lines: list[bytes], first: bool) -> list[str]:
        texts = [self._text(line) for line in lines]
        if first:
            texts[0] = texts[0].removeprefix("\ufeff")
        return texts

    def _text(self, line: bytes) -> str:
        try:
            return line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            self._invalid += 1
            return line.decode("utf-8", "replace").removesuffix("\r")


def parallel_lines(first: str, second: str) -> tuple[list[str], list[str]]:
    """Two files of as many lines, and at least one."""
    if first == second == STDIN:
        raise InputError("standard input can be only one of the two: name a file")
    lines, others = list(Lines(first)), list(Lines(second))
    if not others:
        raise InputError(f"{second} is empty")
    if len(lines) != len(others):
        raise InputError(
            f"{first} has {len(lines):,} lines and {second} {len(others):,}: "
            "line n of one must belong to line n of the other"
        )
    return lines, others
