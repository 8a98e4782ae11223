"""Connections for writes: when one is used again, and what it means that one is lost."""

import asyncio
import math

import pytest
import uvloop

from gpuscheduler.cluster_api import kept_connections
from gpuscheduler.cluster_api.kept_connections import KeptConnections, LostError
from standin.waiting import PATIENCE_S

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
UNTIL_CLOSED = b"HTTP/1.1 201 Created\r\n\r\nok"
TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers each request with the next of some texts; an empty one closes the connection.

    Attributes:
        heads: of the requests.
        connections: that were opened.
        asked: a request has come.
        ended: a connection has.
        is_reset: a client has had its kernel forget what was not sent yet.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.heads = []
        self.connections = []
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_reset = False

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        headers = (("Accept", "application/json"), ("Impersonate-Group", "dev"), ("Impersonate-Group", "ops"))
        self.kept = KeptConnections(f"http://127.0.0.1:{port}/prefix", "", headers)
        return self

    async def __aexit__(self, *_):
        self.kept.close()
        for writer in self.connections:
            writer.close()
        self.server.close()

    async def serve(self, reader, writer):
        self.connections.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
                await reader.readexactly(length)
                self.heads.append(head)
                self.asked.set()
                text = self.answers.pop(0)
                writer.write(text)
                if text in (b"", UNTIL_CLOSED):
                    break
        except asyncio.IncompleteReadError:
            pass
        except ConnectionError:
            self.is_reset = True
        writer.close()
        self.ended.set()

    async def write(self, path="/api/v1/pods", limit_s=math.inf):
        async with asyncio.timeout(PATIENCE_S):
            headers = {"Content-Type": "application/json"}
            return await self.kept.send(
                "POST",
                path,
                headers,
                b"{}",
                None,
                limit_s,
            )


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def run(request):
    """Runs a coroutine on each kind of loop."""

    def run_on_loop(coroutine):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(coroutine)

    return run_on_loop


def test_one_connection_carries_one_request_after_the_other(run):
    async def steps():
        async with Server(OK, OK, OK) as server:
            answers = [await server.write() for _ in range(3)]
            assert [answer.body for answer in answers] == [b"ok"] * 3
            assert len(server.connections) == 1
            first, *headers = server.heads[0].split("\r\n")
            assert first == "POST /prefix/api/v1/pods HTTP/1.1"
            assert {"Accept: application/json", "Content-Type: application/json"} <= set(headers)
            assert {"Impersonate-Group: dev", "Impersonate-Group: ops"} <= set(headers)

    run(steps())


def test_requests_at_one_time_have_a_connection_each(run):
    async def steps():
        async with Server(*[OK] * 8) as server:
            await asyncio.gather(*[server.write() for _ in range(4)])
            assert len(server.connections) == 4
            await asyncio.gather(*[server.write() for _ in range(4)])
            assert len(server.connections) == 4

    run(steps())


@pytest.mark.parametrize("last", [CLOSE, UNTIL_CLOSED])
def test_a_connection_that_the_server_ends_is_not_used_again(run, last):
    async def steps():
        async with Server(last, OK) as server:
            assert [(await server.write()).body for _ in range(2)] == [b"ok"] * 2
            assert len(server.connections) == 2

    run(steps())


def test_a_request_whose_connection_breaks_off_is_not_sent_again(run):
    """The server may have carried it out."""

    async def steps():
        async with Server(OK, b"", OK) as server:
            await server.write()
            with pytest.raises(LostError):
                await server.write()
            assert len(server.heads) == 2
            assert (await server.write()).status == 201

    run(steps())


def test_an_answer_without_a_request_is_not_that_of_the_next_one(run):
    async def steps():
        async with Server(OK, OK) as server:
            await server.write()
            server.connections[0].write(TIMED_OUT)
            # The client closes the connection when it has read that.
            await server.ended.wait()
            assert (await server.write()).status == 201
            assert len(server.connections) == 2

    run(steps())


def test_a_connection_that_was_idle_for_long_is_closed(run, monkeypatch):
    async def steps():
        async with Server(OK, OK) as server:
            await server.write()
            monkeypatch.setattr(kept_connections, "IDLE_S", 0.0)
            await server.write()
            assert len(server.connections) == 2
            await server.ended.wait()

    run(steps())


def test_a_request_that_is_given_up_ends_its_connection(run):
    """Its answer may come later, and must not be taken for another's."""

    async def steps():
        async with Server(b"HTTP/1.1 201 Created\r\n", OK) as server:
            given_up = asyncio.ensure_future(server.write())
            await server.asked.wait()
            given_up.cancel()
            await asyncio.wait([given_up])
            await server.ended.wait()
            assert (await server.write()).body == b"ok"
            assert len(server.connections) == 2

    run(steps())


def test_an_answer_is_not_waited_for_beyond_the_limit(run):
    async def steps():
        async with Server(b"HTTP/1.1 201 Created\r\n", OK) as server:
            with pytest.raises(TimeoutError):
                await server.write(limit_s=0.01)
            await server.ended.wait()
            assert server.is_reset
            assert (await server.write()).body == b"ok"

    run(steps())


@pytest.mark.parametrize("is_open", [False, True])
def test_nothing_is_sent_beyond_the_limit(run, is_open):
    async def steps():
        async with Server(OK, OK) as server:
            if is_open:
                await server.write()
            with pytest.raises(TimeoutError):
                await server.write(limit_s=0.0)
            assert (await server.write()).body == b"ok"
            assert len(server.heads) == 1 + is_open

    run(steps())


@pytest.mark.parametrize(
    "name", ["a HTTP/1.1\r\nX-Remote-User: admin\r\n\r\n", "a\nb", "p?dryRun=All", "p#x", "ü", "%0d"]
)
def test_a_name_cannot_change_the_request(run, name):
    async def steps():
        async with Server(OK) as server:
            await server.write(f"/pods/{name}/binding")
            first, *headers = server.heads[0].split("\r\n")
            assert first.startswith("POST /prefix/pods/")
            assert first.endswith("/binding HTTP/1.1")
            assert first.count(" ") == 2
            assert not {"?", "#"}.intersection(first)
            assert not any(line.startswith("X-Remote-User") for line in headers)

    run(steps())


def test_bytes_that_are_no_answer_are_a_lost_connection(run):
    async def steps():
        async with Server(b"SSH-2.0-OpenSSH\r\n\r\n", OK) as server:
            with pytest.raises(LostError):
                await server.write()
            assert (await server.write()).body == b"ok"

    run(steps())
