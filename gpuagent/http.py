"""One HTTP port: /metrics, /healthz, /readyz, /status and /topology."""

import http.server
import json
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

log = logging.getLogger(__name__)

LOOK_S = 3600.0
"""A request wakes the server, and so does `stop`: nothing is left to look for in between."""

Page = Callable[[], tuple[bool, str, bytes]]
"""Whether all is well (200, else 503), content type, body."""


def text_page(check: Callable[[], str | None]) -> Page:
    """A probe: `check` says what is wrong, or None."""

    def page() -> tuple[bool, str, bytes]:
        wrong = check()
        return wrong is None, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode()

    return page


def json_page(read: Callable[[], Any]) -> Page:
    """A JSON document."""
    return lambda: (True, "application/json", json.dumps(read(), indent=2).encode() + b"\n")


class HttpServer:
    """Serves `pages` by path until stopped. `port` is the real one where 0 was asked for."""

    def __init__(self, address: tuple[str, int], pages: dict[str, Page]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    known = f"not found; there are {', '.join(pages)}\n".encode()
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", known)
                    return
                well, content_type, body = page()
                self._answer(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, content_type, body)

            def _answer(self, code: HTTPStatus, content_type: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (http.server's name)
                log.debug("http", extra={"request": format % args})

        self._server = _server_class(address[0])(address, Handler)
        self.port: int = self._server.server_address[1]
        serve = partial(self._server.serve_forever, poll_interval=LOOK_S)
        self._thread = threading.Thread(target=serve, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.socket.shutdown(socket.SHUT_RDWR)  # ends the wait for the next request
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server_class(host: str) -> type[http.server.ThreadingHTTPServer]:
    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        request_queue_size = 128  # with 5, the default, the sixth who comes at once tries again after a second

    return Server
