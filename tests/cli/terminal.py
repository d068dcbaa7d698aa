"""A program in a terminal of its own: what a user types, and what then stands on the screen."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")


class Terminal:
    """Runs `python -m mlx_transformer ...` behind a pseudo-terminal."""

    PROMPT = "\x1b[?2004h"  # the line editor is ready

    def __init__(self, *arguments: str, state: Path, columns: int = 100) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # Cursor position requests need a real terminal to answer them.
        settings = {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", "XDG_STATE_HOME": str(state)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlx_transformer", *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=os.environ | settings,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """What appears up to and with `text`, escape sequences left out"""
        end = time.monotonic() + seconds
        while text not in self._seen:
            if not select.select([self._screen], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {text!r} in {self._seen!r}")
            self._seen += os.read(self._screen, 65536).decode()
        shown, _, self._seen = self._seen.partition(text)
        return _ESCAPES.sub("", shown + text).replace("\r", "")

    def answer(self, line: str) -> str:
        """Type a line at the prompt; what the program says to it"""
        self.type(line + "\r")
        self.wait_for("\x1b[?2004l")  # the line is taken
        return self.wait_for(self.PROMPT).strip()

    def interrupt(self) -> None:
        """As Ctrl-C while a translation runs"""
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> int:
        """Ctrl-D, and the exit status"""
        self.type("\x04")
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self._screen)
