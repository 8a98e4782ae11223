"""Sends core/v1 Events from a bounded queue; repeats are counted on the first."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.api.timestamp import rfc3339
from gpuagent.kube.write.worker import Worker
from gpuagent.system.backoff import Backoff
from gpuagent.system.printable import printable

log = logging.getLogger(__name__)

_COMPONENT = "gpuagent"
_REPEAT_S = 300.0
COUNT_GAP_S = 10.0
"""Least time between two writes of an Event's count: hundreds of XIDs may come in a second, each a repeat."""
FORBIDDEN_GAP_S = 5.0
FORBIDDEN_TRIES = 6
"""Retries after a 403: an API server that has just started forbids everything until it has read its roles."""
REFUSED_S = 600.0
"""How long a namespace is reported whose Events were refused and that has had none since."""
_QUEUE = 256
_REMEMBERED = 512
MESSAGE_CHARS = 1024
_NAME_CHARS = 230
_FORBIDDEN = 403
_NOT_FOUND = 404
_CONFLICT = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Involved:
    """The object that an Event is about."""

    kind: str
    name: str
    uid: str
    namespace: str = ""

    @classmethod
    def node(cls, name: str) -> Self:
        """Return a Node, its name for uid as kubelet does: that is what ``kubectl describe node`` looks for."""
        return cls(kind="Node", name=name, uid=name)

    @classmethod
    def pod(cls, namespace: str, name: str, uid: str) -> Self:
        """Return a Pod."""
        return cls(kind="Pod", name=name, uid=uid, namespace=namespace)


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Since the start: sent, dropped from a full queue, and given up because the server refused them."""

    sent: int
    dropped: int
    refused: int


@dataclass(frozen=True, slots=True)
class _Key:
    involved: Involved
    kind: str
    reason: str
    message: str


@dataclass(slots=True)
class _Series:
    """One Event object at the server: its name, how often it was seen, and when (seconds since the epoch)."""

    name: str
    count: int
    first_s: float
    last_s: float
    created: bool = False
    due: float = float("-inf")
    """Not sent before; monotonic seconds."""
    forbidden: int = 0
    """How often in a row."""


class EventSender(Worker):
    """A daemon thread that sends the queued Events, oldest first, and retries while the server is away.

    The count of an Event that the server has is sent once in ``count_gap_s``, the last one too. ``on_problem`` receives
    the reason why the server refuses Events, and None when it takes one again.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        client: Api,
        node_name: str,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
        count_gap_s: float = COUNT_GAP_S,
        on_problem: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        super().__init__("kube-events")
        self._on_problem = on_problem
        self._refusing: dict[str, tuple[str, float]] = {}
        self._problem: str | None = None
        self._client = client
        self._node_name = node_name
        self._wall = wall
        self._clock = clock
        self._count_gap_s = count_gap_s
        self._backoff = backoff or Backoff()
        self._busy = False
        # Not yet sent: by key, oldest first. A repeat while it waits only counts, so a storm is one request.
        self._queue: OrderedDict[_Key, _Series] = OrderedDict()
        self._begun: OrderedDict[_Key, _Series] = OrderedDict()
        self._counts = EventCounts(0, 0, 0)
        self._reported: set[str] = set()

    def add(self, involved: Involved, kind: str, reason: str, message: str) -> None:
        """Queue one; never blocks. A full queue drops its oldest Event and counts it."""
        # The server takes no more characters, and some of them may be a tenant's.
        key = _Key(involved, kind, reason, printable(message[:MESSAGE_CHARS]))
        now_s = self._wall()
        with self._wake:
            series = self._queue.get(key) or self._recent(key, now_s)
            if series is None:
                series = self._new(key, now_s)
            series.count += 1
            series.last_s = now_s
            self._queue[key] = series
            if len(self._queue) > _QUEUE:
                self._queue.popitem(last=False)
                self._count(dropped=1)
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is queued but counts that are not due yet; False where ``timeout_s`` was too short."""
        with self._wake:
            return self._wake.wait_for(lambda: self._first_due() is None and not self._busy, timeout_s)

    def counts(self) -> EventCounts:
        """Return the counters."""
        return self._counts

    def _run(self) -> None:
        while (key_series := self._next()) is not None:
            delay_s = self._try(*key_series)
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                if delay_s:
                    self._wake.wait_for(lambda: self._stopped, delay_s)

    def _next(self) -> tuple[_Key, _Series] | None:
        with self._wake:
            while not self._stopped:
                key = self._first_due()
                if key is not None:
                    return key, self._begin(key)
                self._wake.wait(self._until_due_s())
            return None

    def _begin(self, key: _Key) -> _Series:
        self._busy = True
        series = self._queue.pop(key)
        # Before the call, so that a repeat during the call is counted on this one.
        self._begun[key] = series
        self._begun.move_to_end(key)
        if len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)
        return series

    def _first_due(self) -> _Key | None:
        now = self._clock()
        for key, series in self._queue.items():
            if series.due <= now:
                return key
        return None

    def _until_due_s(self) -> float | None:
        """Seconds until an Event of the queue is due; None if the queue is empty."""
        if not self._queue:
            return None
        due = min(series.due for series in self._queue.values())
        return max(0.0, due - self._clock())

    def _try(self, key: _Key, series: _Series) -> float:
        """Send one; return how long to wait before the next, in seconds."""
        try:
            self._send(key, series)
        except Exception as err:  # a bug must not end the thread
            if not isinstance(err, KubeError):
                log.exception("Failed to make Event")
            return self._failed(key, series, err)
        self._backoff.reset()
        with self._wake:
            series.forbidden = 0
            series.due = self._clock() + self._count_gap_s
            self._count(sent=1)
            self._reported.clear()
        self._refusing.pop(key.involved.namespace, None)
        self._report()
        return 0.0

    def _report(self) -> None:
        """Report a namespace whose Events are refused, as long as no Event is taken there."""
        now = self._clock()
        for namespace, (_, at) in tuple(self._refusing.items()):
            if now - at >= REFUSED_S:
                del self._refusing[namespace]
        texts = [text for text, _ in self._refusing.values()]
        problem = texts[0] if texts else None
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem)

    def _failed(self, key: _Key, series: _Series, err: Exception) -> float:
        """What becomes of an Event that was not sent; how long to wait before the next one, in seconds."""
        if isinstance(err, ApiError):
            self._log_once(key, err)
        is_forbidden = isinstance(err, ApiError) and err.status == _FORBIDDEN
        if is_forbidden and series.forbidden < FORBIDDEN_TRIES:
            with self._wake:
                series.forbidden += 1
                series.due = self._clock() + FORBIDDEN_GAP_S
                self._queue[key] = series
            return 0.0
        if _is_permanent(err):
            # For example RBAC, or a namespace in deletion: it must not delay the others.
            with self._wake:
                self._count(refused=1)
            if not _is_ending(err):
                self._refusing[key.involved.namespace] = _refusal(key, err), self._clock()
            self._report()
            return 0.0
        with self._wake:
            self._queue[key] = series
            self._queue.move_to_end(key, last=False)
        return self._backoff.next_s()

    def _log_once(self, key: _Key, err: ApiError) -> None:
        """Log an answer. While the server does not answer, the watch of the Node reports that."""
        text = str(err)
        if text not in self._reported:
            self._reported.add(text)
            log.warning("Failed to send Event", extra={"reason": key.reason, "error": text})

    def _send(self, key: _Key, series: _Series) -> None:
        # A Node has no namespace. kubectl looks for its Events in `default`.
        path = f"/api/v1/namespaces/{key.involved.namespace or 'default'}/events"
        if series.created:
            count = {"count": series.count, "lastTimestamp": rfc3339(series.last_s)}
            try:
                self._client.patch(f"{path}/{series.name}", count)
            except ApiError as err:
                if err.status != _NOT_FOUND:
                    raise
                series.created = False  # the server dropped it after its hour: create it again
            else:
                return
        try:
            self._client.create(path, self._body(key, series))
        except ApiError as err:
            if err.status != _CONFLICT:
                raise  # a conflict: an earlier try succeeded after all
        series.created = True

    def _body(self, key: _Key, series: _Series) -> dict[str, Any]:
        involved = key.involved
        reference = {
            "apiVersion": "v1",
            "kind": involved.kind,
            "name": involved.name,
            "uid": involved.uid,
        }
        if involved.namespace:
            reference["namespace"] = involved.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": involved.namespace or "default"},
            "involvedObject": reference,
            "type": key.kind,
            "reason": key.reason,
            "message": key.message,
            "source": {"component": _COMPONENT, "host": self._node_name},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node_name,
            "firstTimestamp": rfc3339(series.first_s),
            "lastTimestamp": rfc3339(series.last_s),
            "count": series.count,
        }

    def _recent(self, key: _Key, now_s: float) -> _Series | None:
        series = self._begun.get(key)
        if series is None or now_s - series.last_s >= _REPEAT_S:
            return None
        return series

    def _new(self, key: _Key, now_s: float) -> _Series:
        # As client-go names them: the object, and a time that is never the same twice.
        about = key.involved.name[:_NAME_CHARS].rstrip(".-")
        name = f"{about}.{time.time_ns():x}"
        return _Series(name, 0, now_s, now_s)

    def _count(self, *, sent: int = 0, dropped: int = 0, refused: int = 0) -> None:
        had = self._counts
        self._counts = EventCounts(had.sent + sent, had.dropped + dropped, had.refused + refused)


def _is_permanent(err: Exception) -> bool:
    """Whether the server would refuse the same Event again. An error of this program is no better at the next try."""
    if isinstance(err, ApiError):
        return not err.passing
    return not isinstance(err, KubeError)


def _is_ending(err: Exception) -> bool:
    """Whether the Event's namespace is gone or being deleted: no Event can be sent there, and none is missed."""
    if not isinstance(err, ApiError):
        return False
    return err.status == _NOT_FOUND or "being terminated" in err.message


def _refusal(key: _Key, err: Exception) -> str:
    where = key.involved.namespace or "default"
    text = f"the API server refuses Events in namespace {where}: {err}"
    if isinstance(err, ApiError) and err.status == _FORBIDDEN:
        text += "; the agent needs create and patch on events"
    return text
