"""Keeps the agent's fields of its Node up to date, and sends Events; nothing here ever blocks the caller."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuagent.domain.reconcile.node import NodeFacts, NodePatch, node_patches
from gpuagent.kube.api.api_errors import ApiUnreachable, KubeError
from gpuagent.kube.api.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from gpuagent.kube.api.timestamp import rfc3339
from gpuagent.kube.watch.trim import trim_node
from gpuagent.kube.write.event_sender import COUNT_GAP_S, EventCounts, EventSender, Involved
from gpuagent.kube.write.worker import Worker
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

# An observation older than the agent's own write is a delayed watch event. After this time it counts anyway.
_STALE_S = 10.0


class Api(Protocol):
    """The methods of the Client that NodeWriter uses."""

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST to a collection."""

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """PATCH and return the whole object."""


@dataclass(frozen=True, slots=True)
class WriterCounts:
    """Counts since the start. ``error`` is the reason why the Node is not as desired now; "" if it is."""

    patches: int
    failures: int
    error: str
    events: EventCounts


class NodeWriter(Worker):
    """Level-triggered: stores the desired and the observed Node, and patches the difference.

    It writes nothing before the first ``observe``. It tries again after a failure, and after every observed drift
    (kubelet resets a node's status when the node is created again). One daemon thread patches and another sends
    Events, so that neither waits for the other.

    Args:
        client: shared with others.
        node_name: the Node that is written, and the host that Events name.
        wall: seconds since the epoch, for times in objects.
        gap_s: least time between two rounds of patches, against a fight with another writer.
        count_gap_s: least time between two counts of one Event.
        backoff: makes the delays after failures.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        client: Api,
        node_name: str,
        *,
        wall: Callable[[], float] = time.time,
        gap_s: float = 0.2,
        count_gap_s: float = COUNT_GAP_S,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        super().__init__("kube-write")
        self._client = client
        self._path = f"/api/v1/nodes/{node_name}"
        self._wall = wall
        self._gap_s = gap_s
        self._backoff = backoff()
        self._events = EventSender(client, node_name, wall=wall, backoff=backoff(), count_gap_s=count_gap_s)
        self._facts = NodeFacts()
        self._node: Mapping[str, Any] | None = None
        self._dirty = False
        self._busy = False
        self._cut_off = False
        self._not_before = 0.0
        self._wrote_at = -_STALE_S
        self._patches = self._failures = 0
        self._error = ""

    def start(self) -> None:
        """Start both threads; returns at once."""
        super().start()
        self._events.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop and wait up to ``timeout_s``; what is not written stays unwritten."""
        deadline = time.monotonic() + timeout_s
        super().stop(timeout_s)
        self._events.stop(max(0.0, deadline - time.monotonic()))

    def set_desired(
        self,
        labels: Mapping[str, str | None],
        capacity: Mapping[str, str],
        condition: Mapping[str, str] | None,
        no_taint: str = "",
    ) -> None:
        """Replace the desired Node; NodeFacts describes the four arguments."""
        facts = NodeFacts(dict(labels), dict(capacity), None if condition is None else dict(condition), no_taint)
        with self._wake:
            if facts != self._facts:
                self._facts, self._dirty = facts, True
                self._wake.notify_all()

    def observe(self, node: Mapping[str, Any]) -> None:
        """Take the Node as the API server has it now (a NodeSeen's ``node``)."""
        with self._wake:
            if self._is_stale(node):
                return
            self._node = node
            self._dirty = True
            if self._cut_off:
                self._cut_off, self._not_before = False, 0.0  # the server is back: end the delay
            self._wake.notify_all()

    def event(self, involved: Involved, kind: str, reason: str, message: str) -> None:
        """Send an Event about ``involved``; ``kind`` is ``Normal`` or ``Warning``, ``reason`` in UpperCamelCase.

        The same one within 5 minutes is counted on the first instead of repeated.
        """
        self._events.add(involved, kind, reason, message)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the observed Node is right and every Event is out; False where ``timeout_s`` was too short."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            settled = self._wake.wait_for(lambda: not self._dirty and not self._busy, timeout_s)
        return self._events.flush(max(0.0, deadline - time.monotonic())) and settled

    def counts(self) -> WriterCounts:
        """Return the counters, for metrics and status."""
        with self._wake:
            return WriterCounts(self._patches, self._failures, self._error, self._events.counts())

    def _run(self) -> None:
        while (work := self._next()) is not None:
            node, facts = work
            failure = self._make_right(node, facts)
            with self._wake:
                self._busy = False
                self._dirty = self._dirty or bool(failure)
                if not failure:
                    self._backoff.reset()
                self._not_before = time.monotonic() + (self._backoff.next_s() if failure else self._gap_s)
                self._error = failure
                self._wake.notify_all()

    def _next(self) -> tuple[Mapping[str, Any], NodeFacts] | None:
        """Wait for something to compare; None when stopped."""
        with self._wake:
            while not self._stopped:
                wait_s = self._not_before - time.monotonic()
                if self._dirty and self._node is not None:
                    if not node_patches(self._node, self._facts, ""):
                        self._dirty = False
                        self._error = ""
                        self._wake.notify_all()
                    elif wait_s <= 0:
                        self._dirty, self._busy = False, True
                        return self._node, self._facts
                    else:
                        self._wake.wait(wait_s)
                else:
                    self._wake.wait()
            return None

    def _make_right(self, node: Mapping[str, Any], facts: NodeFacts) -> str:
        """Send each patch, also when another one is refused; return what failed, "" where nothing did."""
        failures = []
        for patch in node_patches(node, facts, rfc3339(self._wall())):
            try:
                self._send(patch)
            except Exception as err:  # a bug must not end the thread that keeps the node right
                if not isinstance(err, KubeError):
                    log.exception("node patch failed")
                failures.append(f"node {patch.subresource or 'labels'}: {err}")
        failure = "; ".join(failures)
        if failure and failure != self._error:
            log.warning("the node cannot be kept right", extra={"path": self._path, "reason": failure})
        elif self._error and not failure:
            log.info("the node is right again", extra={"path": self._path})
        return failure

    def _send(self, patch: NodePatch) -> None:
        path = f"{self._path}/{patch.subresource}".rstrip("/")
        try:
            answer = self._client.patch(path, patch.body, STRATEGIC_MERGE_PATCH if patch.subresource else MERGE_PATCH)
        except KubeError as err:
            with self._wake:
                self._failures += 1
                self._cut_off = isinstance(err, ApiUnreachable)
            raise
        with self._wake:
            self._patches += 1
            self._wrote_at = time.monotonic()
            # The watch may have shown a later version before the answer to this patch arrived.
            if self._node is not None and _uid(answer) == _uid(self._node) and not _is_older(answer, self._node):
                self._node = trim_node(answer)

    def _is_stale(self, node: Mapping[str, Any]) -> bool:
        return time.monotonic() - self._wrote_at <= _STALE_S and _is_older(node, self._node or {})


def _uid(node: Mapping[str, Any]) -> str:
    return str(node.get("metadata", {}).get("uid", ""))


def _is_older(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``one`` is an earlier state of the same object; versions are ordered numbers (KEP-5504)."""
    before, after = (str(node.get("metadata", {}).get("resourceVersion", "")) for node in (one, other))
    return _uid(one) == _uid(other) and before.isdigit() and after.isdigit() and int(before) < int(after)
