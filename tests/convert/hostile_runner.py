"""Read the given files one after the other, in a process with little memory and less time.

Prints one JSON line a file: [name, outcome, message]. The outcome is `refused` for an InputError,
`read` when all tensors could be read, and the exception's name for everything else.
"""

import json
import resource
import signal
import sys
from pathlib import Path

LIMIT = 1 << 30
SECONDS = 10  # of computing: a busy machine is no failure


def attempt(path: Path) -> tuple[str, str]:
    from mlx_transformer.convert.checkpoint import read_checkpoint
    from mlx_transformer.errors import InputError

    try:
        for tensor in read_checkpoint(path).tensors.values():
            tensor.numpy().sum()
    except InputError as error:
        return "refused", str(error)
    except BaseException as error:
        return type(error).__name__, str(error)[:200]
    return "read", ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    for name in sys.stdin.read().splitlines():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        outcome, message = attempt(Path(name))
        print(json.dumps([name, outcome, message]), flush=True)


if __name__ == "__main__":
    main()
