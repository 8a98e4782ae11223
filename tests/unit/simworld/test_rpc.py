"""gRPC on the simulated machine."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import grpc
import pytest

from simworld.runtime.kernel import Process, begin
from simworld.runtime.rpc import CallError, Channel, Server

METHOD = "/driver/Unprepare"
ANSWER_S = 0.5


@pytest.fixture
def machine():
    return begin(1)


@pytest.fixture
def address():
    # pytest's own folders are too long for the sockets in them.
    with TemporaryDirectory() as folder:
        yield f"unix:{Path(folder) / 'driver.sock'}"


class Cluster:
    """An agent whose server takes `ANSWER_S` for a call, and what a kubelet gets for its calls."""

    def __init__(self, machine, address):
        self._machine = machine
        self._address = address
        self.agent = Process("agent")
        self.kubelet = Process("kubelet")
        self.answers = []

    def _answer(self, request, _context):
        self._machine.sleep(ANSWER_S)
        return request

    def serve(self, stop_after_s, grace_s):
        handler = SimpleNamespace(
            request_deserializer=bytes,
            response_serializer=bytes,
            response_streaming=False,
            unary_unary=self._answer,
        )
        server = Server(SimpleNamespace(_max_workers=2))
        server.add_registered_method_handlers("driver", {"Unprepare": handler})
        server.add_insecure_port(self._address)
        server.start()
        self._machine.sleep(stop_after_s)
        server.stop(grace_s).wait(2.0)

    def call(self, after_s):
        self._machine.sleep(after_s)
        call = Channel(self._address).unary_unary(METHOD, bytes, bytes)
        try:
            self.answers.append(call(b"claim", timeout=5.0))
        except CallError as error:
            self.answers.append(error.code())

    def play(self, grace_s, *call_times_s):
        """What calls at these times get from a server that is stopped a fifth of a second after it has started."""
        self._machine.spawn(lambda: self.serve(0.2, grace_s), "agent", self.agent)
        for after_s in call_times_s:
            self._machine.spawn(lambda after_s=after_s: self.call(after_s), "kubelet", self.kubelet)
        self._machine.spawn(lambda: self._machine.sleep(100.0), "keeps the world going")
        self._machine.run(lambda: len(self.answers) == len(call_times_s), 10.0)
        return self.answers


def test_a_server_that_stops_with_a_grace_ends_its_calls_and_takes_no_more(machine, address):
    assert Cluster(machine, address).play(1.0, 0.1, 0.3) == [grpc.StatusCode.UNAVAILABLE, b"claim"]


def test_a_call_that_takes_longer_than_the_grace_breaks_off(machine, address):
    assert Cluster(machine, address).play(0.1, 0.1) == [grpc.StatusCode.UNAVAILABLE]


@pytest.mark.parametrize("grace_s", [None, 0])
def test_a_server_that_stops_without_a_grace_breaks_its_calls_off(machine, address, grace_s):
    assert Cluster(machine, address).play(grace_s, 0.1) == [grpc.StatusCode.UNAVAILABLE]
