"""Which files and functions of the package a journey passes, counted with a profiler.

`python tests/journeys.py` prints the counts of the journeys of docs/architecture.md, with `-v` the
functions as well. It asks only for what every version of the package has:
`PYTHONPATH=OTHER_CHECKOUT python tests/journeys.py` counts those of another one.
"""

import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType

import mlx.core as mx

import mlx_transformer

PACKAGE = f"{Path(mlx_transformer.__file__).parent}/"
# They run what they are given: part of the caller's way, not a place on it.
COMBINATORS = ("by_rows", "by_parts")
# Texts are read when the search has room for them, by the generator that it was given.
READING = "Translator.each.<locals>.sentences"
# Not functions to a reader, and from Python 3.12 on mostly not to Python either.
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


class Walk:
    """The files and functions passed, and the calls back into a file that was left."""

    def __init__(self) -> None:
        self.back: list[str] = []
        self._passed: set[CodeType] = set()
        self._threads = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call" and code.co_name not in ("<module>", *COMPREHENSIONS):
            self._passed.add(code)
        if code.co_qualname in COMBINATORS:
            return
        way: list[tuple[FrameType, str]] = self._threads.__dict__.setdefault("way", [])
        file = code.co_filename.removeprefix(PACKAGE)
        if event == "call":
            files = [passed for _, passed in way]
            if file in files and file != files[-1] and code.co_qualname != READING:
                self.back.append(f"{' -> '.join(files)} -> {file}:{code.co_qualname}")
            way.append((frame, file))
        elif event == "return" and way and way[-1][0] is frame:
            way.pop()

    @property
    def functions(self) -> dict[str, list[str]]:
        """Their names by file."""
        found: dict[str, list[str]] = {}
        for code in self._passed:
            found.setdefault(code.co_filename.removeprefix(PACKAGE), []).append(code.co_qualname)
        return {file: sorted(found[file]) for file in sorted(found)}

    def __str__(self) -> str:
        functions = self.functions
        count = sum(map(len, functions.values()))
        return f"{len(functions)} files, {count} functions, {len(self.back)} ways back"


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    before = sys.getprofile()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def sentences(model: str) -> dict[str, Walk]:
    """A model is opened and translates, and translates once more."""
    load = mlx_transformer.load
    load(model).translate("Good morning.")  # what is imported where it is used is there now
    first, second, all_of_it = Walk(), Walk(), Walk()
    translator = load(model)
    with walking(first):
        translator.translate("Good morning.")
    with walking(second):
        translator.translate("Good morning.")
    with walking(all_of_it):
        load(model).translate("Good morning.")
    return {
        "a model is opened and translates a sentence": all_of_it,
        "an open model translates its first sentence": first,
        "and the next one": second,
    }


def batches(run: Path) -> dict[str, Walk]:
    """A run of three steps, uncompiled: and of these, from the first update to the second."""
    from mlx_transformer.__main__ import main
    from mlx_transformer.training.step import TrainStep

    update, whole, step = TrainStep.__call__, Walk(), Walk()
    done: list[int] = []

    def watched(*args: object) -> object:
        result = update(*args)
        done.append(1)
        sys.setprofile(step if len(done) == 1 else whole)
        return result

    TrainStep.__call__ = watched
    short = ("max_steps=3", "log_every=3", "save_every=3")
    changes = [f"--set=training.{setting}" for setting in short] + ["--set=validation.every=3"]
    mx.disable_compile()
    with walking(whole), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        main(["train", "numbers", "--out", str(run), *changes])
    mx.enable_compile()
    TrainStep.__call__ = update
    return {"a run of three steps, begun and ended": whole, "from one step to the next": step}


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(PACKAGE).parent / "weights" / "en-de")
        walks = sentences(model) | batches(Path(folder) / "run")
    for name, walk in walks.items():
        print(f"{name}: {walk}")
        if "-v" in sys.argv:
            for file, functions in walk.functions.items():
                print(f"  {file} ({len(functions)}): {' '.join(functions)}")
            print(*(f"  back: {way}" for way in dict.fromkeys(walk.back)), sep="\n")


if __name__ == "__main__":
    main()
