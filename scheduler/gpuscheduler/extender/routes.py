"""The HTTP paths: kube-scheduler's calls, probes and pages. A plain ASGI application.

A valid call gets status 200; if it fails, `Error` has the reason in a sentence, which kube-scheduler logs. Other
requests get 400. Paths may begin with the prefix of Aliyun's
extender, so that this scheduler can take its place.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from gpuagent.pages.http_server import Page
from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.extender.protocol import (
    BindCall,
    FilterCall,
    PreemptCall,
    ProtocolError,
    bind_call,
    error_result,
    filter_call,
    filter_result,
    preempt_call,
    preempt_result,
)
from gpuscheduler.extender.web_pages import cluster_pages
from gpuscheduler.metrics import CONTENT_TYPE, SchedulerMetrics

log = logging.getLogger(__name__)

PREFIX = "/gpushare-scheduler"
"""Of the paths of Aliyun's extender."""
MOST_BODY = 64 * 1024 * 1024
"""Bytes of a call. 5,000 whole nodes are about 15 MB."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Left = Callable[[], Awaitable[None]]
Answer = tuple[int, str, bytes | Iterator[bytes]]
"""Status, content type, and the body; a large one in pieces that are made as they are sent."""
JSON = "application/json"


class Extender(Protocol):
    """Answers the calls."""

    def filter(self, call: FilterCall) -> FilterAnswer:
        """The nodes for a pod. It answers at once: kube-scheduler schedules no other pod meanwhile."""

    async def bind(self, call: BindCall, left: Left) -> tuple[str, str]:
        """Bind a pod; the result for metrics, and why it is not bound (empty if it is).

        `left` returns when the caller has gone.
        """

    def preempt(self, call: PreemptCall) -> Mapping[str, Sequence[str]]:
        """Node name to UIDs of the pods to evict there."""

    def problem(self) -> str:
        """Why calls cannot be answered now; empty if they can."""

    def usage(self) -> Iterator[bytes]:
        """The page of what is in use and reserved and which pods wait: JSON in small pieces, as it may be large."""


class Routes:
    """The ASGI application.

    Args:
        service: answers the calls.
        metrics: counts them.
        calls: whether to answer kube-scheduler's calls, or pages alone.
    """

    def __init__(self, service: Extender, metrics: SchedulerMetrics, *, calls: bool = True) -> None:
        self._service, self._metrics = service, metrics
        self._pages: dict[str, Callable[[], Answer]] = {
            "/healthz": lambda: _text(200, "ok"),
            "/readyz": self._readiness,
            "/metrics": lambda: (200, CONTENT_TYPE, metrics.page()),
            "/usage": lambda: (200, JSON, service.usage()),
            **{path: _file(page) for path, page in cluster_pages().items()},
        }
        self._calls: dict[str, Callable[[bytes, Left], Awaitable[tuple[str, bytes]]]] = {}
        if calls:
            self._calls = {"/filter": self._filter, "/bind": self._bind, "/preempt": self._preempt}

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        method, path = scope["method"], scope["path"].removeprefix(PREFIX)
        if path in self._calls:
            answer = await self._called(method, path, receive)
        elif path not in self._pages:
            answer = _text(404, f"there are {', '.join((*self._calls, *self._pages))}")
        elif method not in {"GET", "HEAD"}:
            answer = _text(405, "the pages are for GET")
        else:
            answer = self._pages[path]()
        if answer is None:
            return
        status, content_type, body = answer
        headers = [(b"content-type", content_type.encode())]
        if isinstance(body, bytes):
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if method != "HEAD" and not isinstance(body, bytes):
            for piece in body:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # calls come between the pieces
        await send({"type": "http.response.body", "body": body if isinstance(body, bytes) else b""})

    async def _called(self, method: str, path: str, receive: Receive) -> Answer | None:
        if method != "POST":
            return _text(405, "kube-scheduler calls with POST")
        try:
            body = await _body(receive)
        except OverflowError:
            return _text(413, f"the call has more than {MOST_BODY} bytes")
        if body is None:
            return None

        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        began, result = time.perf_counter(), "failed"
        try:
            result, answer = await self._calls[path](body, left)
        except ProtocolError as err:
            result = "malformed"
            return _text(400, str(err))
        except Exception:  # the caller gets a sentence, the log the trace
            log.exception("Call failed", extra={"path": path})
            return 200, JSON, error_result("the scheduler's extender failed; its log says why")
        finally:
            self._metrics.answered(path[1:], result, time.perf_counter() - began)
        return 200, JSON, answer

    async def _filter(self, body: bytes, _: Left) -> tuple[str, bytes]:
        call = filter_call(body)
        answer = self._service.filter(call)
        return _word(answer), filter_result(answer, call)

    async def _bind(self, body: bytes, left: Left) -> tuple[str, bytes]:
        result, error = await self._service.bind(bind_call(body), left)
        return result, error_result(error)

    async def _preempt(self, body: bytes, _: Left) -> tuple[str, bytes]:
        call = preempt_call(body)
        victims = self._service.preempt(call)
        return "victims" if victims else "none", preempt_result(victims, call.violations)

    def _readiness(self) -> Answer:
        problem = self._service.problem()
        return _text(503, problem) if problem else _text(200, "ok")


def _file(page: Page) -> Callable[[], Answer]:
    return lambda: (200, *page())


def _word(answer: FilterAnswer) -> str:
    if answer.error:
        return "error"
    if answer.nodes:
        return "placed"
    return answer.cause or ("full" if answer.failed else "impossible")


async def _body(receive: Receive) -> bytes | None:
    """The body; None if the caller has gone. Raises OverflowError."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY:
            raise OverflowError
        if not message.get("more_body"):
            return b"".join(parts)


def _text(status: int, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"
