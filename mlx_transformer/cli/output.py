"""The only way out for text: results on stdout, everything else on stderr.

Much of it comes from strangers' files. No control character of theirs reaches a terminal.
"""

import json
import math
import sys
from contextlib import suppress
from typing import Any

from mlx_transformer.cli.failures import naming_output
from mlx_transformer.inputs.printable import printable, without_controls


class _Stderr:
    """sys.stderr; when its terminal is closed, the program goes on."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


STDERR = _Stderr()


def tell(sentence: str) -> None:
    """Something the user should know, with the name of the program."""
    note(f"mlx-transformer: {sentence}")


def note(line: str) -> None:
    """A line of a report on stderr, above a progress bar if there is one."""
    from tqdm import tqdm  # only here: it takes 20 ms to import

    tqdm.write(printable(line), file=STDERR)


def show(result: object, end: str = "\n") -> None:
    """A result, on stdout: as it is into a file or a pipe, fit to be read on a terminal."""
    terminal = sys.stdout.isatty()
    text = without_controls(str(result)) if terminal else str(result)
    with naming_output("standard output"):
        print(text, end=end, flush=terminal)


def to_json(value: Any, indent: int | None = None) -> str:
    """Valid JSON: it knows no NaN and no infinity, so they are null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
