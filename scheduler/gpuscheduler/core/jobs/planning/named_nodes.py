"""What kube-scheduler's call about a pod says about nodes.

It accepts the nodes that it names. In a small cluster, it rejects all others. In a large one, it stops looking once
enough nodes accept the pod, so a node that it does not name may be one that it has not looked at.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES
from gpuscheduler.core.constraints.resources import NO_RESOURCES
from gpuscheduler.core.gpu_request import NOTHING, RequestKind
from gpuscheduler.core.jobs.places.plan import OtherThan, Passed
from gpuscheduler.core.jobs.rejected_nodes import LeftOut
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

MOST_COMPARED = 16
"""Nodes that kube-scheduler accepts for a pod whose resources are compared with those that the pod asks for."""


@dataclass(frozen=True, slots=True)
class NamedNodes:
    """The nodes that kube-scheduler names in a call about a pod.

    Attributes:
        pod: the pod of the call.
        names: the nodes that kube-scheduler accepts for it.
        nodes: all nodes with GPUs, by name.
        min_feasible: of kube-scheduler, see `MIN_FEASIBLE_NODES`.
    """

    pod: PodFacts
    names: Collection[str]
    nodes: Mapping[str, NodeUsage]
    min_feasible: int = MIN_FEASIBLE_NODES

    @property
    def are_all(self) -> bool:
        """Whether kube-scheduler has looked at every node, so that it rejects those that it does not name."""
        if self._is_nominated_only:
            return False
        # It does not stop before so many nodes accept the pod: with fewer, it has come to the end.
        return not self._are_many or len(self.names) < self.min_feasible

    @property
    def _are_many(self) -> bool:
        """Whether kube-scheduler may look at a part of the nodes only."""
        return len(self.nodes) > self.min_feasible

    @property
    def _is_nominated_only(self) -> bool:
        """Whether it names only the node that the pod is nominated for, and has not looked at the others."""
        return self.pod.nominated in self.names and len(self.names) == 1

    def rejects(self, node: str) -> bool:
        """Whether kube-scheduler has looked at a node, and does not accept it."""
        if node in self.names or self._is_nominated_only:
            return False
        # It tries the node that the pod is nominated for in any case.
        return self.are_all or self.pod.nominated == node

    def others(self) -> Passed:
        """The nodes that kube-scheduler did not name."""
        named = frozenset(self.names)
        if self._are_many:
            return OtherThan(named)
        return frozenset(self.nodes) - named

    def unchecked(self) -> set[str]:
        """The resources of the pod of which a node has none, although kube-scheduler accepts it for the pod."""
        unchecked: set[str] = set()
        for name in islice(self.names, MOST_COMPARED):
            node = self.nodes.get(name)
            if node:
                unchecked |= self.pod.requests.absent_from(node.facts.allocatable)
        return unchecked


def left_out(pod: PodFacts, passed: Passed, nodes: Mapping[str, NodeUsage]) -> LeftOut:
    """The nodes that are passed over for a pod, and those of them that have room for it."""
    if isinstance(passed, OtherThan):
        # They are thousands, and to look at each in a call takes too long.
        return LeftOut(passed)
    with_room: set[str] = set()
    for name in passed:
        node = nodes.get(name)
        if node and has_in_sum(node, [pod]):
            with_room.add(name)
    return LeftOut(passed, frozenset(with_room))


def passed_with(passed: Passed | None, nodes: frozenset[str]) -> Passed:
    """The nodes that are passed over for a pod, and more."""
    if passed is None:
        return nodes
    if isinstance(passed, OtherThan):
        return OtherThan(passed.names - nodes)
    return passed | nodes


def has_in_sum(node: NodeUsage, pods: Iterable[PodFacts]) -> bool:
    """Whether a node has room for all of the pods as kube-scheduler counts."""
    gpus = 0
    units = NOTHING
    requests = NO_RESOURCES
    for pod in pods:
        if pod.request.kind is RequestKind.WHOLE:
            gpus += pod.request.gpus
        units += pod.request.need
        requests += pod.requests
    return node.has_in_sum(gpus, units, requests)
