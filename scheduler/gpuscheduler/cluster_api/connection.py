"""Calls to the API server: bytes in, bytes out, errors in words for people. No exception of aiohttp leaves it."""

import asyncio
import math
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import aiohttp
import msgspec

from gpuagent import __version__
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.access import Access
from gpuagent.kube.api.api_errors import ApiConfigError, ApiError, ApiUnreachable, KubeError, connection_words
from gpuagent.kube.api.certificates import Version
from gpuagent.kube.api.error_answers import UNAUTHORIZED, error_of
from gpuagent.kube.api.proxy import login_header, without_login
from gpuscheduler.cluster_api.http_answer import HttpAnswer
from gpuscheduler.cluster_api.kept_connections import KeptConnections, LostError, keep_alive

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
CONNECT_S = 5.0
"""Longest time to open a connection."""
CALL_S = 10.0
"""Longest time for a whole call."""
LIST_S = 30.0
"""Longest time for a page of a list."""
SILENCE_S = 90.0
"""Longest silence of a watch: the API server sends a bookmark every minute."""
TOKEN_S = 60.0
"""How long a token and certificates are used before they are read again."""
_NOT_DONE = 300
"""The least HTTP status with which nothing was written."""
_HEADERS = (("User-Agent", f"gpuscheduler/{__version__}"), ("Accept", "application/json"))


class NotLeadingError(KubeError):
    """Nothing was sent, because another process may lead, whose decisions may differ. The text says why."""


def _always() -> float:
    """Seconds in which a write has to be sent, without a lease."""
    return math.inf


