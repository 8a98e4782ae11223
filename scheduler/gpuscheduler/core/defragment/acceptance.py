"""Which nodes kube-scheduler accepts for the pods of a plan, whatever the GPUs."""

from dataclasses import replace

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.constraints.checks import Kind
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

MOST_KINDS = 32
"""Kinds of pods that are asked about in one search. To count the pods on nodes takes a while for each."""
MOST_TRIES = 20_000
"""Work on the rules of pods that one search may take, see `Tries`: any author of pods may write large ones."""


class Acceptance:
    """Answers for one search, while nothing changes.

    Args:
        usage: nodes and their users.
    """

    def __init__(self, usage: ClusterUsage) -> None:
        self._usage = usage
        self._tries = Tries(MOST_TRIES)
        self._kinds: dict[str, Kind] = {}
        self._admissions: dict[Kind, Admission] = {}

    def accepts(self, pod: PodFacts, node: NodeUsage) -> bool:
        """Whether a pod may be on a node beside the pods that are there. Its amounts are not compared."""
        site = node.facts.site
        if pod.rules.obstacle(site):
            return False
        admission = self._admission(pod)
        is_accepted = admission is not None and admission.accepts(0, site.name)
        # Without tries, the answer means nothing.
        return is_accepted and not self._tries.gave_up

    def _admission(self, pod: PodFacts) -> Admission | None:
        """What the pods on nodes mean to a pod; None if too many kinds of pods were asked about."""
        pods = self._usage.pods
        kind = self._kinds.get(pod.uid)
        if kind is None:
            rules = replace(pod.rules, nodes=_ANY)
            (kind,) = pods.kinds([(pod.occupant, rules)])
            self._kinds[pod.uid] = kind
        admission = self._admissions.get(kind)
        if admission is None and len(self._admissions) < MOST_KINDS:
            admission = pods.admission([kind], self._tries)
            self._admissions[kind] = admission
        return admission


def has_resources(pod: PodFacts, node: NodeUsage) -> bool:
    """Whether a node has enough of CPU, memory and all that is not a GPU."""
    return pod.requests.times_in(node.facts.allocatable, node.used, 1) > 0


_ANY = PodRules().nodes
