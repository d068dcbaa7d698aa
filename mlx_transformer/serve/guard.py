"""What every request meets first: is it for us, from here, in time and not too large?

Plain ASGI, around the whole application. Whatever goes wrong is answered as `{"error": ...}`.
"""

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from mlx_transformer.serve.limits import Limits, Rate
from mlx_transformer.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Log = Callable[[str, bytes], None]  # a line about a request, and its body

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class RefusedError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.reason}, self.status, self.headers)


class Guard:
    """Wraps an ASGI application."""

    def __init__(
        self,
        app: Application,
        *,
        limits: Limits,
        metrics: Metrics,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        is_local: bool = True,
        complain: Callable[[str], None],
        log: Log | None = None,
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._complain, self._log = complain, log
        self._hosts, self._origins, self._is_local = hosts, origins, is_local
        self._rate = None if limits.rate is None else Rate(limits.rate)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, body = time.monotonic(), 0, b""

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self._metrics.open += 1
        try:
            self._check(scope)
            body = await self._body(scope, receive)
            await self._app(scope, replay(body, receive), send_on)
        except RefusedError as refused:
            await refused.response()(scope, receive, send_on)
        except Exception as error:
            self._complain(f"{scope['path']} failed: {type(error).__name__}")
            if not status:
                await RefusedError(500, "Something went wrong").response()(scope, receive, send_on)
        finally:
            self._metrics.open -= 1
            self._note(scope, status, time.monotonic() - start, body)
        return None

    def _note(self, scope: Message, status: int, seconds: float, body: bytes) -> None:
        path = scope["route"].path if "route" in scope else "other"
        self._metrics.answered(path, status, seconds)
        if self._log is not None:
            self._log(f"{scope['method']} {path} {status} {seconds * 1000:.0f} ms", body)

    def _check(self, scope: Message) -> None:
        headers = Headers(raw=scope["headers"])
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise RefusedError(403, "This server does not answer for that host name")
        origin = headers.get("origin")
        if origin is not None and not self._is_welcome(origin, hosts[0]):
            raise RefusedError(403, "This server does not answer pages of other origins")
        if self._rate is not None and scope["method"] == "POST":
            wait = math.ceil(self._rate.wait(scope["client"][0]))
            if wait:
                raise RefusedError(429, "Slowdown: too many requests", **{"Retry-After": str(wait)})

    def _is_ours(self, host: str) -> bool:
        """A page that has its own name resolve to this machine (DNS rebinding) sends that name."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._is_local

    def _is_welcome(self, origin: str, host: str) -> bool:
        return origin in (f"http://{host}", f"https://{host}") or origin in self._origins

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        limit = self._limits.body
        too_large = RefusedError(
            413, f"The request is larger than {limit} bytes", Connection="close"
        )
        length = Headers(raw=scope["headers"]).get("content-length", "0")
        if int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.send_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "The request was not complete")
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RefusedError(408, "The request came too slowly", Connection="close") from None


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body, already read, and then what comes after it."""
    first = True

    async def receive_next() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_next
