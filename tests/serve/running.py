"""A real server in a process of its own, on a free port of this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


class Running:
    """Its address, its process, and a client that keeps connections open."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        self.client = httpx.Client(base_url=address, timeout=60, trust_env=False)

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def translate(self, q, **more) -> httpx.Response:
        return self.client.post("/translate", json={"q": q, "source": "en", "target": "de"} | more)

    def resident_kb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """`mlx-transformer serve` with these arguments, stopped as Ctrl-C does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_transformer", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = process.stdout.readline()
    assert first.startswith("http://127.0.0.1:"), process.stderr.read()
    server = Running(process, first.split()[0])
    try:
        yield server
    finally:
        server.client.close()
        process.send_signal(2)
        process.wait(timeout=30)
