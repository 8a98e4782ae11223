"""Kubelet's three calls on the agent's real socket, next to bare grpcio servers, in turns."""

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from bench.agent.echo import SERVICE
from bench.node import AGENT_PYTHON, BenchError
from bench.result import ROOT

Call = Callable[[bytes], bytes]
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
)
_WARM_UP = 30


class Server:
    """A connection to one DevicePlugin socket that sends and receives encoded messages."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)
        grpc.channel_ready_future(self._channel).result(timeout=10)

    def method(self, name: str, service: str = SERVICE) -> Call:
        call: Callable[..., bytes] = self._channel.unary_unary(f"/{service}/{name}")

        def made(request: bytes) -> bytes:
            return call(request, timeout=10)

        return made

    def close(self) -> None:
        self._channel.close()


class Echo:
    """One bare server as a process, and a connection to it."""

    def __init__(self, path: Path, how: str) -> None:
        command = [AGENT_PYTHON, "-m", "bench.agent.echo", str(path), how]
        self._process = subprocess.Popen(command, cwd=ROOT)  # noqa: S603 (ourselves)
        pause, end = threading.Event(), time.monotonic() + 10
        while not path.exists():
            if time.monotonic() > end or self._process.poll() is not None:
                raise BenchError("the echo server did not start")
            pause.wait(0.02)
        self.server = Server(path)
        self._set, self._ask = (self.server.method(name, "bench.Echo") for name in ("Set", "Ask"))
        self.asks_kubelet = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()
        self._process.terminate()
        self._process.wait(10)

    def answers(self, method: str, answer: bytes) -> Call:
        """The call of `method`, which answers `answer` from now on."""
        self._set(method.encode() + b"\n" + answer)
        return self.server.method(method)

    @contextmanager
    def asking(self, pod_resources: Path, pod: str) -> Iterator[None]:
        """Meanwhile the server asks kubelet for this pod before each answer to GetPreferredAllocation."""
        self._ask(f"{pod_resources}\n{pod}".encode())
        self.asks_kubelet = True
        try:
            yield
        finally:
            self.asks_kubelet = False
            self._ask(b"")


def in_turns(
    calls: dict[str, Call],
    request_of: Callable[[int], bytes],
    count: int,
    *,
    pause_s: float = 0.0,
) -> dict[str, list[float]]:
    """Milliseconds of `count` calls of each, one at a time, in every order equally often.

    Args:
        calls: what to call, by name.
        request_of: makes the request of each round, by its number; not timed.
        count: rounds.
        pause_s: rest before each call.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    orders = itertools.cycle(itertools.permutations(calls.items()))
    wait = threading.Event().wait
    for number in range(-_WARM_UP, count):
        request = request_of(number)
        for name, call in next(orders):
            if pause_s:
                wait(pause_s)
            began = time.perf_counter_ns()
            call(request)
            took = time.perf_counter_ns() - began
            if number >= 0:
                times[name].append(took / 1e6)
    return times
