"""The HTTP server: uvicorn on the caller's event loop."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpuscheduler.extender.routes import Routes

KEPT_S = 3600
"""How long an idle connection stays open. kube-scheduler closes its own after 90 s. If the server closed it first, a
call sent at that moment would fail."""
MOST_PAGE_CONNECTIONS = 64
"""Connections open at a time where any pod may connect. A further one replaces the one that is idle for longest."""
STOP_S = 5
"""How long calls may take to end when the server stops."""
BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: of IPv4 and IPv6 where there is no host. Raises OSError."""
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _PageConnection(HttpToolsProtocol):
    """One of few: uvicorn ends no connection that sends nothing, and each takes a file descriptor."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, and close another one where there are too many."""
        self.since = self.loop.time()
        super().connection_made(transport)
        others = [one for one in self.connections if isinstance(one, _PageConnection) and one is not self]
        others = [one for one in others if not one.transport.is_closing()]
        if len(others) >= MOST_PAGE_CONNECTIONS:
            min(others, key=lambda one: (one.is_answering(), one.since)).transport.close()

    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


async def serve(routes: Routes, listener: socket.socket, stop: asyncio.Event, *, limited: bool = False) -> None:
    """Serve until `stop` is set; then finish the calls in progress.

    `limited` serves at most `MOST_PAGE_CONNECTIONS` clients.
    """
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    config = uvicorn.Config(
        routes,
        http=_PageConnection if limited else HttpToolsProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEPT_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve([listener]))
    await stop.wait()
    server.should_exit = True
    await serving
