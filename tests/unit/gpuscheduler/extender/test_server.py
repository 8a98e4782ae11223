"""The server keeps connections, ends calls in progress before it stops, and leaves signals alone."""

import asyncio
import http.client
import json
import signal
import socket
import threading
from contextlib import closing

import pytest

from gpuscheduler.extender.routes import Routes
from gpuscheduler.extender.server import MOST_PAGE_CONNECTIONS, listen, serve
from gpuscheduler.metrics import SchedulerMetrics
from tests.unit.gpuscheduler.extender.test_routes import BIND, FILTER, FirstNodeExtender


class SlowExtender(FirstNodeExtender):
    def __init__(self):
        self.began, self.go_on = threading.Event(), asyncio.Event()

    async def bind(self, call, left):
        self.began.set()
        await self.go_on.wait()
        return "bound", ""


class RunningServer:
    def __init__(self, service, *, limited=False):
        self.service, self.limited = service, limited
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.stop = asyncio.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        routes = Routes(self.service, SchedulerMetrics(dict))
        self.loop.run_until_complete(serve(routes, self.listener, self.stop, limited=self.limited))
        self.loop.close()

    def set(self, event):
        self.loop.call_soon_threadsafe(event.set)

    def connect(self):
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30))


@pytest.fixture
def running():
    made = RunningServer(SlowExtender())
    yield made
    if made.thread.is_alive():
        made.set(made.service.go_on)
        made.set(made.stop)
    made.thread.join()


def answer(connection):
    return json.loads(connection.getresponse().read())


def test_calls_on_one_connection(running):
    with running.connect() as connection:
        for _ in range(3):
            connection.request("POST", "/filter", json.dumps(FILTER))
            assert answer(connection)["NodeNames"] == ["n1"]


def test_a_call_in_progress_is_answered_before_the_end(running):
    with running.connect() as connection:
        connection.request("POST", "/bind", json.dumps(BIND))
        assert running.service.began.wait(30)
        running.set(running.stop)
        running.set(running.service.go_on)
        assert answer(connection) == {"Error": ""}
    running.thread.join()
    with running.connect() as connection, pytest.raises(ConnectionRefusedError):
        connection.request("GET", "/healthz")


def test_signals_stay_those_of_the_process(running):
    before = signal.getsignal(signal.SIGTERM)
    with running.connect() as connection:
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_in_use_is_an_error(running):
    with pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", running.port)


def test_an_address_without_a_host_is_one_of_ipv4_and_ipv6():
    with closing(listen("", 0)) as listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), timeout=10).close()


def test_clients_that_send_nothing_keep_no_client_out():
    pages = RunningServer(FirstNodeExtender(), limited=True)
    try:
        silent = [socket.create_connection(("127.0.0.1", pages.port)) for _ in range(2 * MOST_PAGE_CONNECTIONS)]
        with pages.connect() as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
        for one in silent[:MOST_PAGE_CONNECTIONS]:
            one.settimeout(30)
            assert one.recv(1) == b"", "the oldest are closed"
        for one in silent:
            one.close()
    finally:
        pages.set(pages.stop)
        pages.thread.join()
