"""HTTP between the product's API clients and the stand-in API server, on the simulated machine.

The server's own handler answers, and the product's own client reads: only the bytes' way between them is replaced.
"""

from collections import deque
from collections.abc import Generator, Iterator
from email.parser import BytesParser
from io import BytesIO
from typing import Any
from urllib.parse import quote, urlencode

from gpuagent.kube.api.api_errors import ApiUnreachable
from gpuagent.kube.api.transport import Request
from simworld.runtime.kernel import Process, kernel
from simworld.runtime.threads import Event
from standin.api.handler import Handler
from standin.api.server import ApiServer

USUAL_S = 0.003
SLOW_S = 2.0
SLOW_SHARE = 0.01
"""How often a request takes up to `SLOW_S` instead of `USUAL_S`."""


class Pipe:
    """Bytes from the server to one client. It breaks when the client's process ends, which keeps it no longer.

    Args:
        client: the process that reads.
    """

    def __init__(self, client: Process) -> None:
        self._client = client
        self._pieces: deque[bytes] = deque()
        self._changed = Event()
        self.ended = False
        self.broken = False
        client.at_end.append(self._lose_client)

    def write(self, data: bytes) -> int:
        if self.broken or self.ended:
            raise BrokenPipeError
        if data:
            self._pieces.append(bytes(data))
            self._changed.set()
        return len(data)

    def flush(self) -> None:
        """Everything is there at once."""

    def _lose_client(self) -> None:
        self._finish(broken=True)

    def end(self, *, broken: bool = False) -> None:
        if self._lose_client in self._client.at_end:
            self._client.at_end.remove(self._lose_client)
        self._finish(broken=broken)

    def _finish(self, *, broken: bool) -> None:
        self.ended = True
        self.broken = self.broken or broken
        self._changed.set()

    def read(self, silence_s: float) -> bytes:
        """Wait for bytes; empty at the end. Raises TimeoutError after a silence, ConnectionError for a break."""
        until = kernel().now + silence_s
        while not self._pieces:
            if self.broken:
                raise ConnectionError
            if self.ended:
                return b""
            left_s = until - kernel().now
            if left_s <= 0:
                raise TimeoutError
            self._changed.clear()
            self._changed.wait(left_s)
        return self._pieces.popleft()


class Connection:
    """The server's end, as its list of open watches has it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def shutdown(self, _: int) -> None:
        self._pipe.end(broken=True)


class SimulatedApi(ApiServer):
    """The stand-in API server in a process of the simulated machine, which may be down, silent, or restarted.

    Attributes:
        pipes: the open connections of all clients.
        slow_s: how much longer each new request of an agent takes, at most.
    """

    slow_s = 0.0

    def start(self) -> None:
        """Serve from now on."""
        self.process = Process("api server")
        self.pipes: list[Pipe] = []
        self.server = self  # type: ignore[assignment]
        self.ended = False
        self.owner = self
        self._port = 1

    def stop(self) -> None:
        """End as a killed process; what is stored stays."""
        self.server = None
        self.ended = True
        kernel().end(self.process)
        self.break_connections()

    def break_connections(self) -> None:
        for pipe in self.pipes:
            pipe.end(broken=True)
        self.pipes = []

    @property
    def is_away(self) -> bool:
        """Whether no client gets an answer."""
        return self.ended or not self.answering.is_set()

    def drop_watches(self) -> None:
        for connection in list(self.watches):
            connection.shutdown(0)


class _Handler(Handler):
    """The stand-in's handler, on a request that has come whole."""

    def __init__(self, api: SimulatedApi, request: bytes, pipe: Pipe) -> None:
        self.server = api
        self.client_address = ("127.0.0.1", 0)
        self.connection = Connection(pipe)
        self.rfile = BytesIO(request)
        self.wfile = pipe  # type: ignore[assignment]
        self.close_connection = True


