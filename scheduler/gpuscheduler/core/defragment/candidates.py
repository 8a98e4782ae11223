"""Which nodes come into question for a pod if others leave, and which pods may."""

from collections.abc import Hashable
from heapq import nlargest
from itertools import islice

from gpuscheduler.core.choose_gpus import fit
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.defragment.acceptance import Acceptance
from gpuscheduler.core.defragment.surroundings import Surroundings
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

MOST_FITTING = 64
"""Nodes that are tried for a pod that is moved, the cheapest first."""
MOST_EMPTIED = 16
"""Nodes on which room is made for a pod that is moved itself, those with the most free first."""


class Candidates:
    """Answers for one search, while nothing changes.

    Args:
        cluster: as it is.
        waiting: the pod for which others are moved.
        now: monotonic seconds.
        tries: of the search.

    Attributes:
        acceptance: what kube-scheduler would say.
    """

    def __init__(self, cluster: Surroundings, waiting: PodFacts, now: float, tries: Tries) -> None:
        self._cluster = cluster
        self._waiting = waiting
        self._now = now
        self._tries = tries
        self._may_move: dict[str, bool] = {}
        self._to_empty: dict[str, list[str]] = {}
        self._fitting: dict[str, list[str]] = {}
        self.acceptance = Acceptance(cluster.usage)

    def nodes_for(self, pod: PodFacts, most: int) -> list[str]:
        """Names of the nodes that a pod may be on, those with the most free units on a GPU first."""
        nodes = self._cluster.usage.nodes
        self._tries.spend(1 + len(nodes) // 100)
        resting = self._cluster.passed_over(pod, self._now)
        serves: dict[Hashable, bool] = {}
        serving: list[NodeUsage] = []
        for name, node in nodes.items():
            kind = node.facts.kind
            if kind not in serves:
                # All nodes of one kind serve the pod if no other is on them, or none does.
                serves[kind] = fit(pod.request, NodeUsage(node.facts)) is not None
            if serves[kind] and name not in resting:
                serving.append(node)
        roomiest = nlargest(most, serving, key=_roominess)
        return [node.facts.name for node in roomiest if self.acceptance.accepts(pod, node)]

    def to_empty(self, pod: PodFacts) -> list[str]:
        """Names of the nodes on which room may be made for a pod that is moved itself."""
        names = self._to_empty.get(pod.uid)
        if names is None:
            names = self.nodes_for(pod, MOST_EMPTIED)
            self._to_empty[pod.uid] = names
        return names

    def fitting(self, pod: PodFacts) -> list[str]:
        """Names of the nodes where a pod that is moved fits now and is accepted, the cheapest first."""
        names = self._fitting.get(pod.uid)
        if names is None:
            nodes = self._cluster.usage.nodes
            self._tries.spend(1 + len(nodes) // 100)
            ranked = self._cluster.ranking.nodes(pod.request, pod.cpu, nodes)
            cheapest = [name for name, _, _ in islice(ranked, MOST_FITTING)]
            names = [name for name in cheapest if self.may_have(pod, name)]
            self._fitting[pod.uid] = names
        return names

    def may_have(self, pod: PodFacts, name: str) -> bool:
        """Whether a pod may be on a node, whatever is free there."""
        node = self._cluster.usage.nodes.get(name)
        if node is None or name in self._cluster.passed_over(pod, self._now):
            return False
        return self.acceptance.accepts(pod, node)

    def movable_on(self, node: NodeUsage) -> list[PodFacts]:
        """The pods of a node that may be moved."""
        users = [self._cluster.pods.get(uid) for uid in node.users]
        return [user for user in users if user is not None and self._is_movable(user)]

    def _is_movable(self, pod: PodFacts) -> bool:
        may_move = self._may_move.get(pod.uid)
        if may_move is None:
            may_move = not self._cluster.why_not_moved(pod, self._waiting, self._now)
            self._may_move[pod.uid] = may_move
        return may_move


def _roominess(node: NodeUsage) -> tuple[int, Amounts, Amounts, str]:
    """By unused whole GPUs, then by the GPU that has most, then by all GPUs; by name, so that plans do not flicker."""
    room = node.room
    return len(room.unused), room.largest, room.total, node.facts.name
