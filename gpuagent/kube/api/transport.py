"""HTTP to the API server: bytes in, bytes out, errors of this package. The only module that knows urllib3.

Import it only from a thread that may wait: the import takes a tenth of a second.
"""

import json
import socket
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

from gpuagent import __version__
from gpuagent.kube.api.access import Access, access
from gpuagent.kube.api.api_errors import ApiConfigError, ApiUnreachable, connection_words
from gpuagent.kube.api.certificates import Certificates, Version
from gpuagent.kube.api.overrides import AS_WRITTEN, Overrides
from gpuagent.kube.api.proxy import ADVICE, login_header, without_login
from gpuagent.system.printable import printable

# The kernel detects a dead host after 10 + 3 * 5 s, even while the watch is quiet. macOS lacks the first of the names.
_KEEPALIVE = [("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)]
_SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _KEEPALIVE if hasattr(socket, name)),
]
PIECE = 65_536
"""Bytes of a body that are read at a time. Go writes a large answer as one HTTP chunk of any length."""
POOL = 16
"""Connections that are kept; more threads than this at a time would open new ones repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. ``timeout_s`` is (connect, longest silence while reading); ``accept`` is a content type.

    ``compressed`` lets the server compress a large answer.
    """

    method: str
    path: str
    query: Mapping[str, str | int | bool]
    timeout_s: tuple[float, float]
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    compressed: bool = False


