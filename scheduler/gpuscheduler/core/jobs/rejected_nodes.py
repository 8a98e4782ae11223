"""Which nodes kube-scheduler rejects for the pods of a job, as its calls show, and what it does not check of them.

It knows more than this scheduler does, such as volumes. So the places of a plan are searched among the other nodes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuscheduler.core.jobs.places.plan import Passed
from gpuscheduler.core.pod_facts import PodFacts


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Nodes that kube-scheduler does not accept for a pod.

    Attributes:
        nodes: all of them.
        with_room: those that have as much free as the pod asks for. So it is not other pods that keep this one off, but
            for example a volume.
    """

    nodes: Passed
    with_room: frozenset[str] = frozenset()


class RejectedNodes:
    """What the calls about the pods of one job have shown so far.

    Attributes:
        unchecked: resources that kube-scheduler does not check, see `checks_all_but`.
        room_changes: how often it has changed which of the nodes with room are rejected.
        version: changes when a plan that failed may succeed.
    """

    def __init__(self) -> None:
        self.unchecked: frozenset[str] = frozenset()
        self.room_changes = 0
        self.version = 0
        self._by_pod: dict[str, LeftOut] = {}
        """UID of each pod to the nodes that were left out for it; the latest last."""

    def passes_over(self, uid: str, left_out: LeftOut) -> None:
        """Record which nodes kube-scheduler does not accept for a pod."""
        former = self._by_pod.pop(uid, None)
        if former is None or former.nodes != left_out.nodes:
            # A plan with other nodes, or with this pod, may succeed.
            self.version += 1
        had_room = former.with_room if former else frozenset[str]()
        if had_room != left_out.with_room:
            self.room_changes += 1
        # The entry goes to the end, as the latest one.
        self._by_pod[uid] = left_out

    def checks_all_but(self, pod: PodFacts, absent: Collection[str]) -> None:
        """Record of which resources of a pod kube-scheduler accepts a node that has none.

        Its configuration may ignore them, another extender may check them, or a driver of DRA gives them.
        """
        checked = {name for name, _ in pod.requests.others if name not in absent}
        unchecked = (self.unchecked - checked) | frozenset(absent)
        if unchecked != self.unchecked:
            self.unchecked = unchecked
            self.version += 1

    def forget(self, uid: str) -> None:
        """Forget the nodes of a pod that is gone."""
        self._by_pod.pop(uid, None)

    def forget_all(self) -> None:
        """Forget the nodes of all pods, because kube-scheduler is asked again."""
        self._by_pod.clear()
        self.version += 1

    def nodes(self) -> Mapping[str, Passed]:
        """UID of each pod to the nodes that kube-scheduler did not accept for it; the latest last."""
        return {uid: left_out.nodes for uid, left_out in self._by_pod.items()}

    def nodes_with_room(self) -> Mapping[str, Passed]:
        """UID of each pod to the nodes that kube-scheduler would not accept for it if other pods there had ended."""
        return {uid: left_out.with_room for uid, left_out in self._by_pod.items()}

    def as_checked(self, pods: Iterable[PodFacts]) -> list[PodFacts]:
        """The pods with what kube-scheduler checks of their requests."""
        if not self.unchecked:
            return list(pods)
        return [replace(pod, requests=pod.requests.without(self.unchecked)) for pod in pods]
