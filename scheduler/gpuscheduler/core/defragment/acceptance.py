"""Which nodes kube-scheduler accepts for the pods of a plan, whatever the GPUs."""

from dataclasses import replace

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.admission import Admission, Kind
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

MOST_KINDS = 32
"""Kinds of pods that are asked about in one search. To count the pods on nodes takes a while for each."""


class Acceptance:
    """Answers for one search, while nothing changes.

    Args:
        usage: nodes and their users.
    """

    def __init__(self, usage: ClusterUsage) -> None:
        self._usage = usage
        self._admissions: dict[Kind, Admission] = {}

    def accepts(self, pod: PodFacts, node: NodeUsage) -> bool:
        """Whether a pod may be on a node beside the pods that are there. Its amounts are not compared."""
        site = node.facts.site
        if pod.rules.obstacle(site):
            return False
        admission = self._admission(pod)
        return admission is not None and admission.accepts(0, site.name)

    def _admission(self, pod: PodFacts) -> Admission | None:
        """What the pods on nodes mean to a pod; None if too many kinds of pods were asked about."""
        pods = self._usage.pods
        rules = replace(pod.rules, nodes=_ANY)
        labels = pod.labels.only(pods.label_keys([rules]))
        occupant = Occupant(
            namespace=pod.name.namespace,
            labels=labels,
            anti_affinity=rules.anti_affinity,
            ports=rules.ports,
        )
        kind = Kind(occupant, rules)
        admission = self._admissions.get(kind)
        if admission is None and len(self._admissions) < MOST_KINDS:
            admission = pods.admission([kind])
            self._admissions[kind] = admission
        return admission


def has_resources(pod: PodFacts, node: NodeUsage) -> bool:
    """Whether a node has enough of CPU, memory and all that is not a GPU."""
    return pod.requests.times_in(node.facts.allocatable, node.used, 1) > 0


_ANY = PodRules().nodes
