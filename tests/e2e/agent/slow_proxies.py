"""An API server whose watches or lists are late, and a pod-resources socket that is slow or silent: proxies to the real ones."""

import http.client
import json
import queue
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.e2e.cluster import Cluster

_PIECE = 65536
_OF_A_CONNECTION = {"host", "connection", "accept-encoding"}


@dataclass
class SlowApi:
    """A proxy to the API server, for the agent.

    Attributes:
        kubeconfig: of the agent, with the proxy in place of the server.
        watches_late_s: how late each event of a watch comes.
        lists_late_s: how late each list of the node's pods comes; pods that are read by name come at once.
        away: every new connection is closed without an answer.
    """

    kubeconfig: Path
    watches_late_s: float = 0.0
    lists_late_s: float = 0.0
    away: bool = False


@contextmanager
def slow_api(cluster: Cluster, workdir: Path) -> Iterator[SlowApi]:
    """A proxy that is as slow as it is told to be."""
    slow = SlowApi(workdir / "slow.kubeconfig")
    config = json.loads(cluster.kubeconfig("gpuagent").read_text())
    real = config["clusters"][0]["cluster"]
    server = urlsplit(real["server"])
    tls = ssl.create_default_context(cadata=b64decode(real["certificate-authority-data"]).decode())

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            assert server.hostname
            if slow.away:
                self.close_connection = True
                return
            late = "watch" in parse_qs(urlsplit(self.path).query)
            if self.command == "GET" and urlsplit(self.path).path == "/api/v1/pods" and not late:
                time.sleep(slow.lists_late_s)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: text for name, text in self.headers.items() if name.lower() not in _OF_A_CONNECTION}
            with closing(http.client.HTTPSConnection(server.hostname, server.port, context=tls)) as connection:
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):
                    for line in _late(answer, slow.watches_late_s) if late else [answer.read()]:
                        self.wfile.write(line)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _forward  # noqa: N815 (names of the base class)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{proxy.server_port}"}
        slow.kubeconfig.write_text(json.dumps(config))
        try:
            yield slow
        finally:
            proxy.shutdown()


def _late(answer: http.client.HTTPResponse, late_s: float) -> Iterator[bytes]:
    """The lines of a watch, each so many seconds after it came."""
    lines: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def read() -> None:
        # What the library raises where the agent has gone, and the connection was closed meanwhile.
        with suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while line := answer.readline():
                lines.put((time.monotonic() + late_s, line))
        lines.put((time.monotonic(), b""))

    threading.Thread(target=read, daemon=True).start()
    while True:
        due, line = lines.get()
        if not line:
            return
        time.sleep(max(due - time.monotonic(), 0.0))
        yield line


class SlowSocket:
    """A proxy in place of a Unix socket; new connections to the socket come through it.

    Attributes:
        late_s: how late each answer comes, in seconds; None: no answer at all.
    """

    def __init__(self, socket_path: Path) -> None:
        self.late_s: float | None = 0.0
        self._path, self._real = socket_path, socket_path.with_name("real.sock")
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._path.rename(self._real)
        listener = self._kept()
        listener.bind(str(self._path))
        listener.listen()
        self._start(self._accept, listener)
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink()
        self._real.rename(self._path)
        # The listener and its thread are the first. Connections that it has just accepted are added until it ends.
        self._shut_down(self._sockets[0])
        self._threads[0].join()
        for one in self._sockets:
            self._shut_down(one)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    @staticmethod
    def _shut_down(one: socket.socket) -> None:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

    def _kept(self, one: socket.socket | None = None) -> socket.socket:
        self._sockets.append(one or socket.socket(socket.AF_UNIX))
        return self._sockets[-1]

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, server = self._kept(listener.accept()[0]), self._kept()
                server.connect(str(self._real))
                self._start(self._relay, client, server, lambda: 0.0)
                self._start(self._relay, server, client, lambda: self.late_s)

    @staticmethod
    def _relay(source: socket.socket, sink: socket.socket, late_s: Callable[[], float | None]) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if (pause_s := late_s()) is not None:
                    time.sleep(pause_s)
                    sink.sendall(piece)
        for one in (source, sink):
            SlowSocket._shut_down(one)
