"""The port of calls keeps connections, bounds what a stranger can cost, and ends calls in progress before it stops."""

import asyncio
import http.client
import json
import signal
import socket
import threading
from contextlib import ExitStack, closing

import pytest
import uvloop

from gpuagent.pages.http_server import listen
from gpuscheduler.extender import call_connection, server
from gpuscheduler.extender.call_head import HEAD_BYTES
from gpuscheduler.extender.routes import MOST_BODY, Routes
from gpuscheduler.extender.server import MOST_WAITING, CallServer
from gpuscheduler.metrics import SchedulerMetrics
from standin.waiting import PATIENCE_S
from tests.unit.gpuscheduler.extender.test_routes import BIND, FILTER, FirstNodeExtender

CALL = json.dumps(FILTER).encode()
POST = b"POST /filter HTTP/1.1\r\nContent-Length: %d\r\n\r\n"


class SlowExtender(FirstNodeExtender):
    def __init__(self):
        self.began, self.go_on = threading.Event(), asyncio.Event()
        self.left = threading.Event()

    async def bind(self, call, left):
        self.began.set()
        gone = asyncio.ensure_future(left())
        gone.add_done_callback(lambda _: self.left.set())
        await self.go_on.wait()
        return "bound", ""


class RunningServer:
    def __init__(self, new_loop, tls=None):
        self.service, self.tls = SlowExtender(), tls
        self.listener = listen(("127.0.0.1", 0), server.BACKLOG)
        self.port = self.listener.getsockname()[1]
        self.stop = asyncio.Event()
        self.loop = new_loop()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        self.loop.run_until_complete(self.serve())
        self.loop.close()

    async def serve(self):
        routes = Routes(self.service, SchedulerMetrics(dict))
        await CallServer(routes, self.listener, self.tls).run(self.stop)

    def set(self, event):
        self.loop.call_soon_threadsafe(event.set)

    def end(self):
        if self.thread.is_alive():
            self.set(self.service.go_on)
            self.set(self.stop)
        self.thread.join()

    def connect(self):
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S))

    def send(self, sent):
        """A client that has sent this."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        client.sendall(sent)
        return client

    def is_answering(self):
        with self.connect() as connection:
            connection.request("POST", "/filter", CALL)
            return answer(connection)["NodeNames"] == ["n1"]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def running(request):
    made = RunningServer(request.param)
    yield made
    made.end()


def answer(connection):
    return json.loads(connection.getresponse().read())


def read(client):
    """All that comes until the server closes, or resets."""
    got = b""
    try:
        while more := client.recv(1 << 16):
            got += more
    except ConnectionResetError:
        pass
    return got


def flood(client, data, times):
    """Send until all is sent or the server closes; whether all was."""
    try:
        for _ in range(times):
            client.sendall(data)
    except OSError:
        return False
    return True


# -- kube-scheduler ----------------------------------------------------------------------------------------------------


def test_calls_on_one_connection(running):
    with running.connect() as connection:
        for _ in range(3):
            connection.request("POST", "/filter", CALL)
            assert answer(connection)["NodeNames"] == ["n1"]


def test_a_call_is_read_in_whatever_pieces_it_comes(running):
    with running.send(b"") as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in POST % len(CALL) + CALL:
            client.sendall(bytes((byte,)))
        assert b'"NodeNames":["n1"]' in client.recv(1 << 16)


def test_a_call_in_progress_is_answered_before_the_end(running):
    with running.connect() as connection:
        connection.request("POST", "/bind", json.dumps(BIND))
        assert running.service.began.wait(PATIENCE_S)
        running.set(running.stop)
        running.set(running.service.go_on)
        assert answer(connection) == {"Error": ""}
    running.thread.join()
    with running.connect() as connection, pytest.raises(ConnectionRefusedError):
        connection.request("POST", "/filter", CALL)


def test_a_call_learns_that_its_caller_has_gone(running):
    with running.connect() as connection:
        connection.request("POST", "/bind", json.dumps(BIND))
        assert running.service.began.wait(PATIENCE_S)
    assert running.service.left.wait(PATIENCE_S)


def test_idle_connections_do_not_hold_up_the_end(running):
    with running.connect() as connection:
        connection.request("POST", "/filter", CALL)
        answer(connection)
        with running.send(b"POST /filter HTTP/1.1\r\n"):
            running.end()
    assert not running.thread.is_alive()


def test_a_client_that_wants_no_further_call_is_closed(running):
    sent = POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % len(CALL) + CALL
    with running.send(sent) as client:
        assert b"Connection: close" in read(client)


def test_signals_stay_those_of_the_process(running):
    before = signal.getsignal(signal.SIGTERM)
    assert running.is_answering()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_in_use_is_an_error(running):
    with pytest.raises(OSError, match="in use"):
        listen(("127.0.0.1", running.port), 1)


# -- strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"\0\xff \x1b\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"POST /filter HTTP/2.0\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\n : empty\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}{}", 400),
        (b"POST /filter HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 4\r\n\r\n{}{}", 400),
        (b"GET /filter HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
        (b"POST /filter HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (POST % (MOST_BODY + 1), 413),
        (POST.replace(b"filter", b"bind") % (1 << 20), 413),
        (b"GET /filter HTTP/1.1\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 404),
        (b"POST /" + b"a" * HEAD_BYTES, 431),
        (b"POST /filter HTTP/1.1\r\n" + b"A: b\r\n" * (HEAD_BYTES // 6), 431),
    ],
)
def test_what_is_no_call_is_answered_and_closed(running, sent, status):
    with running.send(sent) as client:
        assert read(client).startswith(b"HTTP/1.1 %d " % status)
    assert running.is_answering()


@pytest.mark.parametrize("data", [b"A: b\r\n" * 10_000, b"x" * 60_000], ids=["many headers", "one header"])
def test_headers_without_end_are_not_read_on(running, data):
    with running.send(b"POST /filter HTTP/1.1\r\nA: ") as client:
        assert not flood(client, data, 1000)
    assert running.is_answering()


def test_calls_are_not_queued_up(running):
    with running.send(POST % len(CALL) + CALL) as client:
        assert not flood(client, (POST % len(CALL) + CALL) * 1000, 1000)
    assert running.is_answering()


def test_answers_that_nobody_reads_are_not_piled_up(running):
    """A client that sends calls and reads no answer is read no further."""
    body = json.dumps(FILTER | {"NodeNames": ["n" * 60_000]}).encode()
    call = POST % len(body) + body
    with running.send(b"") as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(1)
        assert not flood(client, call, 1000)
    assert running.is_answering()


@pytest.mark.parametrize("sent", [b"", b"POST /filter HTTP/1.1\r\nA: ", POST % 1000], ids=["nothing", "head", "body"])
def test_slow_clients_keep_no_caller_out(running, sent):
    with ExitStack() as ends, running.connect() as kube_scheduler:
        for _ in range(4 * MOST_WAITING):
            kube_scheduler.request("POST", "/filter", CALL)
            assert answer(kube_scheduler)["NodeNames"] == ["n1"], "its connection is not replaced by strangers"
            ends.enter_context(running.send(sent))
        assert running.is_answering()


def test_slow_clients_hold_no_more_than_their_places(running):
    with ExitStack() as ends:
        slow = [ends.enter_context(running.send(POST % 1000)) for _ in range(4 * MOST_WAITING)]
        assert running.is_answering()
        for client in slow[:-MOST_WAITING]:
            # What a client has sent may not have been read, and then its connection is reset.
            assert read(client) == b"", "the oldest are closed"


def test_no_connection_is_taken_beyond_the_calls_in_progress(running, monkeypatch):
    monkeypatch.setattr(server, "MOST_SERVED", 1)
    with running.connect() as binding:
        binding.request("POST", "/bind", json.dumps(BIND))
        assert running.service.began.wait(PATIENCE_S)
        with running.send(b"") as further:
            assert read(further) == b""
        running.set(running.service.go_on)
        assert answer(binding) == {"Error": ""}
    assert running.is_answering()


def test_unfinished_calls_together_are_no_larger_than_one(running):
    half = b" " * (MOST_BODY // 2 + 1)
    with ExitStack() as ends:
        slow = [ends.enter_context(running.send(POST % MOST_BODY)) for _ in range(3)]
        for client in slow:
            client.sendall(half)
        for client in slow[:-1]:
            assert read(client) == b""
        slow[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            slow[-1].recv(1)
        assert running.is_answering()


def test_a_call_that_does_not_end_has_a_deadline(running, monkeypatch):
    monkeypatch.setattr(call_connection, "CALL_S", 0.2)
    with running.send(POST % 1000) as client:
        client.settimeout(0.01)
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):  # noqa: PT012 (a byte now and then does not put it off)
            while True:
                try:
                    client.sendall(b"x")
                    if not client.recv(1):
                        client.sendall(b"x")
                except TimeoutError:
                    continue
