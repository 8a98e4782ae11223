"""GPUs that are kept for pods until the watch shows them bound. `scheduling` and `jobs` decide when they are freed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.pod_facts import PodFacts


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs that are kept for a pod.

    Attributes:
        pod: as it was when the GPUs were chosen.
        choices: node name to its GPUs there; kube-scheduler takes one of the nodes.
        until: monotonic seconds when it ends.
        sent: a Binding was sent, so that the API server may have bound the pod.
        bound: the API server has answered that it bound the pod so.
    """

    pod: PodFacts
    choices: Mapping[str, Choice]
    until: float
    sent: bool = False
    bound: bool = False


class Reservations:
    """Reservations by UID; each counts in `usage`.

    Args:
        usage: nodes and their users.
        pods: UID to pod. The use of a bound pod on its node counts in any case.
    """

    def __init__(self, usage: ClusterUsage, pods: Mapping[str, PodFacts]) -> None:
        self._usage = usage
        self._pods = pods
        self._all: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._all)

    def get(self, uid: str) -> Reservation | None:
        """The reservation for a pod, if there is one."""
        return self._all.get(uid)

    def keep(
        self,
        pod: PodFacts,
        choices: Mapping[str, Choice],
        until: float,
        *,
        sent: bool = False,
    ) -> Reservation:
        """Reserve GPUs, in place of those that were reserved for the pod."""
        former = self._all.get(pod.uid)
        if former and former.choices == choices and former.pod is pod:
            # They count already.
            reservation = Reservation(pod, former.choices, until, sent)
            self._all[pod.uid] = reservation
            return reservation
        # Not on the nodes in `choices`: a release there would count as GPUs that became free, and wake other pods.
        self._release(pod.uid, choices)
        reservation = Reservation(pod, choices, until, sent)
        self._all[pod.uid] = reservation
        for name, choice in choices.items():
            self._usage.use(pod.uid, name, choice.used)
            self._usage.occupy(pod.uid, name, pod.occupant)
        return reservation

    def bound(self, uid: str) -> None:
        """Take that the API server has bound the pod to one of its nodes, with the GPUs that are reserved there."""
        reservation = self._all.get(uid)
        if reservation:
            self._all[uid] = replace(reservation, bound=True)

    def end(self, uids: Iterable[str]) -> None:
        """Give back what is reserved for these pods."""
        for uid in uids:
            self._all.pop(uid, None)
            self._release(uid)

    def give_back(self, uids: Iterable[str]) -> None:
        """Give back what is reserved for these pods, except for those that the API server may have bound."""
        reserved = [uid for uid in uids if uid in self._all]
        self.end([uid for uid in reserved if not self._all[uid].sent])

    def may_be_bound(self, uid: str) -> float | None:
        """Until when the API server may have bound the pod, although the watch does not show it; None if it has not."""
        reservation = self._all.get(uid)
        return reservation.until if reservation and reservation.sent else None

    def lapse(self, now: float) -> None:
        """End those that are over."""
        over = [uid for uid, reservation in self._all.items() if reservation.until <= now]
        self.end(over)

    def next_end(self) -> float | None:
        """When the next one ends; None without any."""
        ends = (reservation.until for reservation in self._all.values())
        return min(ends, default=None)

    def _release(self, uid: str, but: Collection[str] = ()) -> None:
        """Count a pod no longer where it is not bound, except on the nodes in `but`."""
        pod = self._pods.get(uid)
        bound_to = pod.node if pod else ""
        # A copy, because each release changes the names.
        names = list(self._usage.nodes_of(uid))
        for name in names:
            if name not in but and name != bound_to:
                self._usage.release(uid, name)
