"""Writes annotations of this node's pods; nothing here ever blocks the caller."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuagent.domain.reconcile.pod_annotations import PodWrite
from gpuagent.kube.api.api_errors import ApiError, ApiUnreachable, KubeError
from gpuagent.kube.write.worker import Worker
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""Seconds after which the same write is tried again if the watch has not shown the pod's next version."""
QUIET_S = 60.0
"""After this long without a write, a pod's next write does not wait."""
_NOT_FOUND, _CONFLICT = 404, 409


class Api(Protocol):
    """The methods of the Client that AnnotationWriter uses."""

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge patch."""


@dataclass(slots=True)
class _Tried:
    """The tries to write one pod, by ``time.monotonic``.

    Attributes:
        version: of the pod, in the last try.
        again_at: when the write for that version may be tried again.
        next_at: when a write for another version may be tried.
        pace: delays after tries that the server accepted.
        failing: after those that failed.
        outrun: after those that it refused because another writer was quicker: short, or a busy pod is never written.
    """

    pace: Backoff
    failing: Backoff
    outrun: Backoff = field(default_factory=lambda: Backoff(first_s=0.02, limit_s=0.5))
    version: str = ""
    at: float = float("-inf")
    again_at: float = 0.0
    next_at: float = 0.0
    failure: str = ""

    def due(self, write: PodWrite) -> float:
        return self.again_at if write.version == self.version else self.next_at


@dataclass(slots=True)
class _Wanted:
    write: PodWrite
    tried: _Tried = field(repr=False)


class AnnotationWriter(Worker):
    """Level-triggered: stores the writes that pods need, and sends each against the version it follows from.

    The server refuses a write (409) when the pod has changed since. The watch then brings the pod as it is, and the
    agent works out its writes again. The watch also brings the pod after a write, and the pod then needs none. A pod
    that is gone (404) needs none. Each pod is tried by itself: ever more rarely while it fails, or while another
    writer keeps replacing the value. One daemon thread does all of this.

    Args:
        client: shared with others.
        `told`: called with the reason why annotations cannot be written, and with None once they can.
        wall_ns: Unix nanoseconds, for the time of an assignment.
        backoff: makes the delays after failures; the longest is for those that only people can fix.
        pace: makes the delays between writes of one pod.
    """

    def __init__(
        self,
        client: Api,
        *,
        told: Callable[[str | None], None] = lambda _: None,
        wall_ns: Callable[[], int] = time.time_ns,
        backoff: Callable[[], Backoff] = lambda: Backoff(limit_s=60.0),
        pace: Callable[[], Backoff] = lambda: Backoff(first_s=0.05, limit_s=5.0),
    ) -> None:
        super().__init__("kube-annotations")
        self._client = client
        self._told = told
        self._said: tuple[str, str] = ("", "")
        self._wall_ns = wall_ns
        self._backoff, self._pace = backoff, pace
        self._busy = ""
        self._wanted: dict[str, _Wanted] = {}
        self._tried: dict[str, _Tried] = {}
        self._cut_off = backoff()
        self._cut_off_until = 0.0

    def desire(self, writes: Iterable[PodWrite]) -> None:
        """Replace the writes that pods need; never blocks."""
        with self._wake:
            now = time.monotonic()
            self._wanted = {write.uid: _Wanted(write, self._of(write.uid)) for write in writes}
            for uid in [uid for uid, tried in self._tried.items() if uid not in self._wanted]:
                if uid != self._busy and now - self._tried[uid].at > QUIET_S:
                    del self._tried[uid]
                else:
                    self._tried[uid].failure = ""
            self._wake.notify_all()
        self._tell()

    def nudge(self) -> None:
        """End the delays, as the server can be reached again. Never blocks."""
        with self._wake:
            self._cut_off_until = 0.0
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until no write is needed or in progress; False where ``timeout_s`` was too short."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._wanted and not self._busy, timeout_s)

    def _of(self, uid: str) -> _Tried:
        return self._tried.get(uid) or _Tried(self._pace(), self._backoff())

    def _run(self) -> None:
        while (wanted := self._next()) is not None:
            self._try(wanted)
            self._tell()

    def _next(self) -> _Wanted | None:
        """Wait for the next write that is due; None when stopped."""
        with self._wake:
            while not self._stopped:
                first = min(self._wanted.values(), key=lambda one: one.tried.due(one.write), default=None)
                if first is None:
                    self._wake.wait()
                    continue
                wait_s = max(first.tried.due(first.write), self._cut_off_until) - time.monotonic()
                if wait_s > 0:
                    self._wake.wait(wait_s)
                    continue
                self._busy = first.write.uid
                self._tried[first.write.uid] = first.tried
                return first
            return None

    def _try(self, wanted: _Wanted) -> None:
        write, tried = wanted.write, wanted.tried
        error: Exception | None = None
        try:
            path = f"/api/v1/namespaces/{write.pod.namespace}/pods/{write.pod.name}"
            self._client.patch(path, write.body(self._wall_ns()))
            log.info("pod annotated", extra={"pod": str(write.pod), "keys": ",".join(sorted(write.texts))})
        except Exception as err:  # a bug must not end the thread that keeps the others right
            if not isinstance(err, KubeError):
                log.exception("pod could not be annotated", extra={"pod": str(write.pod)})
            error = err
        with self._wake:
            self._outcome(write, tried, error)
            self._busy = ""
            self._wake.notify_all()

    def _outcome(self, write: PodWrite, tried: _Tried, error: Exception | None) -> None:
        now = time.monotonic()
        if now - tried.at > QUIET_S:
            tried.pace.reset()
        tried.version, tried.at = write.version, now
        outrun = isinstance(error, ApiError) and error.status in (_NOT_FOUND, _CONFLICT)
        if error is None or outrun:
            tried.failure = ""
            tried.failing.reset()
            self._cut_off.reset()
            tried.next_at, tried.again_at = now + (tried.outrun if outrun else tried.pace).next_s(), now + AGAIN_S
            if not outrun:
                tried.outrun.reset()
            return
        tried.failure = _reason(error)
        if isinstance(error, ApiUnreachable):
            tried.next_at = tried.again_at = now
            self._cut_off_until = now + self._cut_off.next_s()
        else:
            tried.next_at = tried.again_at = now + tried.failing.next_s()

    def _tell(self) -> None:
        with self._wake:
            failing = {str(one.write.pod): one.tried.failure for one in self._wanted.values() if one.tried.failure}
            # Name the same pod as long as it fails: another text would be another Event.
            pod = self._said[0] if self._said[0] in failing else min(failing, default="")
            said = (pod, failing.get(pod, ""))
            news, self._said = said != self._said, said
        if news:
            pod, failure = said
            self._told(f"annotations of pod {pod}: {failure}" if pod else None)


def _reason(err: Exception) -> str:
    return str(err) if isinstance(err, KubeError) else f"{type(err).__name__}: {err}"
