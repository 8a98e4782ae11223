"""asyncio's loop on the simulated machine."""

import asyncio

import pytest

from simworld.runtime import threads
from simworld.runtime.event_loop import Loopback, SimulatedLoop, run_loop
from simworld.runtime.kernel import Process, begin


class Network(Loopback):
    """Connects to a peer that says everything back."""

    def open(self, transport, host, port):
        if host == "nobody":
            raise ConnectionRefusedError
        return Echo(transport)


class Echo:
    def __init__(self, transport):
        self.transport = transport

    def receive(self, data):
        self.transport.arrive(data)

    def client_closed(self):
        self.transport = None


class Client(asyncio.Protocol):
    def __init__(self):
        self.heard = asyncio.Queue()

    def data_received(self, data):
        self.heard.put_nowait(data)


@pytest.fixture
def machine(monkeypatch):
    machine = begin(1)
    monkeypatch.setattr("time.monotonic", threads.monotonic)
    return machine


def start(machine, main, process):
    """Run a coroutine on a loop of its own; its loop, and where its answer will be."""
    loop = SimulatedLoop(Network())
    answers = []

    async def answer():
        answers.append(await main())

    machine.spawn(lambda: run_loop(loop, answer, process), "loop", process)
    return loop, answers


def run(machine, main):
    _, answers = start(machine, main, Process("process"))
    assert machine.run(lambda: bool(answers), 100.0)
    assert not machine.failed
    return answers[0]


def test_timers_pass_virtual_time(machine):
    async def main():
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(30.0)
        try:
            async with asyncio.timeout(5.0):
                await asyncio.Event().wait()
        except TimeoutError:
            return asyncio.get_running_loop().time() - began

    assert 35.0 <= run(machine, main) < 35.1


def test_a_thread_works_beside_the_loop(machine):
    async def main():
        slow = asyncio.create_task(asyncio.to_thread(lambda: machine.sleep(3.0) or "done"))
        await asyncio.sleep(1.0)
        assert not slow.done()
        return await slow

    assert run(machine, main) == "done"


def test_a_connection_carries_bytes_and_may_be_refused(machine):
    async def main():
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(Client, "echo", 1)
        transport.write(b"one")
        transport.write(b"two")
        heard = [await client.heard.get(), await client.heard.get()]
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Client, "nobody", 1)
        return heard

    assert run(machine, main) == [b"one", b"two"]


def test_two_loops_take_turns_also_in_the_midst_of_a_callback(machine):
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(20):
            machine.give_way()
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
        return True

    answers = [start(machine, main, Process(name))[1] for name in "ab"]
    assert machine.run(lambda: all(answers), 10.0)
    assert not machine.failed


def test_a_killed_process_runs_no_finally_block_and_its_connections_break(machine):
    ran = []

    async def main():
        try:
            await asyncio.get_running_loop().create_connection(Client, "echo", 1)
            await asyncio.sleep(50.0)
        finally:
            ran.append("cleaned up")

    process = Process("victim")
    loop, _ = start(machine, main, process)
    machine.spawn(lambda: machine.sleep(90.0), "other")
    machine.run(lambda: bool(loop.transports), 10.0)
    peer = loop.transports[0].peer
    machine.end(process)
    machine.run(lambda: False, 80.0)
    assert not ran
    assert peer.transport is None
