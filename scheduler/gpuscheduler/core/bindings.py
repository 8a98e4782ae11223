"""The Bindings of pods: with which GPUs each is sent, and what its answer means for what is reserved."""

from gpuscheduler.core.bound_pods import BoundPods
from gpuscheduler.core.calls import BindOutcome, BindRefused, BindWait, BindWrite
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.decisions.decision_text import decision_annotations
from gpuscheduler.core.jobs.jobs import Jobs
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservation, Reservations
from gpuscheduler.core.single_pods.single_pods import SinglePods

CONFIRMED_S = 60.0
"""How long GPUs stay reserved for a pod that was bound, until the watch shows it."""


class Bindings:
    """Makes Bindings, and takes their results.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        jobs: have the GPUs of their members.
        single_pods: have the GPUs of all other pods.
        bound_pods: count pods that the API server has bound.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        jobs: Jobs,
        single_pods: SinglePods,
        bound_pods: BoundPods,
    ) -> None:
        self._usage = usage
        self._reservations = reservations
        self._jobs = jobs
        self._single_pods = single_pods
        self._bound_pods = bound_pods
        self._unanswered: dict[str, Reservation] = {}
        """UID of each pod whose Binding was sent to what was sent, until the answer comes."""

    def bind(
        self,
        pod: PodFacts,
        node: str,
        now: float,
        wall_ns: int,
    ) -> BindWrite | BindWait | BindRefused:
        """The Binding of a pod that waits, see `Scheduling.bind`."""
        if node not in self._usage.nodes:
            return BindRefused(f"node {node} has no GPUs any more; kube-scheduler tries the pod again")
        is_member = self._jobs.is_member(pod)
        choice = self._jobs.bind(pod, node, now) if is_member else self._single_pods.reserved(pod, node)
        if not isinstance(choice, Choice):
            return choice
        visible = self._jobs.visible(pod, node) if is_member else ()
        until = now + CONFIRMED_S
        self._unanswered[pod.uid] = self._reservations.keep(pod, {node: choice}, until, sent=True)
        annotations = decision_annotations(
            pod.uid,
            choice,
            self._usage.nodes[node].facts.gpus,
            wall_ns,
            visible,
        )
        return BindWrite(pod.name, pod.uid, node, annotations)

    def answered(
        self,
        uid: str,
        pod: PodFacts | None,
        outcome: BindOutcome,
    ) -> None:
        """Take the result of a Binding. `pod` is as the watch shows it."""
        sent = self._unanswered.pop(uid, None)
        is_member = pod is not None and self._jobs.is_member(pod)
        # The GPUs of a member stay reserved by the plan of its job.
        if outcome is BindOutcome.REFUSED and not is_member:
            self._reservations.end([uid])
        if outcome is not BindOutcome.BOUND:
            return
        self._reservations.bound(uid)
        was_watch_faster = sent is not None and pod is not None and pod.node in sent.choices
        if sent and pod and was_watch_faster:
            self._bound_pods.count_as_bound(pod, sent)

    def forget(self, uid: str) -> None:
        """Take that a pod is gone, or has ended."""
        self._unanswered.pop(uid, None)
