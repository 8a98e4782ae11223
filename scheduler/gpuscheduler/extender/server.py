"""The HTTP server: uvicorn on the caller's event loop."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from gpuscheduler.extender.routes import Routes

KEPT_S = 3600
"""How long an idle connection stays open. kube-scheduler closes its own after 90 s. If the server closed it first, a
call sent at that moment would fail."""
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


async def serve(routes: Routes, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then finish the calls in progress."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    config = uvicorn.Config(
        routes,
        http="httptools",
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
