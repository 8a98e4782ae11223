"""Writes about pods: Bindings, the plan of a job, Events, and what wakes or nominates waiting pods."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuagent.domain.pods.json_values import mapping
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.timestamp import rfc3339
from gpuagent.system.backoff import Backoff
from gpuscheduler.cluster_api.connection import (
    STRATEGIC_MERGE_PATCH,
    Connection,
    Json,
    NotLeadingError,
    decoded,
    pod_path,
)
from gpuscheduler.core.calls import BindOutcome, BindWrite, CommitJob, Nominate, Nudge, Report, Ungate
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, JOB_GATE, PodFacts, pod_facts

log = logging.getLogger(__name__)

NUDGED_ANNOTATION = "gpuagent.io/nudged"
"""When the scheduler woke the pod last, in Unix nanoseconds."""
BIND_S = 12.0
"""Longest time for a Binding or a commit with its tries. With the wait for the pods of a job, it is less than the 30 s
that kube-scheduler waits in the recommended configuration."""
TRIES = 2
"""Of a Binding."""
PAUSE_S = 0.5
"""Pause before a Binding is tried again."""
PAUSE_LIMIT_S = 5.0
"""Longest pause before a queued write is tried again."""
MESSAGE_CHARS = 1024
"""Of an Event. The chart's policy refuses a longer message."""
WORKERS = 24
"""Writes at one time, without Bindings and commits. With eight, most nominations came too late under load."""
FORMER_S = 30.0
"""A process that begins to lead leaves out Events that it queued longer ago: the former leader has sent them. It may
have been away for the last seconds, for as long as a lease lasts and a second or two more.
"""
_COMPONENT = "gpuscheduler"
_NOT_FOUND = 404
_CONFLICT = 409
_INVALID = 422
_LONGEST = 128
"""Characters that the API server takes for an instance."""
_LONGEST_NAME = 230
"""Characters of a pod's name before an Event's number."""

Change = Nominate | Nudge | Ungate
Queued = Change | Report
_Key = tuple[type, str]
"""Kind of a write, and UID of its pod."""
_UNNEEDED = "unneeded"
"""Result of a change that came too late. It is usual, so it is not counted."""


@dataclass(frozen=True, slots=True)
class _InQueue:
    """A write.

    Attributes:
        action: what to write.
        since: when it was queued, in monotonic seconds.
        has_failed: a try of it has failed, and it is to be tried again.
    """

    action: Queued
    since: float
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class BindResult:
    """The result of a Binding.

    Attributes:
        outcome: whether the pod is bound.
        why: why it is not, or may not be; empty if it is.
        may_retry: whether another try may succeed.
    """

    outcome: BindOutcome
    why: str = ""
    may_retry: bool = False


