"""One HTTP port of pages and probes, such as /metrics and /healthz, which `agent` gives it."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 16
"""Connections open at a time. A further one replaces the one that has waited longest for its client."""
MOST_PAGES = 12
"""Requests whose page is in progress or queued. Fewer than the connections, so that one can always be closed."""
PAGE_THREADS = 2
HEAD_S = 5.0
ANSWER_S = 10.0
"""How long a client may take to send a request, and to read the answer: the whole of it."""
HEAD_BYTES = 16 * 1024
BACKLOG = 128
"""Length of the accept queue. With the default, 5, the sixth simultaneous client tries again after a second."""
PAUSE_S = 1.0
"""Pause after an accept that failed, for example because the process has no file descriptor left."""
WARNING_GAP_S = 60.0
_END_OF_HEAD = b"\r\n\r\n"

Body = bytes | Sequence[bytes]
"""A large one comes in pieces, so that the connections that it goes to can share them."""
Page = Callable[[], tuple[str, Body]]
"""Content type and body. It may take its time."""
Probe = Callable[[], str | None]
"""The problem, or None. It answers at once: it runs in the thread of the server."""


def json_page(read: Callable[[], Any]) -> Page:
    """A JSON document."""
    return lambda: ("application/json", json.dumps(read(), indent=2).encode() + b"\n")


class HttpServer:
    """Serves `pages` and `probes` by path until stopped. `host` and `port` are the real ones, as where 0 was requested.

    One thread serves all connections, so that clients in any number delay kubelet's calls by that one thread only.
    """

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page], probes: Mapping[str, Probe]) -> None:
        self._pages = pages
        self._probes = probes
        self._listener = listen(address, BACKLOG)
        self.host: str
        self.port: int
        self.host, self.port = self._listener.getsockname()[:2]
        self._pool = ThreadPoolExecutor(PAGE_THREADS, thread_name_prefix="http-page")
        self._waiting: dict[socket.socket, asyncio.Task[None]] = {}
        """Connections that wait for their client, to send or to read; the longest wait first."""
        self._making = 0
        self._warned = float("-inf")
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._loop.close()
        self._listener.close()
        # A page may wait for the driver, which may hang.
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    client, _ = await accept(self._listener)
                except OSError as err:
                    log.warning("Failed to accept an HTTP connection", extra={"error": err})
                    await asyncio.sleep(PAUSE_S)
                    continue
                if len(self._waiting) + self._making >= MOST_CONNECTIONS:
                    self._close_one()
                self._waiting[client] = connections.create_task(self._talk(client))
                await asyncio.sleep(0)  # read the accepted connection before the next one can replace it

    def _close_one(self) -> None:
        longest_waiting = next(iter(self._waiting))
        task = self._waiting.pop(longest_waiting)
        task.cancel()
        if time.monotonic() - self._warned > WARNING_GAP_S:
            self._warned = time.monotonic()
            log.warning("Closed a slow HTTP connection", extra={"connections": MOST_CONNECTIONS})

    async def _talk(self, client: socket.socket) -> None:
        """Read one request and send one answer."""
        head = b""
        try:
            with client:
                async with asyncio.timeout(HEAD_S):
                    while _END_OF_HEAD not in head and len(head) < HEAD_BYTES:
                        more = await self._loop.sock_recv(client, HEAD_BYTES)
                        if not more:
                            return
                        head += more
                answer = await self._answer(client, head)
                # A client that reads nothing would hold its connection for good.
                async with asyncio.timeout(ANSWER_S):
                    for piece in answer:
                        await self._loop.sock_sendall(client, piece)
        except (OSError, TimeoutError) as err:
            log.debug("Lost an HTTP connection", extra={"request": _line(head), "error": str(err) or "too slow"})
        except Exception:
            log.exception("HTTP connection failed")
        finally:
            # Another connection may have replaced it.
            self._waiting.pop(client, None)

    async def _answer(self, client: socket.socket, head: bytes) -> Sequence[bytes]:
        """The pieces of the answer, head first."""
        request = _line(head)
        method_and_target, _, _ = request.rpartition(" ")
        method, _, target = method_and_target.partition(" ")
        answer = await self._find(client, head, method, target)
        log.debug("Answered HTTP request", extra={"request": request, "status": int(answer.code)})
        pieces = (answer.body,) if isinstance(answer.body, bytes) else tuple(answer.body)
        answer_head = answer.head(sum(map(len, pieces)))
        if method == "HEAD":
            return (answer_head,)
        if len(pieces) == 1:
            # One packet is enough for a small page.
            return (answer_head + pieces[0],)
        return (answer_head, *pieces)

    async def _find(self, client: socket.socket, head: bytes, method: str, target: str) -> "_Answer":
        path, _, _ = target.partition("?")
        if _END_OF_HEAD not in head:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"over {HEAD_BYTES} bytes")
        if not target:
            return _text(HTTPStatus.BAD_REQUEST, "not an HTTP request")
        if method not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "the pages are for GET and HEAD")
        if path in self._probes:
            problem = self._probes[path]()
            code = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            return _text(code, problem or "ok")
        if path in self._pages:
            return await self._page(client, self._pages[path])
        known = ", ".join((*self._pages, *self._probes))
        return _text(HTTPStatus.NOT_FOUND, f"not found; there are {known}")

    async def _page(self, client: socket.socket, page: Page) -> "_Answer":
        if self._making >= MOST_PAGES:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_PAGES} requests are being answered; try again")
        # It does not wait for its client now, so that no other connection may replace it.
        task = self._waiting.pop(client)
        self._making += 1
        try:
            content_type, body = await self._loop.run_in_executor(self._pool, page)
            return _Answer(HTTPStatus.OK, content_type, body)
        except Exception:
            log.exception("HTTP page failed")
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; the log says why")
        finally:
            self._making -= 1
            self._waiting[client] = task


def listen(address: tuple[str, int], backlog: int) -> socket.socket:
    """A listening socket: of IPv4 and IPv6 where the address has no host. Raises OSError."""
    host, _ = address
    is_dual = not host and socket.has_dualstack_ipv6()
    is_ipv6 = is_dual or ":" in host
    listener = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    try:
        if is_dual:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Otherwise a new agent could not listen while connections of the former one end.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A connection is accepted with its first bytes: a probe's request is read before another can replace it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection, and its peer's address. Raises OSError.

    Unlike that of the event loop, it loses no connection when it is canceled: it takes none before it returns it.
    """
    while True:
        with suppress(BlockingIOError):
            client, address = listener.accept()
            client.setblocking(False)
            return client, address
        await _until_readable(listener)


async def _until_readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(listener, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(listener)


def _line(head: bytes) -> str:
    """The request line."""
    line, _, _ = head.partition(b"\r\n")
    return line.decode("latin-1")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a request gets."""

    code: HTTPStatus
    content_type: str
    body: Body

    def head(self, length: int) -> bytes:
        """Its head, for a body of so many bytes."""
        lines = [
            f"HTTP/1.1 {self.code.value} {self.code.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {length}",
        ]
        if self.code is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        lines.append("Connection: close")
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def _text(code: HTTPStatus, text: str) -> _Answer:
    return _Answer(code, "text/plain; charset=utf-8", f"{text}\n".encode())
