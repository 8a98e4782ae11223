"""The pods of a plan in groups that are alike, so that each may have the place of another of its group."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.constraints.checks import Kind
from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.constraints.tries import STEPS_A_TRY, Tries
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

MOST_KINDS = 64
"""Kinds of pods whose rules about other pods a plan knows. The pods of a job usually have one or two."""


@dataclass(frozen=True, slots=True)
class OtherThan:
    """All nodes but these, in the place of a set with the names of thousands."""

    names: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name not in self.names

    def __len__(self) -> int:
        """More than any set of names has, and the more the fewer are left."""
        return 10**9 - len(self.names)


Passed = frozenset[str] | OtherThan
"""Nodes that kube-scheduler does not accept for a pod."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that are alike, in the order of their names.

    Attributes:
        pods: of which each asks for the same.
        request: of each, for GPUs.
        requests: of each, for CPU, memory and other resources.
        passed: nodes that kube-scheduler does not accept for them.
        kind: number of their kind in the admission.
        number: of the group in the plan.
    """

    pods: tuple[PodFacts, ...]
    request: GpuRequest
    requests: Resources
    passed: Passed
    kind: int
    number: int

    def accepted(self, nodes: Mapping[str, NodeUsage], admission: Admission) -> Mapping[str, NodeUsage]:
        """The nodes that the pods may be on, whatever other pods are there."""
        refused = admission.refuses(self.kind)
        if isinstance(self.passed, OtherThan):
            named = sorted(self.passed.names)
            return {name: nodes[name] for name in named if name in nodes and name not in refused}
        left_out = refused | self.passed
        if not left_out:
            return nodes
        return {name: node for name, node in nodes.items() if name not in left_out}


def groups_of(
    pods: Iterable[PodFacts],
    without: Mapping[str, Passed],
    beside: Neighborhood,
    tries: Tries,
) -> tuple[list[Group], Admission]:
    """The groups, and what kube-scheduler would say to their kinds. Both are incomplete once the tries are used up."""
    by_name = sorted(pods, key=_by_number)
    # Each pod may have large rules of its own, which are compared with those of the others first.
    size = sum(pod.rules.size for pod in by_name)
    if not tries.spend(size // STEPS_A_TRY):
        return [], beside.admission([], tries)
    kinds: dict[Kind, int] = {}
    alike: dict[tuple[GpuRequest, Resources, Passed, int], list[PodFacts]] = {}
    described = beside.kinds([(pod.occupant, pod.rules) for pod in by_name])
    for pod, own_kind in zip(by_name, described, strict=True):
        kind = own_kind
        if kind not in kinds and len(kinds) >= MOST_KINDS:
            # Only kube-scheduler knows the rules of the others.
            kind = Kind(Occupant(), PodRules(pod.rules.nodes), own_kind.kept_off)
        number = kinds.setdefault(kind, len(kinds))
        passed = without.get(pod.uid, frozenset())
        equal = alike.setdefault((pod.request, pod.requests, passed, number), [])
        equal.append(pod)
    groups: list[Group] = []
    for (request, requests, passed, kind_number), equal in alike.items():
        groups.append(
            Group(
                tuple(equal),
                request,
                requests,
                passed,
                kind_number,
                number=len(groups),
            )
        )
    return groups, beside.admission(list(kinds), tries)


def exchanged_places(groups: Iterable[Group], places: Mapping[str, str]) -> dict[str, str]:
    """UID to node, where a pod and another that is alike exchange nodes if kube-scheduler refuses a node for the pod.

    It may have refused the node only because it came to the pods in another order: among pods that are to be spread
    evenly, each place is open at its turn. The pod exchanges with the last one in `places`, to which kube-scheduler
    comes last.
    """
    exchanged = dict(places)
    alike: dict[Hashable, dict[str, Passed]] = {}
    for group in groups:
        pods = alike.setdefault((group.request, group.requests, group.kind), {})
        pods.update((pod.uid, group.passed) for pod in group.pods)
    for pods in alike.values():
        last_first = [uid for uid in reversed(list(places)) if uid in pods]
        for uid in pods:
            partner = _partner(uid, pods, exchanged, last_first)
            if partner is not None:
                refused = exchanged[uid]
                exchanged[uid] = exchanged[partner]
                exchanged[partner] = refused
    return exchanged


def _partner(
    uid: str,
    pods: Mapping[str, Passed],
    places: Mapping[str, str],
    last_first: Iterable[str],
) -> str | None:
    """The pod with which one exchanges its node; None if it keeps its own."""
    node = places.get(uid)
    if node is None or node not in pods[uid]:
        return None
    for other in last_first:
        is_accepted_there = places[other] not in pods[uid]
        is_other_accepted_here = node not in pods[other]
        if is_accepted_there and is_other_accepted_here:
            return other
    return None


def _by_number(pod: PodFacts) -> tuple[str, int, str]:
    """Pods in the order of the numbers at the end of their names."""
    namespace, name = pod.name
    return namespace, len(name), name
