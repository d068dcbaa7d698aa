"""Run verbs on model directories, one after the other, with little memory and time for each.

Reads directories from stdin and prints one JSON line for each verb of each:
[directory, verb, status, seconds, peak bytes, stdout, stderr].
"""

import io
import json
import resource
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

MEMORY = 2 << 30
SECONDS = 20  # of computing: a busy machine is no failure


def calls(directory: str) -> list[list[str]]:
    text = "seven \x1b[2J eight"
    found = [
        ["translate", text, "--model", directory, "--max-tokens", "3", "--json"],
        ["info", directory],
    ]
    kind = int(Path(directory).name[:3]) % 3  # the slower ones by turns
    if kind == 0:
        found.append(["score", text, text, "--model", directory])
    elif kind == 1:
        found.append(["convert", directory, directory + ".out"])
    else:
        found.append(["export", directory, directory + ".out", "--format", "torch"])
    return found


def main() -> None:
    from mlx_transformer.__main__ import main as command

    # The kernels and libraries of a process come before what a directory may take.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for directory in sys.stdin.read().splitlines():
        for call in calls(directory):
            out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            start = time.process_time()
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    status: object = command(call)
                except SystemExit as leaving:
                    status = leaving.code
                except BaseException as error:
                    status = repr(error)[:300]
            seconds = time.process_time() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
            out.flush()
            shown = out.buffer.getvalue().decode()
            row = [directory, call[0], status, seconds, peak, shown, err.getvalue()]
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