class Writes:
    """Writes of the scheduler.

    Args:
        connection: to the API server.
        instance: name of this process in Events.
        leading: set while queued writes are carried out. Bindings and commits are in any case.
        read_lease: reads again who leads, before a second try. The next leader may have decided otherwise meanwhile.
        is_wanted: whether a write that changes a pod is still of use.
        written: called for each write other than a Binding with its kind and ``ok``, ``refused`` or ``dropped``.
    """

    def __init__(  # noqa: PLR0913 (called once)
        self,
        connection: Connection,
        instance: str,
        leading: asyncio.Event,
        read_lease: Callable[[], Awaitable[None]],
        is_wanted: Callable[[Change], bool],
        written: Callable[[str, str], None],
    ) -> None:
        self._connection = connection
        self._instance = instance[:_LONGEST]
        self._leading = leading
        self._read_lease = read_lease
        self._is_wanted = is_wanted
        self._written = written
        self._queue: dict[_Key, _InQueue] = {}
        self._tidied_at = float("-inf")
        self._in_progress: set[_Key] = set()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        """How many writes are queued."""
        return len(self._queue)

    async def bind(self, write: BindWrite) -> BindResult:
        """Bind a pod, with its annotations in the same transaction."""
        # Why the last try failed that may have been carried out.
        unknown: BindResult | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(BIND_S):
                for number in range(TRIES):
                    if number:
                        await asyncio.sleep(PAUSE_S)
                        await self._read_lease()
                    result = await self._try_bind(write, unknown)
                    if not result.may_retry:
                        return result
                    unknown = result
        return unknown or BindResult(BindOutcome.UNKNOWN, "the API server gives no answer in time")

    async def _try_bind(self, write: BindWrite, unknown: BindResult | None) -> BindResult:
        """Try once. `unknown` is the result of an earlier try, which may have been carried out."""
        # With an earlier try, the refusal of this one does not say that the pod is not bound.
        if_refused = BindOutcome.UNKNOWN if unknown else BindOutcome.REFUSED
        try:
            is_ours = await self._bind(write)
        except NotLeadingError as err:
            why = f"{unknown.why}; it is not tried again, because {err}" if unknown else str(err)
            return BindResult(if_refused, why)
        except KubeError as err:
            is_refusal = isinstance(err, ApiError) and not err.passing
            if is_refusal:
                return BindResult(if_refused, str(err))
            return BindResult(BindOutcome.UNKNOWN, str(err), may_retry=True)
        if is_ours:
            return BindResult(BindOutcome.BOUND)
        why = f"the pod is on node {write.node} already, with another decision than this Binding's"
        return BindResult(BindOutcome.UNKNOWN, why)

    async def _bind(self, write: BindWrite) -> bool:
        """Bind a pod; whether it has this decision. Otherwise another scheduler has bound it to the node."""
        path = pod_path(write.pod)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": write.pod.name,
                "namespace": write.pod.namespace,
                "uid": write.uid,
                "annotations": dict(write.annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": write.node},
        }
        try:
            await self._connection.create(f"{path}/binding", body)
        except ApiError as err:
            if err.status != _CONFLICT:
                raise
            # An earlier try, whose answer was lost, may have bound it.
            pod = decoded(await self._connection.get(path))
            facts = pod_facts(pod)
            if facts.uid != write.uid or facts.node != write.node:
                raise
            annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
            return all(annotations.get(key) == text for key, text in write.annotations.items())
        return True

    async def commit(self, action: CommitJob) -> bool:
        """Write the plan of a job; whether it is written."""
        path = pod_path(action.pod)
        version = action.version
        result = "dropped"
        try:
            async with asyncio.timeout(BIND_S):
                while not await self._committed(path, version, action):
                    # A nudge, or a write of kube-scheduler, changed the pod since.
                    await self._read_lease()
                    pod = await self._pod(path)
                    if pod.uid != action.uid or pod.node or pod.deleting:
                        break
                    version = pod.version
                else:
                    result = "ok"
        except (KubeError, TimeoutError) as err:
            result = "refused" if isinstance(err, ApiError) else "dropped"
            log.warning("Failed to write the plan of a job", extra={"pod": str(action.pod), "error": str(err)})
        self._written("commit", result)
        return result == "ok"

    async def _committed(self, path: str, version: str, action: CommitJob) -> bool:
        """Whether the write succeeded at this version of the pod."""
        annotations = {COMMIT_ANNOTATION: action.text}
        metadata = {"uid": action.uid, "resourceVersion": version, "annotations": annotations}
        try:
            await self._connection.patch(path, {"metadata": metadata})
        except ApiError as err:
            if err.status != _CONFLICT:
                raise
            return False
        return True

    async def marked(self, pod: PodName, uid: str) -> str:
        """Change an annotation of a waiting pod; a version of it from then on. Raises KubeError.

        When the watch shows that version, it has shown every earlier write.
        """
        await self._perform(Nudge(pod, uid))
        return (await self._pod(pod_path(pod))).version

    def add(self, action: Queued) -> None:
        """Queue a write, in place of an earlier one of its kind for the pod."""
        now = time.monotonic()
        is_due = now - self._tidied_at >= FORMER_S
        if is_due and not self._leading.is_set():
            # A standby may run for months, and decides about all pods that come.
            self._leave_out_outdated(now)
            self._tidied_at = now
        self._queue[type(action), action.uid] = _InQueue(action, now)
        self._added.set()

    def _leave_out_outdated(self, now: float) -> None:
        """Forget what was queued while another process led, and is of no use any more."""
        for key, queued in list(self._queue.items()):
            if not self._is_of_use(queued, now):
                del self._queue[key]

    def _is_of_use(self, queued: _InQueue, now: float) -> bool:
        if isinstance(queued.action, Report):
            return now - queued.since < FORMER_S
        return self._is_wanted(queued.action)

    async def run(self) -> None:
        """Write what is queued until it is canceled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        backoff = Backoff(limit_s=PAUSE_LIMIT_S)
        while True:
            if not self._leading.is_set():
                await self._leading.wait()
                self._leave_out_outdated(time.monotonic())
            key = self._next_key()
            if key is None:
                self._added.clear()
                await self._added.wait()
                continue
            queued = self._queue.pop(key)
            action = queued.action
            self._in_progress.add(key)
            result = await self._result(queued)
            self._in_progress.discard(key)
            # Another worker may wait for it, to write a newer change of this kind.
            self._added.set()
            if result == "again":
                # A newer write of this kind may have come meanwhile, and replaces this one.
                self._queue.setdefault(key, replace(queued, has_failed=True))
                pause_s = backoff.next_s()
            else:
                backoff.reset()
                kind = "event" if isinstance(action, Report) else type(action).__name__.lower()
                if result != _UNNEEDED:
                    self._written(kind, result)
                pause_s = 0.0
            await asyncio.sleep(pause_s)

    def _next_key(self) -> _Key | None:
        """The first write in the queue; a newer one for the same field of a pod waits for the former."""
        return next((key for key in self._queue if key not in self._in_progress), None)

    async def _result(self, queued: _InQueue) -> str:
        action = queued.action
        if not isinstance(action, Report) and not self._is_wanted(action):
            is_ahead = isinstance(action, Nominate) and action.ahead
            return "dropped" if queued.has_failed and not is_ahead else _UNNEEDED
        try:
            await self._perform(action)
        except ApiError as err:
            if err.passing:
                return "again"
            if _has_gone_on(action, err):
                return _UNNEEDED
            log.warning("Failed to change a pod", extra={"pod": str(action.pod), "error": str(err)})
            return "refused"
        except KubeError:
            return "again"  # the watches report that the API server is away
        return "ok"

    async def _perform(self, action: Queued) -> None:
        path = pod_path(action.pod)
        # With the UID as a precondition, a new pod of the same name is not changed.
        metadata = Json(uid=action.uid)
        match action:
            case Nominate():
                status = {"nominatedNodeName": action.node}
                body = {"metadata": metadata, "status": status}
                await self._connection.patch(f"{path}/status", body)
            case Nudge():
                metadata["annotations"] = {NUDGED_ANNOTATION: str(time.time_ns())}
                await self._connection.patch(path, {"metadata": metadata})
            case Ungate():
                # A merge patch would replace the whole list, and with it gates of others.
                spec = {"schedulingGates": [{"name": JOB_GATE, "$patch": "delete"}]}
                body = {"metadata": metadata, "spec": spec}
                await self._connection.patch(path, body, STRATEGIC_MERGE_PATCH)
            case Report():
                events = f"/api/v1/namespaces/{action.pod.namespace}/events"
                await self._connection.create(events, self._event(action))

    def _event(self, report: Report) -> Json:
        pod = report.pod
        now = rfc3339(time.time())
        name = pod.name[:_LONGEST_NAME].rstrip(".-")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{name}.{time.time_ns():x}",
                "namespace": pod.namespace,
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": report.uid,
            },
            "type": "Warning",
            "reason": report.reason,
            "message": report.message[:MESSAGE_CHARS],
            "source": {"component": _COMPONENT, "host": self._instance},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    async def _pod(self, path: str) -> PodFacts:
        return pod_facts(decoded(await self._connection.get(path)))


def _has_gone_on(action: Queued, err: ApiError) -> bool:
    """Whether a change is refused because its pod is gone, another pod has its name, or it was bound meanwhile.

    The watch shows that a moment later. Kubernetes 1.36 refuses to nominate a node for a pod that is bound.
    """
    if isinstance(action, Report):
        return False
    if isinstance(action, Nominate):
        return err.status in (_NOT_FOUND, _CONFLICT, _INVALID)
    return err.status == _NOT_FOUND
