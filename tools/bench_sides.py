"""Programs side by side: each in a process of its own, loaded and warm, measured in turn.

Neither may warm or slow down the other's threads, and OpenBLAS, once loaded for MLX, would take
over PyTorch's matrix products in the same process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, NoReturn

from tqdm import tqdm

import mlx_transformer  # noqa: F401  (makes MLX fast on a CPU, and must come before it)

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data" / "multi30k"
THREADS = os.cpu_count() or 1
SETTLE = 0.3  # seconds: threads of the side that has just worked go on spinning for a while


class Answer(NamedTuple):
    seconds: float
    result: Any


class Side:
    """A worker process: told the name of a work, it does that and says how long it took."""

    def __init__(self, script: str, name: str, workspace: Path) -> None:
        self.name = name
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS)
        )
        untouched = {} if name == "mlx" else {"MLX_TRANSFORMER_BLAS": "off"}
        self._process = subprocess.Popen(
            [sys.executable, script, "--worker", name, str(workspace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | threads | untouched,
        )

    def ask(self, work: str) -> Answer:
        assert self._process.stdin and self._process.stdout
        time.sleep(SETTLE)
        print(work, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            stop(f"the {self.name} side failed at {work!r}: its complaint is above")
        return Answer(*json.loads(line))

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its standard input, which ends it


Works = Mapping[str, Callable[[], Any]]  # results must fit in JSON


def serve(loaders: Mapping[str, Callable[[Path], Works]], side: str, workspace: str) -> None:
    """Be a worker: load that side, then answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    works = loaders[side](Path(workspace))
    for line in sys.stdin:
        start = time.perf_counter()
        result = works[line.strip()]()
        seconds = time.perf_counter() - start
        print(json.dumps(Answer(seconds, result)), file=answers, flush=True)


def in_turn(works: Sequence[tuple[Side, str]], rounds: int, title: str) -> list[Answer]:
    """The median time of each work, all of them warm and taken in turn, and its last result."""
    answers: list[list[Answer]] = [[] for _ in works]
    with tqdm(total=(1 + rounds) * len(works), desc=title, leave=False, disable=None) as bar:
        for _ in range(1 + rounds):
            for (side, work), given in zip(works, answers, strict=True):
                given.append(side.ask(work))
                bar.update()
    return [Answer(median(a.seconds for a in given[1:]), given[-1].result) for given in answers]


def parser(description: str) -> argparse.ArgumentParser:
    """What both tools can be told."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data", type=Path, default=DATA, help="Multi30k (default: %(default)s)")
    made.add_argument(
        "--rounds", type=int, default=5, help="median of how many (default: %(default)s)"
    )
    made.add_argument("--vocabulary", type=int, default=8000, help="(default: 8000)")
    made.add_argument("--quick", action="store_true", help="try it out: tiny and few of all")
    made.add_argument("--write", type=Path, metavar="FILE", help="put the table into this file")
    made.add_argument("--worker", nargs=2, metavar=("SIDE", "WORKSPACE"), help=argparse.SUPPRESS)
    return made


def stop(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(1)


def prepared_multi30k(data: Path, workspace: Path, vocabulary: int) -> Path:
    """Multi30k as ids of a joint vocabulary: what both tools work on."""
    from mlx_transformer.data.prepare import prepare
    from mlx_transformer.recipes import DataConfig, FilePair, Recipe, TokenizerConfig

    if not data.is_dir():
        stop(f"no Multi30k in {data}: put its raw .en and .de files there, or name --data DIR")
    train, valid, test = (
        (FilePair(data / f"{split}.en", data / f"{split}.de"),)
        for split in ("train", "val", "test_2016_flickr")
    )
    texts = DataConfig(train=train, valid=valid, test=test)
    tokenizer = TokenizerConfig(vocab_size=vocabulary)
    prepare(Recipe(data=texts, tokenizer=tokenizer), workspace / "prepared")
    return workspace / "prepared"


def where_and_when(*packages: str) -> str:
    """The line above a table."""
    from mlx_transformer.measuring.machine import machine

    facts = machine()
    cores = "two cores" if facts["cores"] == "2" else f"{facts['cores']} cores"
    linux = f"{cores} of a Linux CPU ({facts['chip']}, {facts['system']})"
    where = linux if sys.platform == "linux" else f"{facts['chip']}, {facts['system']}"
    versions = [f"mlx {facts['mlx']} on {facts['device']}"]
    versions += [f"OpenBLAS {facts['OpenBLAS']}"] if "OpenBLAS" in facts else []
    versions += [f"{package} {version(package)}" for package in packages]
    return f"{date.today()}, {where}, commit {_commit()}; float32; {', '.join(versions)}."


def _commit() -> str:
    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True).stdout

    changed = " and changes" if git("status", "--porcelain", "mlx_transformer", "tools") else ""
    return git("rev-parse", "--short", "HEAD").strip() + changed


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


BEGINNING = """\
# Benchmarks

Written by `make bench`. Every program is a process of its own and has the same number of threads;
they work in turn, warm, and the figure is the median of several rounds. A ratio above 1 means that
this project is faster.
"""


def write_section(path: Path, title: str, body: str) -> None:
    """Put a section into a Markdown file, in place of one of that title; leave the others."""
    text = path.read_text(encoding="utf-8") if path.exists() else BEGINNING
    beginning, *sections = text.split("\n## ")
    kept = {section.split("\n", 1)[0]: section.rstrip() for section in sections}
    kept[title] = f"{title}\n\n{body}"
    path.write_text("\n## ".join([beginning.rstrip() + "\n", *(s + "\n" for s in kept.values())]))
