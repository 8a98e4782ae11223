"""Raw JSON calls to the API server, with timeouts, and errors in words for people."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gpuagent.kube.api.api_errors import ApiError, ApiStarting, ApiUnreachable, KubeError
from gpuagent.kube.api.error_answers import FORBIDDEN, UNAUTHORIZED, error_of
from gpuagent.kube.api.list_text import read_list
from gpuagent.kube.api.overrides import AS_WRITTEN, Overrides
from gpuagent.kube.watch.stream import Watch

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from gpuagent.kube.api.transport import Transport

Json = dict[str, Any]
Params = Mapping[str, str | int | bool]

ROLES_S = 15.0
"""For this long after it was away, an API server that forbids something may not have read its roles yet."""
SMALL = 65_536
"""Bytes of an answer up to which it is read and decoded at once."""
MOST_LARGE = 4
"""Larger answers in memory at a time. Any author may make an object of 1.5 MiB, and decoded it takes up to 20 times as
much: so one of them is decoded at a time. The rest of the others stays at the server."""

JSON = "application/json"
METADATA_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
"""What to accept for a list of which only the objects' metadata matters."""
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds.

    Attributes:
        connect_s: longest time to open a connection.
        call_s: longest silence of an ordinary call.
        watch_s: the server is asked to end a watch after this long; it may end it sooner.
        watch_silence_s: longest silence of a watch; a bit above ``watch_s``, so only a dead peer reaches it.
    """

    connect_s: float = 5.0
    call_s: float = 10.0
    watch_s: int = 300
    watch_silence_s: float = 330.0


class Api(Protocol):
    """The calls that watches and writers make. Each may raise ApiUnreachable and ApiError."""

    def get(self, path: str, fields: frozenset[str] | None = None) -> Json:
        """Return one object, or only its fields of these names, at any depth."""

    def page(self, path: str, params: Params | None = None) -> tuple[Json, Iterator[Json]]:
        """Return a List's metadata and items."""

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """POST to a collection and return the new object."""

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> Json:
        """PATCH and return the whole object."""

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """DELETE, with DeleteOptions."""

    def watch(self, path: str, params: Params | None = None) -> Watch:
        """Open a watch."""


