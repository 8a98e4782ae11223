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
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    client, _ = await self._loop.sock_accept(self._listener)
                except OSError as err:
                    log.warning("Failed to accept an HTTP connection", extra={"error": err})
                    await asyncio.sleep(PAUSE_S)
                    continue
                if len(self._waiting) + self._making >= MOST_CONNECTIONS:
                    self._close_one()
                self._waiting[client] = connections.create_task(self._talk(client))
                await asyncio.sleep(0)  # read the accepted connection before the next one can replace it

    def _close_one(self) -> None:
        self._waiting.pop(next(iter(self._waiting))).cancel()
        if time.monotonic() - self._warned > WARNING_GAP_S:
            self._warned = time.monotonic()
            log.warning("Closed a slow HTTP connection", extra={"connections": MOST_CONNECTIONS})

    async def _talk(self, client: socket.socket) -> None:
        """Read one request and send one answer."""
        head = b""
        try:
            with client:
                async with asyncio.timeout(HEAD_S):
                    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
                        more = await self._loop.sock_recv(client, HEAD_BYTES)
                        if not more:
                            return
                        head += more
                answer = await self._answer(client, head)
                async with asyncio.timeout(ANSWER_S):
                    for piece in answer:
                        await self._loop.sock_sendall(client, piece)
        except (OSError, TimeoutError) as err:
            log.debug("Lost an HTTP connection", extra={"request": _line(head), "error": str(err) or "too slow"})
        except Exception:
            log.exception("HTTP connection failed")
        finally:
            self._waiting.pop(client, None)

    async def _answer(self, client: socket.socket, head: bytes) -> Sequence[bytes]:
        """The pieces of the answer, head first."""
        body: Body
        method, _, target = _line(head).rpartition(" ")[0].partition(" ")
        path = target.partition("?")[0]
        if b"\r\n\r\n" not in head:
            code, content_type, body = _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"over {HEAD_BYTES} bytes")
        elif not target:
            code, content_type, body = _text(HTTPStatus.BAD_REQUEST, "not an HTTP request")
        elif method not in {"GET", "HEAD"}:
            code, content_type, body = _text(HTTPStatus.METHOD_NOT_ALLOWED, "the pages are for GET and HEAD")
        elif path in self._probes:
            wrong = self._probes[path]()
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            code, content_type, body = _text(status, wrong or "ok")
        elif path in self._pages:
            code, content_type, body = await self._page(client, self._pages[path])
        else:
            known = ", ".join((*self._pages, *self._probes))
            code, content_type, body = _text(HTTPStatus.NOT_FOUND, f"not found; there are {known}")
        log.debug("Answered HTTP request", extra={"request": _line(head), "status": int(code)})
        pieces = (body,) if isinstance(body, bytes) else tuple(body)
        lines = (
            f"HTTP/1.1 {code.value} {code.phrase}",
            f"Content-Type: {content_type}",
            f"Content-Length: {sum(map(len, pieces))}",
            *(("Allow: GET, HEAD",) if code is HTTPStatus.METHOD_NOT_ALLOWED else ()),
            "Connection: close",
        )
        answer_head = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
        if method == "HEAD":
            return (answer_head,)
        if len(pieces) == 1:
            return (answer_head + pieces[0],)
        return (answer_head, *pieces)

    async def _page(self, client: socket.socket, page: Page) -> tuple[HTTPStatus, str, Body]:
        if self._making >= MOST_PAGES:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_PAGES} requests are being answered; try again")
        task = self._waiting.pop(client)
        self._making += 1
        try:
            return HTTPStatus.OK, *(await self._loop.run_in_executor(self._pool, page))
        except Exception:
            log.exception("HTTP page failed")
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; the log says why")
        finally:
            self._making -= 1
            self._waiting[client] = task


def listen(address: tuple[str, int], backlog: int) -> socket.socket:
    """A listening socket: of IPv4 and IPv6 where the address has no host. Raises OSError."""
    both = not address[0] and socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if both or ":" in address[0] else socket.AF_INET)
    try:
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
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


def _line(head: bytes) -> str:
    """The request line."""
    return head.partition(b"\r\n")[0].decode("latin-1")


def _text(code: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return code, "text/plain; charset=utf-8", f"{text}\n".encode()
