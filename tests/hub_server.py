"""A Hugging Face hub on this machine: as much of it as a download needs, and its mishaps."""

import base64
import hashlib
import json
import re
import socket
import threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves the files of folders as the models `org/name`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, Path] = {}
        self.extra_names: list[str] = []  # listed beside the real files
        self.gated: set[str] = set()
        self.cut_after: dict[str, int] = {}  # by file, once: bytes after which the line goes dead
        self.spoiled: set[str] = set()  # files whose last byte arrives changed
        self.uploaded: dict[str, dict[str, bytes]] = {}  # by model, the files
        self.connections: list[socket.socket] = []  # open ones among them: clients keep theirs
        self.requests: Counter[tuple[str, str]] = Counter()  # by method and file
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        """Uploads, all files inline."""
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        name = (re.match(r"/api/models/([^/]+/[^/]+)/", self.path) or [None, ""])[1]
        if self.path.endswith("/repos/create"):
            name = json.loads(sent)["organization"] + "/" + json.loads(sent)["name"]
            if name in self.server.gated:
                self._error(403, "Forbidden")
                return
            answer: dict[str, object] = {"url": f"{self.server.url}/{name}"}
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(sent)["files"]]
            answer = {
                "files": [
                    {"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files
                ]
            }
        elif "/commit/" in self.path:
            self.server.uploaded[name] = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in map(json.loads, sent.splitlines())
                if line["key"] == "file"
            }
            answer = {"commitUrl": f"{self.server.url}/{name}/commit/{COMMIT}", "commitOid": COMMIT}
        else:
            answer = {"errors": [], "warnings": []}  # of a model card
        self._send(200, json.dumps(answer).encode(), {})

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = (info or file or [None, ""])[1]
        if name in self.server.gated:
            self._error(401, "GatedRepo")
        elif name not in self.server.models and name not in self.server.uploaded:
            self._error(404, "RepoNotFound")
        elif info:
            self._info(name, info[2])
        elif file:
            self._file(self.server.models[name] / file[3], body)

    def _info(self, name: str, revision: str | None) -> None:
        if revision not in (None, "main", COMMIT):
            self._error(404, "RevisionNotFound")
            return
        files = [p.name for p in sorted(self.server.models[name].iterdir())]
        siblings = [{"rfilename": n} for n in [*files, *self.server.extra_names]]
        self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {})

    def _file(self, path: Path, body: bool) -> None:
        self.server.requests[self.command, path.name] += 1
        if not path.is_file():
            self._error(404, "EntryNotFound")
            return
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if path.name in self.server.spoiled:
            content = content[:-1] + bytes([content[-1] ^ 1])
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if wanted else 200, content[start:], headers, body, path.name)

    def _send(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        body: bool = True,
        name: str = "",
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return
        cut = self.server.cut_after.pop(name, None)
        self.wfile.write(content[:cut])
        if cut is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})
