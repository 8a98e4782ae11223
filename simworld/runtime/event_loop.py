"""asyncio's event loop on the simulated machine: it waits in the kernel, and its connections are messages.

One loop belongs to one process. Its callbacks, tasks and timers are asyncio's own; only the wait, sockets and
threads are replaced. Several loops share one real thread, so the kernel puts the running loop aside with each
switch.
"""

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from simworld.runtime.kernel import Process, Task, kernel

GIVE_WAY = 0.2
"""How often other tasks have a turn between two rounds of a loop that has work."""


class ServerEnd(Protocol):
    """The other end of a connection that a loop has opened."""

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""

    def client_closed(self) -> None:
        """Learn that the client has gone."""


class Way(Protocol):
    """The way of bytes to a loop.

    Attributes:
        held_until: virtual seconds until which nothing comes through, as after a cut.
    """

    held_until: float

    def delay_s(self) -> float:
        """How long the next bytes take."""


class Network(Way, Protocol):
    """What a loop's connections lead to."""

    def open(self, transport: "SimulatedTransport", host: str, port: int) -> ServerEnd:
        """Make the other end of a new connection. Raises ConnectionRefusedError."""


class Loopback:
    """The way between two processes of one pod."""

    held_until = 0.0

    def delay_s(self) -> float:
        return 0.0


