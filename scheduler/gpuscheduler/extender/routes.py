"""The HTTP paths of kube-scheduler's calls.

A valid call gets status 200; if it fails, `Error` has the reason in a sentence, which kube-scheduler logs. Other
requests get 400. Paths may begin with the prefix of Aliyun's extender, so that this scheduler can take its place.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.extender.call_head import HeadError
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
    prioritize_result,
)
from gpuscheduler.metrics import SchedulerMetrics

log = logging.getLogger(__name__)

PREFIX = "/gpushare-scheduler"
"""Of the paths of Aliyun's extender."""
MOST_BODY = 16 * 1024 * 1024
"""Bytes of a call: 5,000 whole nodes are about 15 MB, and the names of 65,000 nodes less than 2 MB."""
MOST_BIND_BODY = 16 * 1024
"""Bytes of a bind call, which has four names."""

Left = Callable[[], Awaitable[None]]
Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type and body."""
JSON = "application/json"


class Extender(Protocol):
    """Answers the calls."""

    async def filter(self, call: FilterCall) -> FilterAnswer:
        """The nodes for a pod. It answers at once, or within a second after its kube-scheduler began to lead.

        kube-scheduler schedules no other pod meanwhile.
        """

    async def filter_carried(self, call: FilterCall) -> FilterAnswer:
        """The nodes for a pod among those that the call carries whole. Other calls are answered meanwhile."""

    async def bind(self, call: BindCall, left: Left) -> tuple[str, str]:
        """Bind a pod; the result for metrics, and why it is not bound (empty if it is).

        `left` returns when the caller has gone.
        """

    def prioritize(self, call: FilterCall) -> Mapping[str, int]:
        """Node name to score, 0 to 10; empty if all nodes suit the pod equally well."""

    def prioritize_claims(self, call: FilterCall) -> Mapping[str, int]:
        """The same for pods with claims alone."""

    def preempt(self, call: PreemptCall) -> Mapping[str, Sequence[str]]:
        """Node name to UIDs of the pods to evict there."""


class Routes:
    """Reads and answers the calls.

    Args:
        service: serves them.
        metrics: counts them.
    """

    def __init__(self, service: Extender, metrics: SchedulerMetrics) -> None:
        self._service = service
        self._metrics = metrics
        self._calls: dict[str, Callable[[bytes, Left], Awaitable[tuple[str, bytes]]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/prioritize-claims": self._prioritize_claims,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }

    def check(self, method: str, path: str, body_bytes: int) -> None:
        """Refuse, by its head, a request that is no call or is too large. Raises HeadError."""
        path = path.removeprefix(PREFIX)
        if path not in self._calls:
            calls = ", ".join(self._calls)
            raise HeadError(HTTPStatus.NOT_FOUND, f"there are {calls}; the pages are on the port of --http-address")
        if method != "POST":
            raise HeadError(HTTPStatus.METHOD_NOT_ALLOWED, "kube-scheduler calls with POST")
        most = MOST_BIND_BODY if path == "/bind" else MOST_BODY
        if body_bytes > most:
            why = f"the call has {body_bytes} bytes, more than {most}; with nodeCacheCapable: true it only names nodes"
            raise HeadError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)

    async def answer(self, path: str, body: bytes, left: Left) -> Answer:
        """Serve a call that `check` has let pass."""
        path = path.removeprefix(PREFIX)
        began = time.perf_counter()
        # This stays if an exception ends the call.
        result = "failed"
        try:
            result, answer = await self._calls[path](body, left)
        except ProtocolError as err:
            result = "malformed"
            return text_answer(HTTPStatus.BAD_REQUEST, str(err))
        except Exception:
            # The caller gets a sentence, the log the trace.
            log.exception("Call failed", extra={"path": path})
            answer = error_result("the scheduler's extender failed; its log says why")
        finally:
            took_s = time.perf_counter() - began
            self._metrics.answered(path[1:], result, took_s)
        return HTTPStatus.OK, JSON, answer

    async def _filter(self, body: bytes, _: Left) -> tuple[str, bytes]:
        call = filter_call(body)
        carries_nodes = call.names is None
        service = self._service
        answer = await (service.filter_carried(call) if carries_nodes else service.filter(call))
        return _word(answer), filter_result(answer, call)

    async def _prioritize(self, body: bytes, _: Left) -> tuple[str, bytes]:
        scores = self._service.prioritize(filter_call(body))
        return _scored(scores)

    async def _prioritize_claims(self, body: bytes, _: Left) -> tuple[str, bytes]:
        scores = self._service.prioritize_claims(filter_call(body))
        return _scored(scores)

    async def _bind(self, body: bytes, left: Left) -> tuple[str, bytes]:
        result, error = await self._service.bind(bind_call(body), left)
        return result, error_result(error)

    async def _preempt(self, body: bytes, _: Left) -> tuple[str, bytes]:
        call = preempt_call(body)
        victims = self._service.preempt(call)
        result = "victims" if victims else "none"
        return result, preempt_result(victims, call.violations)


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """A sentence for people."""
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"


def _scored(scores: Mapping[str, int]) -> tuple[str, bytes]:
    result = "scored" if scores else "none"
    return result, prioritize_result(scores)


def _word(answer: FilterAnswer) -> str:
    if answer.error:
        return "error"
    if answer.nodes:
        return "placed"
    return answer.cause or ("full" if answer.failed else "impossible")
