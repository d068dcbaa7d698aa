"""Load on a server of our own: many clients at once against one at a time, on this machine only.

    python tools/bench_serve.py --clients 64 --requests 2000 --lines test.en

Every answer is compared with that of the translator itself.
"""

import argparse
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from mlx_transformer import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=Path, required=True, help="a text file, a sentence a line")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--alone", type=int, help="requests sent one at a time (default: all)")
    parser.add_argument("--rounds", type=int, default=1, help="of all requests, for the memory")
    args = parser.parse_args()
    lines = args.lines.read_text(encoding="utf-8").split("\n")
    texts = [lines[i % (len(lines) - 1)] for i in range(args.requests)]
    with served() as (address, process):
        run(address, texts[:50], 8)  # warms up
        alone = run(address, texts[: args.alone], 1)
        report("one at a time", alone)
        together = []
        for _ in range(args.rounds):
            together.append(run(address, texts, args.clients))
            report(f"{args.clients} clients", together[-1])
            print(f"  resident memory {resident(process) / 1024:.0f} MB", flush=True)
    wanted = {text: found.text for text, found in zip(texts, load().translate(texts), strict=True)}
    answers = [each for outcome in (alone, *together) for each in outcome.answers]
    wrong = sum(answer != wanted[text] for text, answer in answers)
    print(f"{together[-1].rate / alone.rate:.1f} times the sentences/s")
    print(f"{wrong} of {len(answers)} answers differ from translate")


class Outcome:
    """The answers of a run, and how long each took."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str]] = []
        self.seconds: list[float] = []
        self.whole = 0.0

    @property
    def rate(self) -> float:
        return len(self.answers) / self.whole


def run(address: str, texts: list[str], clients: int) -> Outcome:
    """Each client sends its next request when it has the answer to the last."""
    outcome, waiting, lock = Outcome(), iter(texts), threading.Lock()

    def client() -> None:
        with httpx.Client(base_url=address, timeout=600, trust_env=False) as connection:
            while True:
                with lock:
                    text = next(waiting, None)
                if text is None:
                    return
                start = time.perf_counter()
                values = {"q": text, "source": "en", "target": "de"}
                answer = connection.post("/translate", json=values)
                outcome.seconds.append(time.perf_counter() - start)
                found = answer.json() if answer.status_code == 200 else {}
                outcome.answers.append((text, found.get("translatedText", answer.text)))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.whole = time.perf_counter() - start
    return outcome


def report(name: str, outcome: Outcome) -> None:
    cuts = statistics.quantiles(outcome.seconds, n=20)
    print(
        f"{name}: {len(outcome.answers)} requests, {outcome.rate:.1f} sentences/s, "
        f"p50 {cuts[9] * 1000:.0f} ms, p95 {cuts[18] * 1000:.0f} ms",
        flush=True,
    )


@contextmanager
def served() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "mlx_transformer", "serve", "--port", "0"]
    command += ["--time-limit", "600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[0], process
    finally:
        process.send_signal(2)
        process.wait(timeout=60)


def resident(process: subprocess.Popen[str]) -> int:
    """Kilobytes; Linux only"""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
