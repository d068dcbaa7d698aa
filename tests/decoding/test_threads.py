"""A translator is shared by threads: any of them, any number at once, and a clean exit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_directory import write_model

ROOT = Path(__file__).parents[2]
THREADS, TEXTS = 8, 20
PROGRAM = f"""
import sys, threading
from pathlib import Path
from mlx_transformer import load

# Loaded in a thread of its own, which is gone before anything is translated.
found = []
loading = threading.Thread(target=lambda: found.append(load(Path(sys.argv[1]))))
loading.start(); loading.join()
(translator,) = found
sources = [" ".join(("one", "twenty")[i >> n & 1] for n in range(6)) for i in range({TEXTS})]
right, lock = [], threading.Lock()

def work(beam):
    results = [one.text for one in translator.translate(sources, beam=beam)]
    results += translator.stream(sources[1], beam=beam)
    results += [f"{{s.logp:.2f}}" for s in translator.score(sources[:3], sources[:3])]
    with lock:
        right.append((beam, results))

threads = [threading.Thread(target=work, args=(1 + i % 2,)) for i in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
work(1), work(2)  # and in the first thread, where there is nobody else
assert len(right) == {THREADS} + 2
for beam in 1, 2:
    *others, alone = [results for asked, results in right if asked == beam]
    assert len(set(alone)) > 1
    assert all(results == alone for results in others), beam
"""


@pytest.mark.slow
def test_many_threads_find_what_one_finds_and_the_program_ends(tmp_path: Path) -> None:
    """Several times: what was wrong was so now and then."""
    write_model(tmp_path, eos_bias=1.0)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