class _Selector:
    """Waits for what other tasks want of the loop."""

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest
        self._task: Task | None = None
        self._woken = False

    def wake(self) -> None:
        self._woken = True
        if self._task is not None:
            kernel().wake(self._task)

    def select(self, timeout: float | None) -> tuple[()]:
        self._rest()
        machine = kernel()
        if self._woken or timeout == 0:
            machine.give_way(GIVE_WAY)
        else:
            self._task = machine.current
            machine.wait(timeout)
            self._task = None
            self._rest()
        self._woken = False
        return ()


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one process.

    Args:
        network: of the process.
        rest: called in each round; it returns when the process goes on, for example after a stall.
    """

    def __init__(self, network: Network, rest: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.network = network
        self.transports: list[SimulatedTransport] = []
        self._selector = _Selector(rest)
        self._accept: Callable[[], asyncio.BaseProtocol] | None = None

    def __del__(self) -> None:
        """A killed process closes nothing, so it is no mistake."""

    # -- what asyncio's loop leaves to its kinds -------------------------------------------------------------------

    def _write_to_self(self) -> None:
        self._selector.wake()

    def _process_events(self, event_list: Any) -> None:
        """Everything comes as a callback."""

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        """Python has one such hook for all loops of a thread. The product closes its generators itself."""

    _asyncgen_finalizer_hook = _asyncgen_firstiter_hook

    # -- threads ---------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run it in a task of the machine, as in a thread."""
        future = self.create_future()

        def finish(set_result: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                set_result(value)

        def work() -> None:
            try:
                value = func(*args)
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                self.call_soon_threadsafe(finish, future.set_exception, error)
            else:
                self.call_soon_threadsafe(finish, future.set_result, value)

        kernel().spawn(work, "executor")
        return future

    # -- connections -----------------------------------------------------------------------------------------------

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect: the socket stays as it is, and the connection is made with its transport."""
        await self._reach()

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str = "",
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        **_: object,
    ) -> tuple["SimulatedTransport", Any]:
        """Open a connection. Raises ConnectionRefusedError."""
        if sock is None:
            await self._reach()
        protocol = protocol_factory()
        transport = SimulatedTransport(self, self.network, protocol, sock or _NoSocket())
        try:
            transport.connect(self.network.open(transport, host, port))
        except OSError:
            transport.release()
            raise
        protocol.connection_made(transport)
        return transport, protocol

    async def _reach(self) -> None:
        """Let the way to the server take its time."""
        delay_s = self.network.delay_s()
        await asyncio.sleep(max(delay_s, self.network.held_until - self.time()))

    async def create_server(self, protocol_factory: Callable[[], Any], **_: object) -> "_Server":  # type: ignore[override]
        """Accept what `call` opens."""
        self._accept = protocol_factory
        return _Server(self)

    def stop_accepting(self) -> None:
        """Refuse new connections."""
        self._accept = None

    def accept(self, peer: ServerEnd, way: "Way") -> "SimulatedTransport":
        """Open a connection to this loop, from any task. Raises ConnectionRefusedError."""
        factory = self._accept
        if factory is None:
            raise ConnectionRefusedError
        transport = SimulatedTransport(self, way, None, _NoSocket())
        transport.connect(peer)

        def begin() -> None:
            protocol = factory()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)

        self.call_soon_threadsafe(begin)
        return transport

    def break_connections(self) -> None:
        """Have the other ends know that this process has ended."""
        for transport in list(self.transports):
            transport.peer.client_closed()
            transport.release()


class SimulatedTransport(asyncio.Transport):
    """One connection of a loop."""

    def __init__(self, loop: SimulatedLoop, way: Way, protocol: Any, sock: Any) -> None:
        super().__init__({"socket": sock, "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._loop = loop
        self._way = way
        self._protocol = protocol
        self._socket = sock
        self._arrived: deque[bytes] = deque()
        self._last_due = 0.0
        self._closing = False
        self._reading = True

    def connect(self, peer: ServerEnd) -> None:
        """Take the other end."""
        self.peer = peer
        self._loop.transports.append(self)

    # -- the other end, in any task --------------------------------------------------------------------------------

    def arrive(self, data: bytes, not_before: float = 0.0) -> None:
        """Have bytes come, after those before, and not before this virtual second."""
        self._last_due = max(self._last_due, not_before)
        self._later(self._receive, data)

    def peer_closed(self, error: Exception | None = None) -> None:
        """Have the connection end, after the bytes before."""
        self._later(self._end, error)

    def _later(self, act: Callable[[Any], None], value: Any) -> None:
        due = max(self._loop.time() + self._way.delay_s(), self._way.held_until, self._last_due + 1e-6)
        self._last_due = due
        self._loop.call_soon_threadsafe(self._loop.call_at, due, act, value)

    def _receive(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reading:
            self._protocol.data_received(data)
        else:
            self._arrived.append(data)

    def _end(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        if error is None:
            self._protocol.eof_received()
        self._lost(error)

    # -- asyncio.Transport -----------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self.peer.receive(bytes(data))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.peer.client_closed()
        self._loop.call_soon(self._lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        while self._arrived and self._reading:
            self._protocol.data_received(self._arrived.popleft())

    def is_reading(self) -> bool:
        return self._reading

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is sent at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def _lost(self, error: Exception | None) -> None:
        self.release()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def release(self) -> None:
        """Keep nothing of the operating system."""
        if self in self._loop.transports:
            self._loop.transports.remove(self)
        self._socket.close()


class _NoSocket:
    """Has what the product sets on its connections, and what its listener is asked."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def setsockopt(self, *_: object) -> None:
        """Nothing is kept alive."""

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 9446

    def close(self) -> None:
        """There is nothing to close."""


Listener = _NoSocket


class _Server:
    """As asyncio's, as far as the product uses it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def close(self) -> None:
        self._loop.stop_accepting()


def run_loop(loop: SimulatedLoop, main: Callable[[], Any], process: Process) -> None:
    """Run a coroutine to its end in the task of this process; with the process, its connections break."""
    process.at_end.append(loop.break_connections)
    loop.run_until_complete(main())


class Delays:
    """Usual and long delays, of a stream of chance."""

    def __init__(self, chance: random.Random, usual_s: float, long_s: float, long_share: float) -> None:
        self._chance = chance
        self._usual_s = usual_s
        self._long_s = long_s
        self._long_share = long_share

    def draw(self) -> float:
        """Seconds."""
        most_s = self._long_s if self._chance.random() < self._long_share else self._usual_s
        return self._chance.random() * most_s
