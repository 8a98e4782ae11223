"""The report of a cluster: nodes, pods, and data of agents and ConfigMaps in, one value out."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.assemble.node_report import node_report
from inspectcgpu.read.gpu_node import GpuNode
from inspectcgpu.read.gpu_pod import GpuPod
from inspectcgpu.report import ClusterReport, NodeReport, PodReport


def build(facts: ClusterFacts) -> ClusterReport:
    """The report."""
    names = {node.name for node in facts.nodes}
    by_node: dict[str, list[GpuPod]] = defaultdict(list)
    waiting = []
    for pod in facts.pods:
        if pod.refused or not pod.node:
            waiting.append(PodReport(pod, {}, {}, pod.asks, pod.waits))
        elif pod.node in names:
            by_node[pod.node].append(pod)
    nodes = tuple(_node_at_least(node, by_node.get(node.name, ()), facts) for node in facts.nodes)
    return ClusterReport(nodes, tuple(waiting), facts.usage_problem, facts.problems)


def _node_at_least(node: GpuNode, pods: Sequence[GpuPod], facts: ClusterFacts) -> NodeReport:
    """The node; without the data of agents and ConfigMaps if they cannot be shown, so that other nodes still are."""
    try:
        return node_report(node, pods, facts)
    except Exception as err:  # noqa: BLE001 - whatever a page of another program makes of it
        unseen = {node.name: f"what it and ConfigMaps say cannot be shown ({type(err).__name__}: {err})"}
        return node_report(node, pods, replace(facts, views={}, configmaps={}, unseen=unseen))
