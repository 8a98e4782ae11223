"""The HTTP port with real sockets: what it answers, and what clients that misbehave cannot do."""

import asyncio
import errno
import http.client
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from gpuagent.pages import http_server as port
from gpuagent.pages.http_server import (
    BACKLOG,
    HEAD_BYTES,
    MOST_CONNECTIONS,
    MOST_PAGES,
    PAGE_THREADS,
    HttpServer,
    Page,
    Probe,
    json_page,
)

LIMIT_S = 60
SLOW = b"GET /page HTTP/1.1\r\nHost: a\r\nX-Slow: "
BURST = BACKLOG // 2 - 1
HUGE = 32 << 20
"""Bytes of a page that no buffer of a socket takes."""


class GatedPage:
    """A page that does not return before it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._opened = threading.Event()

    def page(self) -> tuple[str, bytes]:
        self.entered.release()
        assert self._opened.wait(LIMIT_S)
        return "text/plain", b"late\n"

    def open(self) -> None:
        self._opened.set()


def failing() -> tuple[str, bytes]:
    raise RuntimeError("no page")


@pytest.fixture
def gate() -> Iterator[GatedPage]:
    one = GatedPage()
    yield one
    one.open()


@pytest.fixture
def wrong() -> dict[str, str | None]:
    """What each probe says is wrong."""
    return {"/healthz": None, "/readyz": "no driver"}


@pytest.fixture
def server(gate: GatedPage, wrong: dict[str, str | None]) -> Iterator[HttpServer]:
    pages = {
        "/page": json_page(lambda: {"a": 1}),
        "/huge": lambda: ("text/plain", b"x" * HUGE),
        "/pieces": lambda: ("text/plain", (b"a" * HUGE, b"", b"b")),
        "/late": gate.page,
        "/fails": failing,
    }
    with serving(pages, {path: lambda path=path: wrong[path] for path in wrong}) as one:
        yield one
        gate.open()


@contextmanager
def serving(pages: dict[str, Page], probes: dict[str, Probe]) -> Iterator[HttpServer]:
    before = set(threading.enumerate())
    one = HttpServer(("127.0.0.1", 0), pages, probes)
    one.start()
    try:
        yield one
    finally:
        left = set(threading.enumerate()) - before
        if any(thread.name == "http" for thread in left):  # the test may have stopped it
            one.stop()
        for thread in left:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread.name


def connect(server: HttpServer, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
    client.sendall(sent)
    return client


def read(client: socket.socket) -> bytes:
    """All that comes until the server closes, or resets."""
    got = b""
    try:
        while more := client.recv(1 << 16):
            got += more
    except ConnectionResetError:
        pass
    return got


def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes, http.client.HTTPMessage]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


# -- what it answers -------------------------------------------------------------------------------------------------


def test_pages_and_probes(server: HttpServer, wrong: dict[str, str | None]) -> None:
    status, body, headers = ask(server, "/page?x=1")
    assert (status, body, headers["Content-Type"]) == (200, b'{\n  "a": 1\n}\n', "application/json")
    assert headers["Connection"] == "close"
    assert ask(server, "/healthz")[:2] == (200, b"ok\n")
    assert ask(server, "/readyz")[:2] == (503, b"no driver\n")
    wrong["/readyz"] = None
    assert ask(server, "/readyz")[:2] == (200, b"ok\n")
    assert ask(server, "/")[:2] == (
        404,
        b"not found; there are /page, /huge, /pieces, /late, /fails, /healthz, /readyz\n",
    )


def test_a_head_request_has_the_length_and_no_body(server: HttpServer) -> None:
    status, body, headers = ask(server, "/page", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "13")


def test_a_page_in_pieces_is_one_body(server: HttpServer) -> None:
    status, body, headers = ask(server, "/pieces")
    assert (status, body, headers["Content-Length"]) == (200, b"a" * HUGE + b"b", str(HUGE + 1))
    assert ask(server, "/pieces", "HEAD")[1] == b""


def test_a_page_that_fails_is_an_error_and_the_next_one_is_answered(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(server, "/fails")[0] == 500
    assert "no page" in caplog.text
    assert ask(server, "/page")[0] == 200


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"POST /page HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"),
        (b"TRACE /page HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"),
        (b"rubbish\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"\0\xff \x1b\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found\r\n"),
        (b"GET /" + b"a" * HEAD_BYTES, b"HTTP/1.1 431 Request Header Fields Too Large\r\n"),
        (b"GET /page HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
    ],
)
def test_odd_requests_are_answered_and_the_connection_is_closed(server: HttpServer, sent: bytes, answer: bytes) -> None:
    with connect(server, sent) as client:
        assert read(client).startswith(answer)
    assert ask(server, "/healthz")[0] == 200


def test_a_client_that_has_ended_its_side_is_answered(server: HttpServer) -> None:
    with connect(server, b"GET /page HTTP/1.1\r\n\r\n") as client:
        client.shutdown(socket.SHUT_WR)
        assert read(client).endswith(b'{\n  "a": 1\n}\n')


def test_a_request_is_read_in_whatever_pieces_it_comes(server: HttpServer) -> None:
    with connect(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n":
            client.sendall(bytes((byte,)))
        assert read(client).startswith(b"HTTP/1.1 200 OK\r\n")


def test_two_requests_on_one_connection_have_one_answer(server: HttpServer) -> None:
    with connect(server, b"GET /healthz HTTP/1.1\r\n\r\n" * 2) as client:
        assert read(client).count(b"HTTP/1.1") == 1


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@pytest.mark.parametrize(("address", "host"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1")])
def test_ipv6_is_served_and_both_without_a_host(address: str, host: str) -> None:
    server = HttpServer((address, 0), {}, {"/healthz": lambda: None})
    server.start()
    with closing(http.client.HTTPConnection(host, server.port, timeout=LIMIT_S)) as connection:
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
    server.stop()


def test_a_port_in_use_is_an_error(server: HttpServer) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        HttpServer(("127.0.0.1", server.port), {}, {})


# -- clients that misbehave ------------------------------------------------------------------------------------------


def still_open(clients: list[socket.socket]) -> list[socket.socket]:
    """Those whose server has neither answered nor closed."""
    found = []
    for client in clients:
        client.setblocking(False)
        try:
            client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            found.append(client)
        except ConnectionResetError:
            pass
        client.settimeout(LIMIT_S)
    return found


def test_slow_clients_hold_no_more_than_the_places_and_probes_are_answered(server: HttpServer) -> None:
    with ExitStack() as ends:
        slow: list[socket.socket] = []
        for _ in range(10 * MOST_CONNECTIONS):
            slow.append(ends.enter_context(connect(server, SLOW)))
            assert ask(server, "/healthz")[0] == 200
        assert len(still_open(slow)) < MOST_CONNECTIONS
        assert all(client in slow[-MOST_CONNECTIONS:] for client in still_open(slow)), "the longest wait is closed"
        assert {thread.name for thread in threading.enumerate() if thread.name.startswith("http")} == {"http"}


def test_a_probe_amid_a_burst_is_answered() -> None:
    """The server has not looked yet when they all come: what came with a connection is read before others push it out."""
    stalled, go_on = threading.Event(), threading.Event()

    def stall() -> None:
        stalled.set()
        assert go_on.wait(LIMIT_S)

    with serving({}, {"/healthz": lambda: None, "/stall": stall}) as server, ExitStack() as ends:
        ends.enter_context(connect(server, b"GET /stall HTTP/1.1\r\n\r\n"))
        assert stalled.wait(LIMIT_S)
        for _ in range(BURST):
            ends.enter_context(connect(server, SLOW))
        probe = ends.enter_context(connect(server, b"GET /healthz HTTP/1.1\r\n\r\n"))
        for _ in range(BURST):
            ends.enter_context(connect(server, SLOW))
        go_on.set()
        assert read(probe).startswith(b"HTTP/1.1 200 OK")


def test_clients_that_do_not_read_hold_no_more_than_the_places_and_probes_are_answered(server: HttpServer) -> None:
    with ExitStack() as ends:
        for _ in range(3 * MOST_CONNECTIONS):
            ends.enter_context(connect(server, b"GET /huge HTTP/1.1\r\n\r\n"))
            assert ask(server, "/healthz")[0] == 200
        assert len(ask(server, "/huge")[1]) == HUGE


def test_pages_that_take_long_hold_up_no_probe_and_what_is_too_much_is_refused(
    server: HttpServer, gate: GatedPage
) -> None:
    with ExitStack() as ends:
        asked = [ends.enter_context(connect(server, b"GET /late HTTP/1.1\r\n\r\n")) for _ in range(MOST_PAGES)]
        for _ in range(PAGE_THREADS):
            assert gate.entered.acquire(timeout=LIMIT_S)
        while (refused := ask(server, "/page"))[0] == 200:
            pass  # some of the clients have not been read yet
        assert refused[:2] == (503, f"{MOST_PAGES} requests are being answered; try again\n".encode())
        slow = [ends.enter_context(connect(server, SLOW)) for _ in range(3 * MOST_CONNECTIONS)]
        assert ask(server, "/healthz")[0] == 200
        assert len(still_open(slow)) <= MOST_CONNECTIONS - MOST_PAGES
        assert sum(thread.name.startswith("http-page") for thread in threading.enumerate()) == PAGE_THREADS
        gate.open()
        assert all(read(client).endswith(b"late\n") for client in asked), "no page that was begun is given up"


def test_a_request_that_does_not_end_and_an_answer_that_is_not_read_have_a_deadline(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gpuagent.pages.http_server")
    monkeypatch.setattr(port, "HEAD_S", 0.2)
    monkeypatch.setattr(port, "ANSWER_S", 0.2)
    with connect(server, SLOW) as slow, connect(server, b"GET /huge HTTP/1.1\r\n\r\n") as deaf:
        ended = threading.Event()
        drip = threading.Thread(target=drips, args=(slow, ended))
        drip.start()
        assert ended.wait(LIMIT_S), "a byte now and then does not put the deadline off"
        drip.join()
        while sum(record.message == "Lost an HTTP connection" for record in caplog.records) < 2:
            time.sleep(0.01)  # whether it is closed shows only when it is read
        assert len(read(deaf)) < HUGE


def drips(client: socket.socket, ended: threading.Event) -> None:
    client.settimeout(0.01)
    while True:
        try:
            client.sendall(b"x")
            if not client.recv(1):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    ended.set()


def test_clients_that_reset_leave_no_more_than_a_line_at_debug(
    server: HttpServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "gpuagent.pages.http_server")
    for sent in (b"", SLOW, b"GET /huge HTTP/1.1\r\n\r\n", b"GET /page HTTP/1.1\r\n\r\n") * 10:
        client = connect(server, sent)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert ask(server, "/healthz")[0] == 200
    server.stop()
    assert {record.levelname for record in caplog.records if record.name == "gpuagent.pages.http_server"} <= {
        "DEBUG",
        "WARNING",
    }
    assert not any(record.exc_info for record in caplog.records)
    assert capfd.readouterr().err == ""


def test_slow_clients_are_logged_once_in_a_while(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as ends:
        for _ in range(5 * MOST_CONNECTIONS):
            ends.enter_context(connect(server, SLOW))
        assert ask(server, "/healthz")[0] == 200
    assert [record.message for record in caplog.records] == ["Closed a slow HTTP connection"]


def test_without_file_descriptors_it_waits_and_does_not_spin(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    accept = port.accept  # a process out of descriptors could not run this test

    async def refused(_listener: socket.socket) -> tuple[socket.socket, object]:
        monkeypatch.setattr(port, "accept", accept)
        raise OSError(errno.EMFILE, "Too many open files")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    sleep: Callable[[float], object] = port.asyncio.sleep
    monkeypatch.setattr(port.asyncio, "sleep", pause)
    monkeypatch.setattr(port, "accept", refused)
    for _ in range(3):
        assert ask(server, "/healthz")[0] == 200
    assert pauses.count(port.PAUSE_S) == 1
    assert [record.message for record in caplog.records] == ["Failed to accept an HTTP connection"]


@pytest.mark.parametrize("turns", range(5))
def test_no_connection_is_lost_when_a_server_stops_to_accept(turns: int) -> None:
    """Whatever of it the event loop has done before: the stop of an agent that is scraped left a traceback."""

    async def accepted_after_a_cancel() -> socket.socket:
        accepting = asyncio.create_task(port.accept(listener))
        await asyncio.sleep(0)
        client.connect(listener.getsockname())
        client.sendall(b"x")
        for _ in range(turns):
            await asyncio.sleep(0)
        accepting.cancel()
        with suppress(asyncio.CancelledError):
            accepted, _ = await accepting
            return accepted
        async with asyncio.timeout(LIMIT_S):
            accepted, _ = await port.accept(listener)
            return accepted

    with port.listen(("127.0.0.1", 0), 1) as listener, socket.socket() as client:
        with asyncio.run(accepted_after_a_cancel()) as accepted:
            assert accepted.getpeername() == client.getsockname()


def test_it_stops_beside_clients_of_every_kind(server: HttpServer, gate: GatedPage) -> None:
    with ExitStack() as ends:
        for sent in (b"", SLOW, b"GET /huge HTTP/1.1\r\n\r\n", b"GET /late HTTP/1.1\r\n\r\n"):
            ends.enter_context(connect(server, sent))
        assert gate.entered.acquire(timeout=LIMIT_S)
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            connect(server)
