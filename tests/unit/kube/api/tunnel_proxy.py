"""A proxy that opens tunnels (CONNECT) and notes what it is asked."""

import re
import socket
import socketserver
import ssl
import threading
from base64 import b64decode, b64encode
from typing import Any

from standin.api.server import hang_up
from standin.certificates import ServerCertificate
from standin.waiting import PATIENCE_S


class Proxy(socketserver.ThreadingTCPServer):
    """Opens each tunnel to one server, whatever the client names. Attributes:

    tunnels: the server that each client named.
    heads: what came before the tunnels, as text.
    first_line: of its answer, empty for none; a tunnel is opened with status 200 only.
    login: user and password that it asks for; empty for none.
    """

    daemon_threads = True

    def __init__(self, target: tuple[str, int], certificate: ServerCertificate | None = None) -> None:
        self.target = target
        self.tls = certificate and ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if certificate and self.tls:
            certificate.load_into(self.tls)
        self.tunnels: list[str] = []
        self.heads: list[str] = []
        self.first_line = "HTTP/1.1 200 OK"
        self.login = ""
        super().__init__(("127.0.0.1", 0), Tunnel)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.server_address[1]}"

    @property
    def credentials(self) -> list[bytes]:
        """User and password that each client sent."""
        sent = [re.search(r"(?im)^proxy-authorization: Basic (\S+)", head) for head in self.heads]
        return [b64decode(match[1]) for match in sent if match]

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""


class Tunnel(socketserver.BaseRequestHandler):
    server: Proxy

    def setup(self) -> None:
        if self.server.tls:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)

    def handle(self) -> None:
        head = read_head(self.request)
        self.server.heads.append(head)
        method, name, _ = head.split(" ", 2)
        assert method == "CONNECT"
        self.server.tunnels.append(name)
        first_line = self.server.first_line
        wanted = f"Basic {b64encode(self.server.login.encode()).decode()}"
        if self.server.login and f"proxy-authorization: {wanted}".lower() not in head.lower():
            first_line = "HTTP/1.1 407 Proxy Authentication Required"
        self.request.sendall(f"{first_line}\r\n\r\n".encode() if first_line else b"")
        if " 200 " not in first_line:
            return
        with socket.create_connection(self.server.target) as api:
            back = threading.Thread(target=copied, args=(api, self.request), daemon=True)
            back.start()
            copied(self.request, api)
            back.join(PATIENCE_S)

    def finish(self) -> None:
        self.request.close()


def read_head(client: socket.socket) -> str:
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(1)  # what follows is for the tunnel
        assert piece
        head += piece
    return head.decode()


def copied(source: socket.socket, sink: socket.socket) -> None:
    """Copy until one side ends, then end both."""
    try:
        while piece := source.recv(65_536):
            sink.sendall(piece)
    except OSError:
        pass
    hang_up(source)
    hang_up(sink)
