"""Connections to the API server for small writes, kept open between them.

Each pod needs a Binding and often a nomination. aiohttp takes 220 us of processor time to send a Binding, and this
module 25: it makes the bytes of the request once, and reads no more of the answer than is needed. It knows no proxies
and no redirects.
"""

import asyncio
import math
import re
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import cast
from urllib.parse import quote, urlsplit

from gpuagent.kube.api.host_and_port import ascii_address
from gpuscheduler.cluster_api.http_answer import AnswerReader, BadAnswerError, HttpAnswer

CONNECT_S = 5.0
"""Longest time to open a connection."""
ANSWER_S = 10.0
"""Longest time for an answer, from when the connection is open."""
IDLE_S = 15.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""
_AS_IT_IS = re.compile(r"[A-Za-z0-9/._~:@-]+")
_FORGET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: linger for 0 s."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""The kernel detects a dead host after 10 + 3 * 5 s, even while a watch is quiet."""


class LostError(OSError):
    """The connection broke off before the answer had come whole."""


class KeptConnections:
    """The connections to one server. Each carries one request at a time.

    Args:
        server: its URL, which names no user.
        server_name: name in its certificate; empty if it is that of the URL.
        headers: of each request; a name may come several times.
    """

    def __init__(self, server: str, server_name: str, headers: Iterable[tuple[str, str]]) -> None:
        parts = urlsplit(server)
        host_and_port = ascii_address(parts.netloc)
        address = urlsplit(f"//{host_and_port}")
        default_port = 443 if parts.scheme == "https" else 80
        self._host = address.hostname or ""
        self._port = address.port or default_port
        self._prefix = parts.path
        self._server_name = server_name or self._host
        self._head = _lines((("Host", host_and_port), *headers))
        self._idle: deque[_KeptConnection] = deque()

    async def send(  # noqa: PLR0913 (called once)
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        tls: ssl.SSLContext | None,
        limit_s: float = math.inf,
    ) -> HttpAnswer:
        """The answer to a request. Raises OSError, and TimeoutError if the connection does not open or no answer comes.

        After an error, nothing of the request is sent any more.

        Args:
            method: such as ``POST``.
            path: without the server's own prefix.
            headers: further ones, with ASCII values.
            body: of the request.
            tls: None for plain HTTP. After a change, no connection with the former one is used.
            limit_s: seconds after which neither a request is sent nor an answer waited for.
        """
        until = time.monotonic() + limit_s
        target = self._prefix + path
        # A caller of the extender chooses the pod's name. So characters that would end this line are quoted.
        if not _AS_IT_IS.fullmatch(target):
            target = quote(target)
        further = f"{_lines(headers.items())}Content-Length: {len(body)}\r\n"
        request = f"{method} {target} HTTP/1.1\r\n{self._head}{further}\r\n".encode() + body
        connection = self._idle_one(tls) or await self._opened(tls, min(CONNECT_S, limit_s))
        try:
            answer = await connection.answer(request, until)
        except BaseException:
            # The rest of this answer may still come on it.
            connection.drop()
            raise
        if answer.keeps:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the connections that carry no request."""
        while self._idle:
            self._idle.pop().close()

    def _idle_one(self, tls: ssl.SSLContext | None) -> "_KeptConnection | None":
        """An open connection: the last one used, so that those that are not needed get old."""
        oldest = time.monotonic() - IDLE_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.tls is tls:
                return connection
            connection.close()
        return None

    async def _opened(self, tls: ssl.SSLContext | None, limit_s: float) -> "_KeptConnection":
        """A new connection. Raises OSError, and TimeoutError if it does not open in time."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(limit_s):
            _, connection = await loop.create_connection(
                lambda: _KeptConnection(tls),
                self._host,
                self._port,
                ssl=tls,
                server_hostname=None if tls is None else self._server_name,
            )
        return connection


class _KeptConnection(asyncio.Protocol):
    """One connection.

    Attributes:
        tls: with which it was opened.
        is_open: neither side has closed it.
        idle_since: when its last answer came, in monotonic seconds.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.is_open = False
        self.idle_since = 0.0
        self._answered: asyncio.Future[HttpAnswer] | None = None
        self._reader = AnswerReader()

    async def answer(self, request: bytes, until: float) -> HttpAnswer:
        """The answer to a request. Raises LostError, and TimeoutError if it does not come in time.

        `until` is in monotonic seconds. From then on, nothing is sent.
        """
        limit_s = min(ANSWER_S, until - time.monotonic())
        if limit_s <= 0:
            # The process stood still since the connection was asked for.
            raise TimeoutError
        loop = asyncio.get_running_loop()
        self._reader = AnswerReader()
        self._answered = loop.create_future()
        # A timer takes a quarter of the time of `asyncio.timeout`, and each pod needs one.
        timer = loop.call_later(limit_s, self._late)
        self._transport.write(request)
        try:
            return await self._answered
        finally:
            timer.cancel()
            self._answered = None

    def _late(self) -> None:
        waiting = self._answered
        if waiting is not None and not waiting.done():
            waiting.set_exception(TimeoutError())

    def drop(self) -> None:
        """Close it, and have the kernel forget what it has not sent yet.

        Otherwise a request that met a cut network is sent as soon as the network works again. By then, another process
        may have decided otherwise.
        """
        if self.is_open:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET)
        self.close()

    def close(self) -> None:
        """Close it at once."""
        self.is_open = False
        self._transport.abort()

    # -- what the event loop calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type
        keep_alive(self._transport.get_extra_info("socket"))
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Read the answer on."""
        waiting = self._answered
        if waiting is None or waiting.done():
            # The server says why it closes, for example. It is not the answer to the next request.
            self.close()
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswerError as err:
            waiting.set_exception(LostError(str(err)))
            return
        if answer is not None:
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take that the connection is closed, which ends some answers."""
        self.is_open = False
        waiting = self._answered
        if waiting is None or waiting.done():
            return
        answer = self._reader.closed()
        if answer is None:
            lost = LostError("the server closed the connection")
            lost.__cause__ = exc
            waiting.set_exception(lost)
        else:
            waiting.set_result(answer)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel find out when the other side is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers])