class Response:
    """What the product's client reads of an answer."""

    def __init__(self, pipe: Pipe, silence_s: float) -> None:
        self._pipe = pipe
        self.silence_s = silence_s
        self._rest = b""
        head = self._until(b"\r\n\r\n")
        first, _, fields = head.partition(b"\r\n")
        _, code, reason = first.decode().split(" ", 2)
        self.status = int(code)
        self.reason = reason
        self.headers = BytesParser().parsebytes(fields)
        self.connection = None

    def _until(self, mark: bytes) -> bytes:
        data = self._rest
        while mark not in data:
            piece = self._pipe.read(self.silence_s)
            if not piece:
                raise ConnectionError
            data += piece
        head, _, self._rest = data.partition(mark)
        return head

    def _exactly(self, size: int) -> bytes:
        data = self._rest
        while len(data) < size:
            piece = self._pipe.read(self.silence_s)
            if not piece:
                raise ConnectionError
            data += piece
        self._rest = data[size:]
        return data[:size]

    def stream(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self._exactly(int(self.headers.get("Content-Length") or 0))
            return
        while True:
            size = int(self._until(b"\r\n"), 16)
            data = self._exactly(size + 2)[:-2]
            if not size:
                return
            yield data

    def shutdown(self) -> None:
        self._pipe.end(broken=True)

    close = shutdown

    def release_conn(self) -> None:
        """Nothing is kept."""


class Transport:
    """Takes the place of `gpuagent.kube.api.transport.Transport`."""

    def __init__(self, api: SimulatedApi) -> None:
        self._api = api

    def send(self, request: Request) -> Response:
        connect_s, silence_s = request.timeout_s
        machine = kernel()
        chance = machine.chance
        most_s = SLOW_S if chance.random() < SLOW_SHARE else USUAL_S
        api = self._api
        machine.sleep(0.000_2 + chance.random() * (most_s + api.slow_s))
        if api.ended:
            raise self.unreachable(ConnectionRefusedError(), connect_s)
        pipe = Pipe(machine.process)
        api.pipes = [other for other in api.pipes if not other.ended]
        api.pipes.append(pipe)
        data = _bytes_of(request)

        def answer() -> None:
            try:
                _Handler(api, data, pipe).handle_one_request()
            except OSError:
                pipe.end(broken=True)
            finally:
                pipe.end()

        machine.spawn(answer, f"{request.method} {request.path}", api.process)
        try:
            return Response(pipe, silence_s)
        except OSError as error:
            pipe.end(broken=True)
            raise self.unreachable(error, silence_s) from error

    def stream(self, request: Request, silence_s: float) -> Response:
        response = self.send(request)
        response.silence_s = silence_s
        return response

    def body(self, response: Response, silence_s: float) -> bytes:
        return b"".join(self.pieces(response, silence_s))

    def pieces(self, response: Response, silence_s: float) -> Generator[bytes, None, None]:
        try:
            yield from response.stream()
        except OSError as error:
            raise self.unreachable(error, silence_s) from error

    def unreachable(self, error: Exception, silence_s: float) -> ApiUnreachable:
        match error:
            case TimeoutError():
                text = f"it is silent: nothing came within {silence_s:g} s"
            case ConnectionRefusedError():
                text = "connection refused"
            case _:
                text = "the connection broke off"
        return ApiUnreachable(f"the API server {self._api.url} cannot be reached: {text}")

    def close(self) -> None:
        """Nothing is kept."""


def _bytes_of(request: Request) -> bytes:
    import json  # noqa: PLC0415

    query: dict[str, Any] = {}
    for name, value in request.query.items():
        query[name] = str(value).lower() if isinstance(value, bool) else str(value)
    target = request.path
    if query:
        target = f"{target}?{urlencode(query, quote_via=quote)}"
    body = b"" if request.body is None else json.dumps(request.body).encode()
    lines = [f"{request.method} {target} HTTP/1.1", "Host: api", f"Content-Length: {len(body)}"]
    lines.append(f"Content-Type: {request.content_type}")
    return "\r\n".join([*lines, "", ""]).encode() + body