class Client:
    """The API server, reached with a kubeconfig and what overrides it, or with the pod's service account if it is None.

    Building one does nothing; the first call loads urllib3 and the credentials, and so may raise ApiConfigError.
    Every method may raise ApiUnreachable and ApiError, blocks for at most its timeouts, and may be called from any
    thread. Paths are the API's own, ``/api/v1/nodes/n1/status``; objects are decoded JSON. ``answered`` is called for
    every request with its verb and its HTTP status, or ``none`` where no answer came.
    """

    def __init__(
        self,
        kubeconfig: str | None = None,
        timeouts: Timeouts | None = None,
        *,
        overrides: Overrides = AS_WRITTEN,
        compressed: bool = False,
        answered: Callable[[str, str], None] = lambda _verb, _code: None,
    ) -> None:
        self.clock = time.monotonic
        self._is_away = False
        self._back_at = -math.inf
        self._kubeconfig = kubeconfig
        self._answered = answered
        self._overrides = overrides
        self._compressed = compressed
        self.timeouts = timeouts or Timeouts()
        self._lock = threading.Lock()
        self._large = threading.BoundedSemaphore(MOST_LARGE)
        self._decoding = threading.Lock()
        self._transport: Transport | None = None

    def connect(self) -> None:
        """Load urllib3 and the credentials now; sends nothing. Raises ApiConfigError."""
        self._connected()

    def get(self, path: str, fields: frozenset[str] | None = None) -> Json:
        """Return one object, or only its fields of these names, at any depth: others never stay in memory."""
        return self._call("get", "GET", path, fields=fields)

    def page(
        self,
        path: str,
        params: Params | None = None,
        *,
        accept: str = JSON,
    ) -> tuple[Json, Iterator[Json]]:
        """Return a List's metadata and its items, which are read from the connection as they are taken.

        Taking them may raise what this method may. The connection is free again when all are taken.
        """
        status, transport, response = self._opened("list", "GET", path, params, accept=accept)
        try:
            metadata, items = read_list(transport.pieces(response, self.timeouts.call_s))
        except ValueError as err:
            raise _no_json(status) from err
        return metadata, _checked(status, items)

    def text(self, path: str) -> str:
        """Return an answer that is not an object, such as a pod's page by the API server (``…/proxy/metrics``)."""
        _, data = self._answer("get", "GET", path, accept="*/*")
        return data.decode(errors="replace")

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """POST ``body`` to a collection and return the new object."""
        return self._call("create", "POST", path, None, body)

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> Json:
        """PATCH an object or its subresource and return the whole object as it is now."""
        return self._call("patch", "PATCH", path, None, body, content_type)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """DELETE an object; ``body`` is DeleteOptions. Returns a Status, or the object where it is not gone yet."""
        return self._call("delete", "DELETE", path, None, body)

    def watch(self, path: str, params: Params | None = None) -> Watch:
        """Open a watch, bookmarks included; returns when the server has accepted it.

        ``params`` carries ``resourceVersion`` and selectors. See Watch for what reading it may raise.
        """
        from gpuagent.kube.api.transport import Request  # noqa: PLC0415 - loads urllib3

        query = {
            **(params or {}),
            "watch": "true",
            # They bring newer versions to a quiet watch, which would otherwise be too old when it has to begin again.
            "allowWatchBookmarks": "true",
            "timeoutSeconds": self.timeouts.watch_s,
        }
        silence_s = self.timeouts.watch_silence_s
        timeout_s = (self.timeouts.connect_s, self.timeouts.call_s)
        transport = self._connected()
        request = Request(method="GET", path=path, query=query, timeout_s=timeout_s)
        response = self._sent("watch", lambda: transport.stream(request, silence_s))
        if not 200 <= response.status < 300:
            data = transport.body(response, self.timeouts.call_s)
            raise self._error("watch", path, response, data)

        def broken(err: Exception) -> ApiUnreachable:
            self._is_away = True
            return transport.unreachable(err, silence_s)

        return Watch(response, broken)

    def close(self) -> None:
        """Drop credentials and idle connections; a later call starts afresh."""
        with self._lock:
            transport = self._transport
            self._transport = None
        if transport is not None:
            transport.close()

    def _call(  # noqa: PLR0913 - one funnel for all calls
        self,
        verb: str,
        method: str,
        path: str,
        params: Params | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        fields: frozenset[str] | None = None,
    ) -> Json:
        status, transport, response = self._opened(verb, method, path, params, body=body, content_type=content_type)
        with closing(transport.pieces(response, self.timeouts.call_s)) as pieces:
            start, is_whole = _start_of(pieces)
            if is_whole:
                return _decoded(status, start, fields)
            # Few large answers at a time, and one that is decoded: each takes many times its size in memory.
            with self._large:
                data = b"".join((start, *pieces))
                with self._decoding:
                    return _decoded(status, data, fields)

    def _answer(
        self,
        verb: str,
        method: str,
        path: str,
        params: Params | None = None,
        **more: Any,  # noqa: ANN401 - as Request has them
    ) -> tuple[int, bytes]:
        """Return status, a good one, and body."""
        status, transport, response = self._opened(verb, method, path, params, **more)
        return status, transport.body(response, self.timeouts.call_s)

    def _opened(
        self,
        verb: str,
        method: str,
        path: str,
        params: Params | None = None,
        **more: Any,  # noqa: ANN401 - as Request has them
    ) -> "tuple[int, Transport, BaseHTTPResponse]":
        """Return status, a good one, and the response with its body unread."""
        from gpuagent.kube.api.transport import Request  # noqa: PLC0415 - loads urllib3

        timeout_s = (self.timeouts.connect_s, self.timeouts.call_s)
        transport = self._connected()
        request = Request(
            method=method,
            path=path,
            query=params or {},
            timeout_s=timeout_s,
            compressed=self._compressed,
            **more,
        )
        response = self._sent(verb, lambda: transport.send(request))
        if not 200 <= response.status < 300:
            data = transport.body(response, self.timeouts.call_s)
            raise self._error(verb, path, response, data)
        return response.status, transport, response

    def _sent(self, verb: str, send: "Callable[[], BaseHTTPResponse]") -> "BaseHTTPResponse":
        code = "none"
        try:
            response = send()
            code = str(response.status)
        except ApiUnreachable:
            self._is_away = True
            raise
        finally:
            self._answered(verb, code)
        if self._is_away:
            # A server that has just started forbids everything until it has read its roles.
            self._is_away = False
            self._back_at = self.clock()
        return response

    def _connected(self) -> "Transport":
        # One for all threads, also if many make their first call together.
        with self._lock:
            if self._transport is None:
                from gpuagent.kube.api import transport  # noqa: PLC0415 - loads urllib3

                self._transport = transport.connect(self._kubeconfig, self._overrides)
            return self._transport

    def _error(self, verb: str, path: str, response: "BaseHTTPResponse", data: bytes) -> KubeError:
        if response.status == UNAUTHORIZED:
            self.close()  # credentials may have been rotated on disk: read them again next time
        if response.status == FORBIDDEN and self.clock() < self._back_at + ROLES_S:
            return ApiStarting()
        retry_after = response.headers.get("Retry-After")
        return error_of(verb, path, response.status, response.reason or "", data, retry_after)


def _start_of(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """The first bytes of a body, and whether they are all of it."""
    start = b""
    for piece in pieces:
        start += piece
        if len(start) > SMALL:
            return start, False
    return start, True


def _decoded(status: int, data: bytes, fields: frozenset[str] | None) -> Json:
    nothing: Json = {}

    def kept(pairs: list[tuple[str, Any]]) -> Json:
        # One empty object stands for all: a hostile author may send a hundred thousand.
        return {name: value for name, value in pairs if name in fields} or nothing  # type: ignore[operator]

    try:
        # The hook is called for each object as soon as that is read, so what it leaves out is free at once.
        value = json.loads(data, object_pairs_hook=None if fields is None else kept)
    except ValueError as err:
        raise _no_json(status) from err
    if not isinstance(value, dict):
        raise ApiError(status, "BadAnswer", "the answer is not a JSON object; is this an API server?")
    return value


def _no_json(status: int) -> ApiError:
    return ApiError(status, "BadAnswer", "the answer is not JSON; is this an API server?")


def _checked(status: int, items: Iterator[Json]) -> Iterator[Json]:
    try:
        yield from items
    except ValueError as err:
        raise _no_json(status) from err
