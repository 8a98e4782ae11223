"""What pods on nodes use: as was decided for them, whatever their authors change afterwards."""

from dataclasses import replace

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reservations import Reservation, Reservations


class BoundPods:
    """Keeps the pods, and counts those that are on nodes.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        pods: by UID; kept here.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        pods: dict[str, PodFacts],
    ) -> None:
        self._usage = usage
        self._reservations = reservations
        self._pods = pods

    def as_decided(self, pod: PodFacts) -> PodFacts:
        """A bound pod with what was decided for it, which stands until the pod is gone.

        Its author may edit annotations and labels while it runs. None of that changes the devices that it has, so it
        must not change what others get. The agent's word on the Node comes first, because no tenant can write Nodes.
        Then comes what the API server has bound for this scheduler, then the first decision that was seen on the bound
        pod. A Binding that was sent is not enough: that of a former leader, or of another scheduler, may have been
        faster, and the agent follows that one.
        """
        # Nothing was decided for a pod that asks for no GPUs. It counts for the job that its label names now.
        if not pod.node or pod.request.kind is RequestKind.NONE:
            return pod
        former = self._pods.get(pod.uid)
        if former and former.node:
            first_seen = self._as_first_seen(pod, former)
            return self._with_held(first_seen)
        reservation = self._reservations.get(pod.uid)
        is_bound_by_us = reservation is not None and reservation.bound
        if reservation and is_bound_by_us and pod.node in reservation.choices:
            return self._with_held(_as_bound(pod, reservation))
        return self._with_held(pod)

    def count_as_bound(self, pod: PodFacts, reservation: Reservation) -> None:
        """Count a pod with what the API server has bound it with, although it was seen on its node before."""
        choice = reservation.choices[pod.node]
        is_counted_so = pod.used == choice.used and pod.request == reservation.pod.request
        if not is_counted_so:
            self.count(self._with_held(_as_bound(pod, reservation)))

    def count(self, pod: PodFacts) -> None:
        """Keep the pod, and count what it uses if it is bound."""
        self._pods[pod.uid] = pod
        if not pod.node:
            return
        # From here on, what it uses counts instead of what was reserved for it.
        self._reservations.end([pod.uid])
        if pod.used is not None:
            self._usage.use(pod.uid, pod.node, pod.used)
        elif pod.request.kind.gives_gpus:
            # Any other request would keep whole GPUs, and places on shared ones, from others.
            self._usage.use(pod.uid, pod.node, pod.request)

    def count_requests(self, pod: PodFacts) -> None:
        """Count what the pod asks for on its node, and what it is to other pods."""
        if pod.node and not pod.ended:
            self._usage.occupy(pod.uid, pod.node, pod.occupant)

    def forget_requests(self, uid: str) -> None:
        """Count what a pod asks for no longer."""
        self._usage.release(uid)

    def _as_first_seen(self, pod: PodFacts, former: PodFacts) -> PodFacts:
        """The pod with the request and the decision that it had when it was first seen on its node."""
        node = self._usage.nodes.get(pod.node)
        is_published = node is not None and node.facts.held is not None
        asks_for_the_same = pod.request == former.request
        used = former.used
        if used is None and asks_for_the_same and not is_published:
            # No agent of this node publishes what pods hold. So another plugin may name the GPUs afterwards.
            used = pod.used
        return replace(
            pod,
            request=former.request,
            job=former.job,
            gang_ref=former.gang_ref,
            used=used,
        )

    def _with_held(self, pod: PodFacts) -> PodFacts:
        """The bound pod with what it holds according to the agent of its node, where the agent says it."""
        node = self._usage.nodes.get(pod.node)
        if node is None or not node.facts.held:
            return pod
        held = node.facts.held.get(pod.uid)
        if held is None:
            return pod
        return replace(pod, used=held)


def _as_bound(pod: PodFacts, reservation: Reservation) -> PodFacts:
    """The pod with what the API server has bound it with."""
    choice = reservation.choices[pod.node]
    return replace(pod, request=reservation.pod.request, used=choice.used)
