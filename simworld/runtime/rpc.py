"""gRPC over unix sockets on the simulated machine: the product's stubs and servicers, without a wire.

Messages are encoded and decoded as on a wire. A connection belongs to the listener whose socket file is at the path
when the call begins, and breaks when either process ends. Each answer takes a time that is drawn.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import grpc

from simworld.runtime.kernel import Process, kernel
from simworld.runtime.threads import Event

FASTEST_S = 0.000_05
USUAL_S = 0.000_5
SLOW_S = 0.05
SLOW_SHARE = 0.02
"""How often a message takes up to `SLOW_S` instead of `USUAL_S`."""
BACKLOG = 4096

Inode = tuple[int, int]

_listeners: dict[Inode, "Server"] = {}


class SlowAnswers(NamedTuple):
    """How late answers come after they were worked out.

    Attributes:
        most_s: the longest time, in seconds, beside the usual one.
        share: of the answers that are late.
    """

    most_s: float
    share: float = 1.0

    def wait(self) -> None:
        """Wait for one answer."""
        chance = kernel().chance
        if self.share == 1.0 or chance.random() < self.share:
            kernel().sleep(chance.random() * self.most_s)


slow_answers: dict[str, SlowAnswers] = {}
"""By method."""


class Abort(Exception):
    """A servicer has ended its call."""


class CallError(grpc.RpcError, grpc.Call):
    """As gRPC's own error, which is a call too."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False


def _delay() -> None:
    machine = kernel()
    chance = machine.chance
    most_s = SLOW_S if chance.random() < SLOW_SHARE else USUAL_S
    machine.sleep(FASTEST_S + chance.random() * most_s)


def _identity(path: Path) -> Inode | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Exchange:
    """One call between a client and a server: messages, an end, and who still listens."""

    def __init__(self, timeout_s: float | None) -> None:
        self.messages: deque[bytes] = deque()
        self.error: CallError | None = None
        self.ended = False
        self.until = None if timeout_s is None else kernel().now + timeout_s
        self._changed = Event()
        self._callbacks: list[Callable[[], None]] = []

    def put(self, message: bytes) -> None:
        if not self.ended:
            self.messages.append(message)
            self._changed.set()

    def end(self, error: CallError | None = None) -> None:
        """End the call for both sides."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        self._changed.set()
        callbacks = self._callbacks
        self._callbacks = []
        for callback in callbacks:
            callback()

    def next(self) -> bytes | None:
        """Wait for a message; None at the end. Raises CallError."""
        while not self.messages:
            if self.ended:
                if self.error is not None:
                    raise self.error
                return None
            self._changed.clear()
            left_s = None if self.until is None else self.until - kernel().now
            if left_s is not None and left_s <= 0:
                self.end(CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
                continue
            self._changed.wait(left_s)
        return self.messages.popleft()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self.ended:
            return False
        self._callbacks.append(callback)
        return True


class Context:
    """What a servicer is given of its call."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.add_callback = exchange.add_callback

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self._exchange.end(CallError(code, details))
        raise Abort(details)

    def is_active(self) -> bool:
        return not self._exchange.ended

    def time_remaining(self) -> float | None:
        until = self._exchange.until
        return None if until is None else max(0.0, until - kernel().now)

    def cancel(self) -> None:
        self._exchange.end(CallError(grpc.StatusCode.CANCELLED, "Cancelled"))


