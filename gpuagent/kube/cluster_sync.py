"""The API server's side of the agent: its watches and its writes."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.certain_holdings import uncertain
from gpuagent.domain.dra.unprepared import unused_claims, waiting_pods
from gpuagent.domain.dra.unusable_gpus import ADMIN_LABEL
from gpuagent.domain.pods.json_values import mapping
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.reconcile import node_configmaps, node_report, pod_annotations
from gpuagent.domain.reconcile.limit_status import with_limit_status
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.reconcile.slice_writes import same_slices, slice_name, slice_writes
from gpuagent.domain.reconcile.startup_taint import taint_to_remove
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import GPU_COUNT, Mode
from gpuagent.domain.state import State
from gpuagent.domain.usage.idle_policy import IdlePod
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.claim_fields import CLAIM_FIELDS
from gpuagent.kube.api.client import Client
from gpuagent.kube.watch.node_watch import Watcher
from gpuagent.kube.watch.slice_watch import SliceWatch
from gpuagent.kube.write.annotation_writer import AnnotationWriter
from gpuagent.kube.write.configmap_writer import ConfigMapWriter
from gpuagent.kube.write.event_sender import EventSender, Involved
from gpuagent.kube.write.forgotten_claims import ForgottenClaims, KubeletClaims
from gpuagent.kube.write.idle_pods import IdlePods
from gpuagent.kube.write.node_writer import NodeWriter
from gpuagent.kube.write.prepare_again import PrepareAgain
from gpuagent.kube.write.slice_writer import SliceWriter

log = logging.getLogger(__name__)

ProblemEvent = Callable[[str | None, float], ev.Event]
"""Makes an event from a problem, None for the end of one, and the time."""

STOP_S = 1.0
"""Limit for all threads together: a thread in a call to a silent server is left behind."""

_NAMESPACE_FIELDS = frozenset({"metadata", "labels", ADMIN_LABEL})

MOST_READS = 16
"""Claims that are read at a time. Each read has a connection and its buffers, and a node may prepare a hundred."""


class ClusterSync:
    """Watches this node and its pods, writes the node, ConfigMaps and annotations, sends Events.

    Never blocks the caller. `answered` is called for every request with its verb, and its HTTP status or ``none``, and
    `forget` with the UID of each prepared claim that is gone and that kubelet does not unprepare. `kubelet_claims`
    reads which claims kubelet has.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        kubeconfig: Path | None,
        node_name: str,
        post: Callable[[ev.Event], None],
        answered: Callable[[str, str], None] = lambda _verb, _code: None,
        policy: Policy | None = None,
        forget: Callable[[str], None] = lambda _uid: None,
        kubelet_claims: KubeletClaims = lambda: None,
    ) -> None:
        policy = policy or Policy()
        self._node_name = node_name
        self._post = post
        self._client = Client(None if kubeconfig is None else str(kubeconfig), answered=answered)
        self._watcher = Watcher(
            self._client,
            node_name,
            post,
            resources=(*policy.resources.names, GPU_COUNT),
            burst_s=0.01,
        )
        self._slices = SliceWatch(self._client, node_name, slice_name(node_name), post)
        self._node = NodeWriter(self._client, node_name, self._posting(ev.NodeKept))
        self._config_maps = ConfigMapWriter(self._client, self._posting(ev.ReportsKept))
        self._annotations = AnnotationWriter(self._client, self._posting(ev.AnnotationsKept), self._corrected)
        self._events = EventSender(self._client, node_name, on_problem=self._posting(ev.EventsSent))
        self._slice_writer = SliceWriter(
            self._client, self._posting(ev.SliceWritten), self._slice_stored, self._slice_probed
        )
        self._prepare_again = PrepareAgain(self._client, on_problem=self._posting(ev.PreparesTried))
        self._forgotten = ForgottenClaims(self._client, forget, kubelet_claims)
        self._idle = IdlePods(self._client, self.send_event, self._posting(ev.IdleLabelsRead))
        # Without the setting the agent has no right to evict, and this thread has nothing to do.
        optional = (self._idle,) if policy.idle_policy else ()
        self._reconcilers = (
            *optional,
            self._node,
            self._config_maps,
            self._annotations,
            self._slice_writer,
            self._prepare_again,
            self._forgotten,
        )
        self._claims_read = threading.BoundedSemaphore(MOST_READS)
        self._uids: dict[PodName, str] = {}
        self._annotated: State | None = None
        self._sliced: State | None = None
        self._writes: tuple[pod_annotations.PodWrite, ...] = ()
        self._skipped: dict[str, tuple[PodName, str]] = {}
        self._fetching = threading.Thread()

    def _posting(self, event: ProblemEvent) -> Callable[[str | None], None]:
        """What a writer calls with its problem, which becomes this event."""

        def post(problem: str | None) -> None:
            at = time.monotonic()
            self._post(event(problem, at))

        return post

    def _corrected(self, write: pod_annotations.PodWrite) -> None:
        self._post(ev.AnnotationsCorrected(write.pod, write.corrections, time.monotonic()))

    def _slice_stored(self, name: str, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        self._post(ev.SliceStored(name, sent, stored, time.monotonic()))

    def _slice_probed(self, sent: Mapping[str, Any], stored: Mapping[str, Any] | None) -> None:
        self._post(ev.SliceProbed(sent, stored, time.monotonic()))

    def start(self) -> None:
        for part in (self._watcher, *self._reconcilers, self._events):
            part.start()

    def stop(self) -> None:
        deadline = time.monotonic() + STOP_S
        parts = (self._watcher, self._slices, *self._reconcilers, self._events)
        # All are told to stop before any is waited for, so that they end at the same time.
        for part in parts:
            part.stop(0.0)
        for part in parts:
            part.stop(max(0.0, deadline - time.monotonic()))
        self._client.close()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every desired write is done; False where ``timeout_s`` was too short."""
        deadline = time.monotonic() + timeout_s
        return all(part.flush(max(0.0, deadline - time.monotonic())) for part in self._reconcilers)

    def observe(self, node: Mapping[str, Any]) -> None:
        """Take the Node as it is now, which also shows that the API server can be reached."""
        self._node.observe(node)
        for reconciler in self._reconcilers:
            reconciler.nudge()

    def set_pods(self, pods: Collection[Pod]) -> None:
        """Take the pods of this node, which Events may be about."""
        self._uids = {pod.name: pod.uid for pod in pods}

    def fetch(self, pods: Collection[PodName] | None, timeout_s: float) -> frozenset[str] | None:
        """Read pods that the watch has not shown yet; None: all of this node that have not ended.

        Returns the UIDs of those that exist; None after a timeout.

        While an earlier read is unanswered it returns None at once: more reads would wait for the same.
        """
        if self._fetching.is_alive():
            return None
        answers: list[frozenset[str] | None] = []

        def read() -> None:
            answers.append(self._watcher.fetch(pods))

        # In a thread, because a call of kubelet's waits for it: a silent server must not hold that longer than this.
        self._fetching = threading.Thread(target=read, name="kube-fetch", daemon=True)
        self._fetching.start()
        self._fetching.join(timeout_s)
        return answers[0] if answers else None

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Read the fields of a ResourceClaim that the agent needs. Raises Refusal: it cannot be read now."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        try:
            with self._claims_read:
                return self._client.get(path, CLAIM_FIELDS)
        except KubeError as err:
            raise Refusal(Reason.NOT_READY, f"cannot read claim {namespace}/{name}: {err}") from err

    def is_of_administrators(self, namespace: str) -> bool | None:
        """Whether a namespace has the label of administrators; None if that cannot be read."""
        try:
            with self._claims_read:
                read = self._client.get(f"/api/v1/namespaces/{namespace}", _NAMESPACE_FIELDS)
        except KubeError as err:
            log.warning("Failed to read a namespace", extra={"namespace": namespace, "reason": str(err)})
            return None
        metadata = mapping(read.get("metadata"))
        labels = mapping(metadata.get("labels"))
        return labels.get(ADMIN_LABEL) == "true"

    def is_forgotten(self, claim: PreparedClaim) -> bool:
        """Whether a claim is gone at the API server and kubelet does not have it, for certain."""
        return self._forgotten.is_forgotten(claim)

    def desire(self, state: State) -> None:
        """Set the desired Node, ConfigMaps and pod annotations that follow from `state`."""
        self._node.set_desired(
            node_report.node_labels(state),
            node_report.node_capacity(state),
            node_report.node_condition(state),
            taint_to_remove(state),
            node_annotations(state),
        )
        self._config_maps.desire(node_configmaps.config_maps(state, self._node_name))
        # Most nodes publish no slices, and are spared the connection of this watch.
        if state.node.mode is Mode.DRA or state.claims.prepared:
            self._slices.start()
        # Slices are made again only if something has changed that they show.
        if self._sliced is None or not same_slices(self._sliced, state):
            self._sliced = state
            self._slice_writer.desire(slice_writes(state, self._node_name))
        self._prepare_again.desire(waiting_pods(state))
        self._forgotten.desire(unused_claims(state))
        self._annotate(state)

    def _annotate(self, state: State) -> None:
        known = self._annotated
        if not state.pods.watched:
            return  # the server refuses writes to an outdated pod
        has_same_pods = known is not None and known.pods.seen is state.pods.seen
        is_checked = known is not None and has_same_pods and known.same_allocations(state)
        has_same_verdicts = known is not None and known.resizes.verdicts == state.resizes.verdicts
        if is_checked and has_same_verdicts:
            return  # held units are checked only after a change
        if not is_checked:
            self._writes = pod_annotations.writes(state, known, self._writes)
        self._annotated = state
        self._annotations.desire(with_limit_status(state, self._writes))
        if log.isEnabledFor(logging.DEBUG):
            self._log_skipped(state)

    def _log_skipped(self, state: State) -> None:
        """Log why pods are not annotated, each reason once."""
        skipped = {}
        for pod, why in uncertain(state, state.pods.seen):
            skipped[pod.uid] = pod.name, why
            if self._skipped.get(pod.uid) != (pod.name, why):
                log.debug("Did not annotate a pod", extra={"pod": str(pod.name), "reason": why})
        self._skipped = skipped

    def set_idle_pods(self, pods: Iterable[IdlePod]) -> None:
        """Take the pods that are idle now. What is done about them is up to their namespaces."""
        self._idle.desire(pods)

    def send_event(self, announcement: Announcement) -> None:
        """Send an Event about each pod of the announcement, or about the node if it is about no pod."""
        kind = "Warning" if announcement.warning else "Normal"
        objects = []
        for pod in announcement.pods:
            uid = self._uids.get(pod, "")
            objects.append(Involved.pod(pod.namespace, pod.name, uid))
        if not objects:
            objects.append(Involved.node(self._node_name))
        for involved in objects:
            self._events.add(involved, kind, announcement.reason, announcement.message)
