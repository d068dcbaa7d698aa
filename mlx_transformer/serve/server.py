"""The server itself: a socket, uvicorn around the application, and a clean end."""

import socket
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlx_transformer.errors import InputError
from mlx_transformer.serve.guard import Application

HEAD_SECONDS = 10.0


class Connection(H11Protocol):
    """uvicorn's, with a limit on how long the head of a request may take to come."""

    _patience = None

    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_head = self.conn.their_state is h11.IDLE
        if not is_head and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif is_head and self._patience is None:
            self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)


def listen(host: str, port: int) -> socket.socket:
    """A socket there; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {host}, port {port}: {reason}", options=["port"]
        ) from error


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    app: Application, sock: socket.socket, *, patience: float, ready: Callable[[], None]
) -> None:
    """Until Ctrl-C; what is under way then has so many seconds to finish."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=round(patience),
    )
    server = Server(config, ready)
    server.run(sockets=[sock])


class Server(uvicorn.Server):
    """Says when it is ready to answer."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
