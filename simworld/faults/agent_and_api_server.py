"""Faults in what the agent reads from the API server, and writes there."""

from typing import Any

from gpuagent.domain.reconcile import pod_annotations
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.kube import cluster_sync
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.watch.follow import Follow
from gpuagent.kube.watch.node_watch import NodePods
from gpuagent.kube.write import annotation_writer, node_writer
from gpuagent.kube.write.annotation_writer import AnnotationWriter
from gpuagent.kube.write.keyed_reconciler import Delays, Outcome
from simworld.faults.replacing import put

_GONE = 410


def an_outdated_watch_goes_on_from_now() -> None:
    """What changed between the last version and now is never seen."""
    watch = Follow._watch  # noqa: SLF001 (the decision that is taken away)

    def from_now_on(self: Any, version: str) -> str:  # noqa: ANN401 (the loop)
        try:
            return watch(self, version)
        except ApiError as err:
            if err.status != _GONE:
                raise
            return ""

    put(Follow, "_watch", from_now_on)


def a_new_list_adds_to_the_former_one() -> None:
    """A pod whose deletion fell into the gap of two watches stays for ever."""
    listed = NodePods.listed

    def merged(self: NodePods, items: Any) -> None:  # noqa: ANN401 (pods)
        former = dict(self.known)
        listed(self, items)
        self.known = former | self.known

    put(NodePods, "listed", merged)


def a_pod_that_came_and_went_at_once_was_never_there() -> None:
    """As it was: of the changes of one moment, only the last state is shown."""
    put(NodePods, "_keep_former", lambda *_: None)


def a_failed_write_is_done() -> None:
    """A patch that the API server did not take is never sent again."""
    attempt = AnnotationWriter.attempt

    def once(self: AnnotationWriter, value: Any) -> Outcome:  # noqa: ANN401 (a write)
        try:
            return attempt(self, value)
        except KubeError:
            return Outcome.DONE

    put(AnnotationWriter, "attempt", once)
    put(annotation_writer, "DELAYS", Delays())
    defaults = dict(AnnotationWriter.__init__.__kwdefaults__ or {})
    AnnotationWriter.__init__.__kwdefaults__ = defaults | {"delays": Delays()}


def a_conflict_is_overwritten() -> None:
    """A write names neither the pod's UID nor its version, so that it reaches a successor of its name too."""

    def body(self: pod_annotations.PodWrite, _now_ns: int) -> dict[str, Any]:
        return {"metadata": {"annotations": dict(self.texts)}}

    put(pod_annotations.PodWrite, "body", body)


def a_tenants_annotations_are_left() -> None:
    """What an author writes over the agent's annotations stays."""

    def is_needed(write: pod_annotations.PodWrite, _held: object) -> bool:
        return bool(write.texts) and not write.corrections

    put(pod_annotations, "_is_needed", is_needed)


def what_is_published_stays_as_it_was_first() -> None:
    """The Node shows the GPUs of the mode in which the agent started."""
    make = node_annotations
    first: dict[str, dict[str, str]] = {}

    def as_first(state: Any) -> dict[str, str]:  # noqa: ANN401 (the state)
        made = make(state)
        key = str(sorted(state.gpus.by_uuid))
        if len(made) < 2:
            return made
        return first.setdefault(key, made)

    put(cluster_sync, "node_annotations", as_first)


def a_node_patch_that_fails_is_lost() -> None:
    """Labels, amounts and annotations of the Node are tried once."""
    attempt = node_writer.NodeWriter.attempt

    def once(self: Any, value: Any) -> Outcome:  # noqa: ANN401 (the writer, and a write)
        try:
            return attempt(self, value)
        except KubeError:
            return Outcome.DONE

    put(node_writer.NodeWriter, "attempt", once)


FAULTS = (
    an_outdated_watch_goes_on_from_now,
    a_new_list_adds_to_the_former_one,
    a_pod_that_came_and_went_at_once_was_never_there,
    a_failed_write_is_done,
    a_conflict_is_overwritten,
    a_tenants_annotations_are_left,
    what_is_published_stays_as_it_was_first,
    a_node_patch_that_fails_is_lost,
)
