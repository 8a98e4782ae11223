"""The server's end of a kept connection of an event loop: requests one after another, answered by the stand-in."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from simworld.runtime.event_loop import SimulatedTransport
from simworld.runtime.http import Connection, SimulatedApi
from simworld.runtime.kernel import kernel
from simworld.runtime.threads import Event
from standin.api.handler import Handler, Target
from standin.api.objects import Json

Hook = Callable[[str, Target, Json], None]
"""Called with ``asked`` and ``done`` around each write of a scheduler: what it is about, and its body."""


class WatchWay(Protocol):
    """What delays a client's requests and events.

    Attributes:
        watches_held_until: until which virtual second no event comes.
    """

    watches_held_until: float

    def request_s(self) -> float:
        """How long a request takes to be read."""


class ApiEnd:
    """Bytes of one client, and the way back to it.

    Attributes:
        ended: the other side does not read any more.
        is_watch: what is sent are events of a watch.
    """

    def __init__(self, transport: SimulatedTransport, way: "WatchWay") -> None:
        self._transport = transport
        self._way = way
        self.is_watch = False
        self._received = b""
        self._changed = Event()
        self._unsent = b""
        self._is_eof = False
        self.ended = False

    # -- the client ------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def client_closed(self) -> None:
        self._is_eof = True
        self.ended = True
        self._changed.set()

    # -- the server ------------------------------------------------------------------------------------------------

    def end(self, *, broken: bool = False) -> None:
        """Close the connection."""
        if self.ended:
            return
        self.ended = True
        self._is_eof = True
        self._changed.set()
        self._transport.peer_closed(ConnectionResetError() if broken else None)

    def wait_for_bytes(self) -> None:
        """Wait for the next request, or for the end."""
        while not self._received and not self._is_eof:
            self._changed.clear()
            self._changed.wait()

    def readline(self, limit: int = -1) -> bytes:
        while b"\n" not in self._received and not self._is_eof:
            self._changed.clear()
            self._changed.wait()
        line, mark, self._received = self._received.partition(b"\n")
        return line + mark

    def read(self, size: int) -> bytes:
        while len(self._received) < size and not self._is_eof:
            self._changed.clear()
            self._changed.wait()
        data = self._received[:size]
        self._received = self._received[size:]
        return data

    def write(self, data: bytes) -> int:
        if self.ended:
            raise BrokenPipeError
        self._unsent += bytes(data)
        return len(data)

    def flush(self) -> None:
        if self._unsent and not self.ended:
            self._transport.arrive(self._unsent, self._way.watches_held_until if self.is_watch else 0.0)
        self._unsent = b""


class SchedulerHandler(Handler):
    """The stand-in's handler on a kept connection."""

    def __init__(self, api: SimulatedApi, end: ApiEnd, way: WatchWay, hook: Hook) -> None:
        self.server = api
        self.client_address = ("127.0.0.1", 0)
        self.connection: Any = Connection(end)  # type: ignore[arg-type]
        self.rfile: Any = end
        self.wfile: Any = end
        self._way = way
        self._hook = hook

    def handle_one_request(self) -> None:
        self.rfile.wait_for_bytes()
        kernel().sleep(self._way.request_s())
        super().handle_one_request()

    def _watch(self, target: Target, query: dict[str, str]) -> None:
        self.wfile.is_watch = True
        super()._watch(target, query)

    def _done(self, verb: str, target: Target, query: dict[str, str], body: Json) -> tuple[int, Json]:
        is_write = verb in {"create", "patch", "delete"}
        if not is_write:
            return super()._done(verb, target, query, body)
        self._hook("asked", target, body)
        answer = super()._done(verb, target, query, body)
        self._hook("done", target, body)
        return answer


def open_api(api: SimulatedApi, transport: SimulatedTransport, way: WatchWay, hook: Hook) -> ApiEnd:
    """Accept a connection. Raises ConnectionRefusedError."""
    if api.ended:
        raise ConnectionRefusedError
    end = ApiEnd(transport, way)
    api.pipes = [other for other in api.pipes if not other.ended]
    api.pipes.append(end)  # type: ignore[arg-type]
    kernel().spawn(partial(_serve, api, end, way, hook), "api connection", api.process)
    return end


def _serve(api: SimulatedApi, end: ApiEnd, way: WatchWay, hook: Hook) -> None:
    try:
        SchedulerHandler(api, end, way, hook).handle()
    except OSError:
        end.end(broken=True)
    finally:
        end.end()