class Connection:
    """The API server. An asynchronous context manager, which closes it.

    Its methods raise ApiError for an answer with an error, and ApiUnreachable without an answer. Those that write raise
    NotLeadingError as well.

    Args:
        access: server and credentials.
        answered: called for every request with its verb and its HTTP status, or ``none`` where no answer came.
        write_s: seconds in which a write has to be sent. It raises NotLeadingError if nothing may be written.
    """

    def __init__(
        self,
        access: Access,
        answered: Callable[[str, str], None],
        write_s: Callable[[], float] = _always,
    ) -> None:
        self._access = access
        self._answered = answered
        self._write_s = write_s
        proxy = access.proxy
        self._proxy = without_login(proxy) if proxy else None
        login = login_header(proxy)
        self._proxy_headers = {"Proxy-Authorization": login} if login else None
        names_user = "@" in access.server
        is_direct = not proxy and not names_user
        # In whose name requests are made: without these headers, each would have all rights of the credentials.
        self._of_each_request = (*_HEADERS, *access.headers)
        self._kept = None
        if is_direct:
            self._kept = KeptConnections(access.server, access.server_name, self._of_each_request)
        self._authorization = ""
        self._read_at = 0.0
        self._tls: ssl.SSLContext | None = None
        self._tls_version: Version = ()

    async def __aenter__(self) -> Self:
        """Read the credentials. Raises ApiConfigError."""
        self._read_at = time.monotonic()
        await asyncio.to_thread(self._read)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
            headers=self._of_each_request,
            # Compression would cost the API server more than the network saves.
            skip_auto_headers=("Accept-Encoding",),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        if self._kept:
            self._kept.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """The JSON of an object, or of a page of a list if there are `params`."""
        is_list = params is not None
        verb = "list" if is_list else "get"
        whole_s = LIST_S if is_list else CALL_S
        async with self._answer(
            verb,
            "GET",
            path,
            params=params,
            whole_s=whole_s,
        ) as answer:
            return await answer.read()

    async def create(self, path: str, body: Json) -> None:
        """POST an object to a collection, or to a subresource."""
        await self._write("create", "POST", path, body)

    async def patch(
        self,
        path: str,
        body: Json,
        content_type: str = MERGE_PATCH,
    ) -> None:
        """PATCH an object or its subresource."""
        await self._write("patch", "PATCH", path, body, content_type)

    async def delete(self, path: str, options: Json) -> None:
        """DELETE an object, with DeleteOptions."""
        await self._write("delete", "DELETE", path, options)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """The JSON of each event, until the server ends the watch. The first item is empty: the watch is open."""
        async with self._answer(
            "watch",
            "GET",
            path,
            params=params,
            whole_s=None,
        ) as answer:
            rest = b""
            yield rest
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield line

    async def _write(
        self,
        verb: str,
        method: str,
        path: str,
        body: Json,
        content_type: str = "application/json",
    ) -> None:
        """Send a small object, unless this process may have ceased to lead by then."""
        await self._read_again(TOKEN_S)
        limit_s = self._write_s()
        if self._kept is None:
            whole_s = min(CALL_S, limit_s)
            async with self._answer(
                verb,
                method,
                path,
                body=body,
                content_type=content_type,
                whole_s=whole_s,
            ):
                return
        headers = self._headers(content_type)
        data = msgspec.json.encode(body)
        try:
            answer = await self._kept.send(
                method,
                path,
                headers,
                data,
                self._tls,
                limit_s,
            )
        except (OSError, TimeoutError) as err:
            self._answered(verb, "none")
            raise self._unreachable(err) from err
        self._answered(verb, str(answer.status))
        if answer.status >= _NOT_DONE:
            raise await self._refused(verb, path, answer)

    @asynccontextmanager
    async def _answer(  # noqa: PLR0913 (all but three by name)
        self,
        verb: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        whole_s: float | None = CALL_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send; yield a good answer, to be read inside. `whole_s` is None for an answer without end."""
        await self._read_again(TOKEN_S)
        headers = self._headers(None if body is None else content_type)
        # Without TLS there is no tunnel: the proxy reads the request itself.
        if self._proxy_headers and self._access.server.startswith("http://"):
            headers |= self._proxy_headers
        code = ""
        try:
            async with self._session.request(
                method,
                self._access.server + path,
                params=params,
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=whole_s, connect=CONNECT_S, sock_read=SILENCE_S),
                ssl=self._tls or True,
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
                server_hostname=self._access.server_name or None,
                allow_redirects=False,
            ) as answer:
                code = str(answer.status)
                self._answered(verb, code)
                if not answer.ok:
                    raise await self._error(verb, path, answer)
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as err:
            if not code:
                self._answered(verb, "none")
            raise self._unreachable(err) from err

    def _headers(self, content_type: str | None) -> dict[str, str]:
        """Of a request whose body has this type; None without a body."""
        headers = {"Authorization": self._authorization} if self._authorization else {}
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers

    def _unreachable(self, err: Exception) -> ApiUnreachable:
        return ApiUnreachable(f"the API server {self._access.server} cannot be reached: {_words(err)}")

    async def _error(
        self,
        verb: str,
        path: str,
        answer: aiohttp.ClientResponse,
    ) -> ApiError:
        body = await answer.read()
        retry_after = answer.headers.get("Retry-After")
        whole = HttpAnswer(answer.status, answer.reason or "", retry_after, body)
        return await self._refused(verb, path, whole)

    async def _refused(self, verb: str, path: str, answer: HttpAnswer) -> ApiError:
        """The error that an answer is. After a refusal of the credentials, they are read again."""
        if answer.status == UNAUTHORIZED:
            await self._read_again(0.0)
        return error_of(
            verb,
            path,
            answer.status,
            answer.reason,
            answer.body,
            answer.retry_after,
        )

    async def _read_again(self, old_s: float) -> None:
        """Read credentials and certificates again if they were read more than `old_s` seconds ago."""
        if time.monotonic() - self._read_at < old_s:
            return
        self._read_at = time.monotonic()
        # The former credentials may still be good. If not, the API server says so.
        with suppress(ApiConfigError):
            await asyncio.to_thread(self._read)

    def _read(self) -> None:
        self._authorization = self._access.authorization()
        certificates = self._access.certificates
        if certificates is None:
            return
        # Connections with equal contexts are shared, so a new context is made only for other certificates.
        version = certificates.version()
        if version != self._tls_version:
            self._tls = certificates.context()
            self._tls_version = version


def pod_path(pod: PodName) -> str:
    """Where the API server has a pod."""
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


def decoded(data: bytes) -> Json:
    """A JSON object. Raises ApiError."""
    try:
        return msgspec.json.decode(data, type=Json)
    except (msgspec.DecodeError, RecursionError) as err:
        raise ApiError(0, "BadAnswer", "the answer is no JSON object; is this an API server?") from err


def _words(err: Exception) -> str:
    """The error for people; equal causes give equal texts."""
    match err:
        case aiohttp.ClientConnectorCertificateError():
            return connection_words(err.certificate_error)
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return "its name cannot be resolved"
        case aiohttp.ClientConnectorError():
            return connection_words(err.os_error) or "no connection"
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientError() | LostError():
            return "the connection broke off"
        case _:
            return connection_words(err) or "no connection"


def _socket(address: aiohttp.connector.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    keep_alive(made)
    return made
