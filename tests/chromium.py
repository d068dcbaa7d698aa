"""A real browser for tests: headless Chromium over its DevTools pipe, no driver and no library.

Chromium reads commands from file descriptor 3 and writes answers and events to 4, each a JSON
object that ends in a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
EXECUTABLE = shutil.which("chromium") or shutil.which("google-chrome") or ""


class Page:
    """One tab. `errors` and `requests` collect what the page said and asked for."""

    def __init__(self, profile: Path):
        """`profile` is an empty directory for the browser's own files."""
        command_in, self._commands = os.pipe()
        self._answers, answer_out = os.pipe()
        # The shell puts the pipes where Chromium expects them.
        script = f'exec "$@" 3<&{command_in} 4>&{answer_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", EXECUTABLE, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(command_in, answer_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(command_in)
        os.close(answer_out)
        self._buffer, self._last_id, self._session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=20)
        os.close(self._commands)
        os.close(self._answers)

    def open(self, url: str) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def middle(self, element: str) -> dict[str, float]:
        """The place of an element, given as JavaScript, scrolled into view."""
        return self.evaluate(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect();"
            "return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )

    def hover(self, element: str) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self.middle(element))

    def click(self, element: str) -> None:
        place = self.middle(element)
        for what in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=what, button="left", clickCount=1, **place)

    def tap(self, element: str) -> None:
        place = self.middle(element)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], 60)
            chunk = os.read(self._answers, 1 << 16) if ready else b""
            assert chunk, "Chromium does not answer"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
