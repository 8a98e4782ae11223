"""The port of kube-scheduler's calls, on the scheduler's event loop: few connections, each bounded.

Pages and probes have another server, on a thread of its own: whoever reads them delays no call.
"""

import asyncio
import logging
import socket
import ssl
import time
from contextlib import suppress
from functools import partial
from typing import cast

from gpuagent.pages.http_server import accept
from gpuscheduler.extender.call_connection import CALL_S, Answers, CallConnection
from gpuscheduler.extender.routes import MOST_BODY

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Connections that wait for their client. A further connection replaces one. An idle kube-scheduler keeps two."""
MOST_SERVED = 4096
"""Calls in progress. The pods of a job wait in bind for each other, so it is far more than a job has."""
LAST_CALLS_S = 0.1
"""How long calls are still accepted when the server stops."""
STOP_S = 5.0
"""How long calls may take to end when the server stops."""
PAUSE_S = 1.0
"""Pause after an accept that failed, for example because the process has no file descriptor left."""
WARNING_GAP_S = 60.0
BACKLOG = 512


class CallServer:
    """Accepts connections and bounds what all of them cost together.

    Args:
        answers: serves the calls.
        listener: listens; it is closed at the end.
        tls: to serve HTTPS; None for HTTP.
    """

    def __init__(
        self,
        answers: Answers,
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answers = answers
        self._listener = listener
        self._tls = tls
        self._waiting: dict[CallConnection, None] = {}
        """Those that wait for their client; the longest wait first."""
        self._served: set[CallConnection] = set()
        self._beginning: dict[asyncio.Task[None], None] = {}
        """Connections in their TLS handshake; the oldest first."""
        self._none_left = asyncio.Event()
        self._warned_at: dict[str, float] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then finish the calls in progress."""
        accept = self._accept_plain if self._tls is None else self._accept_with_handshakes
        accepting = asyncio.ensure_future(accept())
        try:
            await stop.wait()
            # A call that was sent before may not have been read yet, and gets an answer, too.
            await asyncio.sleep(LAST_CALLS_S)
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
            self._listener.close()
            await self._end()

    async def _accept_plain(self) -> None:
        """Accept connections without a handshake until canceled.

        kube-scheduler keeps no more than two idle connections, so that most bind calls come on a new one. uvloop itself
        accepts a connection in half of the processor time, and one in each of its turns, so that many hold up no call.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._accepted, sock=self._listener, backlog=BACKLOG)
        try:
            await loop.create_future()
        finally:
            server.close()

    def _accepted(self) -> asyncio.Protocol:
        """What reads a new connection."""
        if self._is_full():
            return _Closed()
        self._make_room()
        return CallConnection(self._answers, self._changed)

    def _is_full(self) -> bool:
        """Whether no further connection is taken, as too many calls are in progress."""
        if len(self._served) < MOST_SERVED:
            return False
        self._warn("Too many calls in progress: closed a new connection", calls=MOST_SERVED)
        return True

    async def _accept_with_handshakes(self) -> None:
        """Accept connections until canceled. Unlike those of the event loop, its handshakes can be ended early."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await accept(self._listener)
            except OSError as err:
                log.warning("Failed to accept a connection for calls", extra={"error": err.strerror})
                await asyncio.sleep(PAUSE_S)
                continue
            if self._is_full():
                client.close()
                continue
            self._make_room()
            task = loop.create_task(self._begin(client, address))
            self._beginning[task] = None
            task.add_done_callback(partial(self._begun, client))
            # One connection for each turn of the loop, so that many of them at once hold up no call.
            await asyncio.sleep(0)

    def _make_room(self) -> None:
        """Close a connection if there are too many: one in its handshake, or one without a call, or an idle one."""
        if len(self._waiting) + len(self._beginning) < MOST_WAITING:
            return
        self._warn("Closed an idle or slow connection for calls", connections=MOST_WAITING)
        strangers = [connection for connection in self._waiting if not connection.has_called]
        if strangers:
            strangers[0].close()
            self._waiting.pop(strangers[0])
        elif self._beginning:
            oldest = next(iter(self._beginning))
            self._beginning.pop(oldest)
            oldest.cancel()
        else:
            idle = next(iter(self._waiting))
            self._waiting.pop(idle)
            idle.close()

    async def _begin(self, client: socket.socket, address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: CallConnection(self._answers, self._changed),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=CALL_S,
            )
        except ssl.SSLError as err:
            reason = (err.reason or "").replace("_", " ").lower()
            why = getattr(err, "verify_message", "") or reason
            self._warn("Refused a caller without a valid client certificate", client=address[0], error=why)
        except OSError as err:
            why = str(err) or "too slow"
            log.debug("Lost a connection for calls", extra={"client": address[0], "error": why})

    def _begun(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)
        if task.cancelled():
            client.close()

    def _changed(self, connection: CallConnection) -> None:
        """Keep the connection where it belongs, and end the slowest if all calls together are too large."""
        if connection.serving is not None:
            self._waiting.pop(connection, None)
            self._served.add(connection)
        elif connection.waits:
            self._served.discard(connection)
            self._waiting.setdefault(connection)
            self._bound_bytes(connection)
        else:
            self._waiting.pop(connection, None)
            self._served.discard(connection)
            if not self._waiting and not self._served:
                self._none_left.set()

    def _bound_bytes(self, newest: CallConnection) -> None:
        """Have all unfinished calls together no larger than the largest may be."""
        if not newest.received_bytes:
            return
        total = sum(connection.received_bytes for connection in self._waiting)
        for connection in tuple(self._waiting):
            if total <= MOST_BODY:
                return
            if connection is not newest and connection.received_bytes:
                total -= connection.received_bytes
                self._waiting.pop(connection)
                connection.close()

    async def _end(self) -> None:
        beginning = tuple(self._beginning)
        for task in beginning:
            task.cancel()
        if beginning:
            await asyncio.wait(beginning)
        connections = (*self._waiting, *self._served)
        calls = [connection.serving for connection in connections if connection.serving is not None]
        for connection in connections:
            connection.stop()
        if calls:
            await asyncio.wait(calls, timeout=STOP_S)
        for connection in tuple(self._served):
            connection.close()
        # The transports send what is written, and close.
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._waiting or self._served:
                    self._none_left.clear()
                    await self._none_left.wait()

    def _warn(self, message: str, **fields: object) -> None:
        """Log at most once in a while for each message, as any program on the machine can cause it."""
        now = time.monotonic()
        last = self._warned_at.get(message, float("-inf"))
        if now - last > WARNING_GAP_S:
            self._warned_at[message] = now
            log.warning(message, extra=fields)


class _Closed(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()