class Server:
    """As `grpc.server`: a pool of workers, each busy with one call until it ends."""

    def __init__(self, pool: Any, **_: object) -> None:
        self._workers = pool._max_workers
        self._busy = 0
        self._queue: deque[tuple[str, bytes, Exchange]] = deque()
        self._methods: dict[str, Any] = {}
        self._open: list[Exchange] = []
        self._sockets: list[tuple[Path, socket.socket]] = []
        self._serves = False
        self._is_finishing = False
        self._answered = Event()
        self.process: Process = kernel().process

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        for name, handler in handlers.items():
            self._methods[f"/{service}/{name}"] = handler

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        for generic in handlers:
            self._methods.update(generic._method_handlers)

    def add_insecure_port(self, address: str) -> int:
        path = Path(address.removeprefix("unix:"))
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(os.fspath(path))
        except OSError as error:
            listener.close()
            raise RuntimeError(f"Failed to bind to address {address}") from error
        listener.listen(BACKLOG)
        self._sockets.append((path, listener))
        identity = _identity(path)
        assert identity is not None
        _listeners[identity] = self
        return 1

    def start(self) -> None:
        self._serves = True
        self.process.at_end.append(self._close)

    def stop(self, grace: float | None) -> Event:
        """Take no more calls, and give those in progress so many seconds; the event is set when they have ended."""
        self._stop_listening()
        for path, _ in self._sockets:
            path.unlink(missing_ok=True)
        stopped = Event()
        if grace and self._has_open_calls:
            self._is_finishing = True
            kernel().spawn(lambda: self._finish(grace, stopped), "rpc stop", self.process)
        else:
            self._close()
            stopped.set()
        return stopped

    def _finish(self, grace_s: float, stopped: Event) -> None:
        until = kernel().now + grace_s
        while self._has_open_calls and kernel().now < until:
            self._answered.clear()
            self._answered.wait(until - kernel().now)
        self._is_finishing = False
        self._close()
        stopped.set()

    @property
    def _has_open_calls(self) -> bool:
        return any(not exchange.ended for exchange in self._open)

    def _stop_listening(self) -> None:
        self._serves = False
        for _, listener in self._sockets:
            listener.close()

    def _close(self) -> None:
        self._stop_listening()
        for exchange in self._open:
            exchange.end(CallError(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
        self._open = []

    @property
    def serves(self) -> bool:
        return self._serves and self.process.alive

    def receive(self, method: str, request: bytes, exchange: Exchange) -> None:
        """Take a call."""
        if method not in self._methods:
            exchange.end(CallError(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            return
        self._open = [other for other in self._open if not other.ended]
        self._open.append(exchange)
        self._queue.append((method, request, exchange))
        self._begin_calls()

    def _begin_calls(self) -> None:
        # A call that has come before `stop` is begun in its grace, too.
        while self._queue and self._busy < self._workers and (self.serves or self._is_finishing):
            self._busy += 1
            call = self._queue.popleft()
            kernel().spawn(lambda call=call: self._answer(*call), f"rpc {call[0]}", self.process)  # type: ignore[misc]

    def _answer(self, method: str, request: bytes, exchange: Exchange) -> None:
        handler = self._methods[method]
        try:
            if exchange.ended:
                return
            message = handler.request_deserializer(request)
            self._run(handler, message, exchange, slow_answers.get(method))
            exchange.end()
        except Abort:
            return
        except Exception as error:  # noqa: BLE001 (gRPC answers with it)
            exchange.end(CallError(grpc.StatusCode.UNKNOWN, f"Exception calling application: {error}"))
        finally:
            self._busy -= 1
            self._answered.set()
            self._begin_calls()

    @staticmethod
    def _run(handler: Any, message: Any, exchange: Exchange, slow: SlowAnswers | None) -> None:
        context = Context(exchange)
        if not handler.response_streaming:
            answer = handler.unary_unary(message, context)
            _delay()
            if slow is not None:
                slow.wait()
            exchange.put(handler.response_serializer(answer))
            return
        for answer in handler.unary_stream(message, context):
            if exchange.ended:
                return
            exchange.put(handler.response_serializer(answer))


class Channel:
    """As `grpc.insecure_channel` to a unix socket."""

    def __init__(self, address: str, **_: object) -> None:
        self._path = Path(address.removeprefix("unix:"))
        self._server: Server | None = None
        self._calls: list[Exchange] = []
        self._closed = False
        kernel().process.at_end.append(self._break)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._break()

    def _break(self) -> None:
        for exchange in self._calls:
            exchange.end(CallError(grpc.StatusCode.CANCELLED, "Channel closed!"))
        self._calls = []

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: object,
    ) -> "Unary":
        return Unary(self, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: object,
    ) -> Callable[..., "Stream"]:
        def call(request: Any, timeout: float | None = None, **_: object) -> Stream:
            return Stream(self.begin(method, request_serializer(request), timeout), response_deserializer)

        return call

    def begin(self, method: str, request: bytes, timeout_s: float | None) -> Exchange:
        """Send a call. Raises ValueError on a closed channel."""
        if self._closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        exchange = Exchange(timeout_s)
        self._calls = [other for other in self._calls if not other.ended]
        self._calls.append(exchange)
        server = self._connected()
        if server is None:
            text = "failed to connect to all addresses"
            exchange.end(CallError(grpc.StatusCode.UNAVAILABLE, text))
            return exchange

        def deliver() -> None:
            _delay()
            if server.serves:
                server.receive(method, request, exchange)
            else:
                exchange.end(CallError(grpc.StatusCode.UNAVAILABLE, "Socket closed"))

        kernel().spawn(deliver, f"to {method}", kernel().outside)
        return exchange

    def _connected(self) -> Server | None:
        """The server of this connection; a new connection if the former one broke."""
        if self._server is not None and self._server.serves:
            return self._server
        identity = _identity(self._path)
        server = None if identity is None else _listeners.get(identity)
        self._server = server if server is not None and server.serves else None
        return self._server


class Unary:
    """One method of a stub with one answer."""

    def __init__(
        self, channel: Channel, method: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> None:
        self._channel = channel
        self._method = method
        self._encode = encode
        self._decode = decode

    def __call__(self, request: Any, timeout: float | None = None, **_: object) -> Any:
        return self._decode(_answer(self._channel.begin(self._method, self._encode(request), timeout)))

    def future(self, request: Any, timeout: float | None = None, **_: object) -> "Future":
        return Future(self._channel.begin(self._method, self._encode(request), timeout))


def _answer(exchange: Exchange) -> bytes:
    answer = exchange.next()
    if answer is None:
        raise CallError(grpc.StatusCode.INTERNAL, "the call ended without an answer")
    return answer


class Future:
    """A call whose answer is waited for elsewhere."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def add_done_callback(self, callback: Callable[[Self], None]) -> None:
        if not self._exchange.add_callback(lambda: callback(self)):
            callback(self)

    def done(self) -> bool:
        return self._exchange.ended

    def cancel(self) -> bool:
        self._exchange.end(CallError(grpc.StatusCode.CANCELLED, "Cancelled"))
        return True

    def exception(self) -> CallError | None:
        return self._exchange.error


class Stream:
    """A call with many answers."""

    def __init__(self, exchange: Exchange, decode: Callable[[bytes], Any]) -> None:
        self._exchange = exchange
        self._decode = decode

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        message = self._exchange.next()
        if message is None:
            raise StopIteration
        return self._decode(message)

    def cancel(self) -> bool:
        self._exchange.end(CallError(grpc.StatusCode.CANCELLED, "Cancelled"))
        return True
