"""Read the given files one after the other, in a process with little memory and less time.

Prints one JSON line a file: [name, outcome, message]. The outcome is `refused` for an InputError,
`read` when all tensors could be read, and the exception's name for everything else. Other files
than checkpoints go by the ends of their names; `convert` as an argument converts what can be read.
"""

import json
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path

LIMIT = 1 << 30
SECONDS = 10  # of computing: a busy machine is no failure


WORDS = 40  # of the shortlists


def read(path: Path) -> None:
    if path.suffix == ".codes":
        from mlx_transformer.tokenizer.moses import Bpe

        bpe = Bpe(path.read_bytes().decode("utf-8", "replace"))
        for word in ("tree", "trees", "x" * 500):
            bpe.cut(word)
    elif path.suffix == ".lex":
        from mlx_transformer.convert.marian_shortlist import read_shortlist

        read_shortlist(path, WORDS, WORDS)
    else:
        from mlx_transformer.convert.checkpoint import read_checkpoint

        for tensor in read_checkpoint(path).tensors.values():
            tensor.numpy().sum()


def converted(path: Path) -> None:
    from mlx_transformer.convert.conversion import convert

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convert(path, Path(folder) / "out")


def attempt(path: Path, *, converts: bool = False) -> tuple[str, str]:
    from mlx_transformer.errors import InputError

    try:
        read(path)
        if converts and path.suffix not in (".codes", ".lex"):
            converted(path)
    except InputError as error:
        return "refused", str(error)
    except BaseException as error:
        return type(error).__name__, str(error)[:200]
    return "read", ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    for name in sys.stdin.read().splitlines():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        outcome, message = attempt(Path(name), converts="convert" in sys.argv[1:])
        print(json.dumps([name, outcome, message]), flush=True)


if __name__ == "__main__":
    main()
