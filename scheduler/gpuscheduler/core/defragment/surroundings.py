"""What a search for a plan looks at. It changes nothing of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.defragment.budgets import Budgets
from gpuscheduler.core.links import Links
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.ranking import Ranking


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The cluster.

    Attributes:
        usage: nodes and their users.
        links: between the GPUs of nodes.
        ranking: of the nodes.
        pods: by UID, as the watch shows them.
        budgets: PodDisruptionBudgets.
        passed_over: names of the nodes that a pod does not get at a time.
        why_kept: why a pod must not be moved at a time for another reason than its own, after "it "; empty if it may.
    """

    usage: ClusterUsage
    links: Links
    ranking: Ranking
    pods: Mapping[str, PodFacts]
    budgets: Budgets
    passed_over: Callable[[PodFacts, float], frozenset[str]]
    why_kept: Callable[[PodFacts, float], str]

    def why_not_moved(self, pod: PodFacts, waiting: PodFacts, now: float) -> str:
        """Why a pod must not be moved for one that waits, after "it "; empty if it may."""
        if not pod.node or pod.deleting or pod.ended:
            return "is not running"
        if is_in_gang(pod):
            return "starts together with other pods"
        if pod.used is None:
            return "has GPUs that are not known"
        if pod.priority > waiting.priority:
            return "has a higher priority"
        return pod.mobility.why_not or self.why_kept(pod, now) or self.budgets.obstacle([pod])


def is_in_gang(pod: PodFacts) -> bool:
    """Whether a pod is one of several that start together, by any source, also if the others are not known."""
    return pod.job is not None or pod.gang_ref is not None or pod.in_native_group


def why_not_served(pod: PodFacts) -> str:
    """Why nothing is moved for a pod whatever is on the nodes, after "it "; empty if something may be."""
    if pod.node or pod.deleting or pod.gated or pod.ended:
        return "does not wait for room"
    if is_in_gang(pod):
        return "starts together with other pods"
    if pod.request.problem or not pod.request.kind.gives_gpus:
        return "asks for no GPUs that a node can give"
    if pod.has_claims:
        return "claims volumes or devices, which may keep it off nodes"
    if pod.rules.unread:
        return f"has {pod.rules.unread}, so not all of its rules are known"
    # A pod that leaves, or comes elsewhere, may change which nodes such rules accept.
    return "has rules about other pods" if pod.rules.affinity or pod.rules.spread else ""