class Transport:
    """A configured way to one API server; safe to use from several threads. Raises ApiConfigError."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._authorized = access.authorization()
        self._pools = _pools(access)

    def send(self, request: Request) -> urllib3.BaseHTTPResponse:
        """Send and return the response, its body unread, whatever its status. Raises ApiUnreachable, ApiConfigError."""
        connect_s, silence_s = request.timeout_s
        try:
            return self._pools.urlopen(
                request.method,
                self._access.server + _target(request),
                body=None if request.body is None else json.dumps(request.body),
                headers=self._headers(request),
                timeout=urllib3.Timeout(connect=connect_s, read=silence_s),
                # The agent's loops retry; urllib3's three silent tries would triple every timeout.
                retries=False,
                # A redirect may lead to another server, which must not get the token.
                redirect=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as err:
            raise self.unreachable(err, silence_s) from err

    def _headers(self, request: Request) -> urllib3.HTTPHeaderDict:
        headers = urllib3.HTTPHeaderDict({"Accept": request.accept, "User-Agent": f"gpuagent/{__version__}"})
        if request.compressed:
            headers["Accept-Encoding"] = "gzip"
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        authorization = self._authorization()
        if authorization:
            headers["Authorization"] = authorization
        for name, value in self._access.headers:
            headers.add(name, value)
        return headers

    def _authorization(self) -> str:
        """The credentials, or the former ones while they cannot be read. The API server says whether they are good."""
        try:
            self._authorized = self._access.authorization()
        except ApiConfigError:
            if not self._authorized:
                raise
        return self._authorized

    def stream(self, request: Request, silence_s: float) -> urllib3.BaseHTTPResponse:
        """Send as ``send`` does, then let the body be silent for up to ``silence_s`` at a time."""
        # The timeout of the answer's head is short, that of the events long: a watch may be quiet for minutes.
        response = self.send(request)
        sock = getattr(response.connection, "sock", None)
        if sock is not None:
            sock.settimeout(silence_s)
        return response

    def body(self, response: urllib3.BaseHTTPResponse, silence_s: float) -> bytes:
        """Return the whole body and give the connection back. Raises ApiUnreachable."""
        return b"".join(self.pieces(response, silence_s))

    def pieces(self, response: urllib3.BaseHTTPResponse, silence_s: float) -> Generator[bytes, None, None]:
        """Yield the body as it arrives, then give the connection back; closed where it is not read to its end.

        Raises ApiUnreachable.
        """
        ended = False
        try:
            yield from response.stream(PIECE)
            ended = True
        except urllib3.exceptions.HTTPError as err:
            raise self.unreachable(err, silence_s) from err
        finally:
            # Bytes that were not read would be taken for the next answer on this connection.
            if not ended:
                response.close()
            response.release_conn()

    def unreachable(self, err: Exception, silence_s: float) -> ApiUnreachable:
        """Return the error for people; equal causes give equal texts, so it has no addresses of objects."""
        match err:
            # A name that international rules forbid, such as one with a snowman, is not even looked up.
            case urllib3.exceptions.NameResolutionError() | urllib3.exceptions.LocationParseError():
                text = "its name cannot be resolved"
            case urllib3.exceptions.NewConnectionError():
                text = connection_words(err) or "no connection"
            case urllib3.exceptions.ConnectTimeoutError():
                text = "no connection in time"
            case urllib3.exceptions.ReadTimeoutError():
                text = f"it is silent: nothing came within {silence_s:g} s"
            case urllib3.exceptions.SSLError():
                text = connection_words(err) or "TLS failed"
            case urllib3.exceptions.ProxyError():
                text = connection_words(err) or _proxy_words(err.original_error)
            case urllib3.exceptions.ProtocolError():
                text = "the connection broke off"
            case _:
                text = connection_words(err) or type(err).__name__
        return ApiUnreachable(f"the API server {self._access.server} cannot be reached: {text}")

    def close(self) -> None:
        """Close idle connections; those in use end with their requests."""
        self._pools.clear()


def connect(kubeconfig: str | None, overrides: Overrides = AS_WRITTEN) -> Transport:
    """Return a transport for the access that `access` gives. Nothing is sent yet. Raises ApiConfigError."""
    way = access(kubeconfig, overrides)
    try:
        return Transport(way)
    except ApiConfigError:
        raise
    except Exception as err:  # a kubeconfig may have any value, and urllib3 fails on some
        source = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's environment"
        text = f"{source} is malformed: the API server's address or a certificate has a value that cannot be used"
        raise ApiConfigError(text) from err


def _target(request: Request) -> str:
    """The path with its query."""
    if not request.query:
        return request.path
    query = {}
    for name, value in request.query.items():
        # Go reads `true`, and not Python's `True`.
        query[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{request.path}?{urlencode(query, quote_via=quote)}"


def _pools(access: Access) -> urllib3.PoolManager:
    options: dict[str, Any] = {"maxsize": POOL, "socket_options": _SOCKET_OPTIONS}
    certificates = access.certificates
    if certificates:
        options["cert_reqs"] = ssl.CERT_REQUIRED if certificates.verify else ssl.CERT_NONE
        # Of no use to the API server's connections, which have a context. A proxy with TLS is verified by it, as in Go.
        options["ca_certs"] = certificates.authority
    if access.server_name:
        options["server_hostname"] = access.server_name
    pools = _proxy_pools(access.proxy, options) if access.proxy else urllib3.PoolManager(**options)
    if certificates:
        pools.pool_classes_by_scheme = {**pools.pool_classes_by_scheme, "https": _tls_pool(certificates)}
    return pools


def _proxy_pools(proxy: str, options: dict[str, Any]) -> urllib3.ProxyManager:
    login = login_header(proxy)
    headers = {"Proxy-Authorization": login} if login else None
    try:
        return urllib3.ProxyManager(without_login(proxy), proxy_headers=headers, **options)
    except urllib3.exceptions.LocationParseError as err:
        raise ApiConfigError(f"the proxy has no valid host and port. {ADVICE}") from err


def _proxy_words(error: Exception) -> str:
    """What is wrong with a proxy. Python gives its answer only as text."""
    _, is_answer, answer = str(error).partition("Tunnel connection failed: ")
    return f"the proxy answers {printable(answer)}" if is_answer else "no connection to the proxy"


def _tls_pool(certificates: Certificates) -> type[HTTPSConnectionPool]:
    """Connections to the API server, each with a context of its own, and with the certificates as they are now."""

    class Connection(HTTPSConnection):
        opened_with: Version = ()

        def connect(self) -> None:
            self.opened_with = certificates.version()
            # urllib3 writes into the context whenever it connects. If another thread connects with the same context at
            # that moment, the handshake fails or the process crashes.
            self.ssl_context = certificates.context()
            super().connect()

        @property
        def is_connected(self) -> bool:
            # Before urllib3 uses an idle connection again, it asks this, and opens a new one if not. So nothing is sent
            # to a server that only replaced certificates have vouched for.
            return super().is_connected and self.opened_with == certificates.version()

    class Pool(HTTPSConnectionPool):
        ConnectionCls = Connection

    return Pool
