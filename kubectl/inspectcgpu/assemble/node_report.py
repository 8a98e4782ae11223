"""The report of one node: its GPUs, and how much of each is allocated.

Three sources know the GPUs of a node. Its agent knows them best, then a ConfigMap, then the node's labels and amounts.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE
from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.assemble.pod_report import Witness, pod_report
from inspectcgpu.read.agent_page import AgentView
from inspectcgpu.read.configmaps import HEALTHY, GpuConfigMap
from inspectcgpu.read.gpu_node import RESOURCES, GpuNode
from inspectcgpu.read.gpu_pod import GpuPod
from inspectcgpu.read.unit import Measure, measure, part_of_each
from inspectcgpu.report import NO_GPUS_SEEN, Amount, GpuReport, NodeReport, PodReport


def node_report(node: GpuNode, pods: Sequence[GpuPod], facts: ClusterFacts) -> NodeReport:
    """The node with its pods."""
    page = facts.views.get(node.name)
    configmap = facts.configmaps.get(node.name)
    # Without a driver an agent shows no GPUs: labels and annotations then count.
    view = page if page and page.gpus else None
    unseen = facts.unseen.get(node.name, "")
    known = _numbers(node, view, configmap)
    witness = Witness(page, unseen, known)
    reports = tuple(pod_report(pod, witness, facts) for pod in pods)
    measured = _measured(node, page)
    shown = _shown_resources(node, reports)
    gpus = _gpus(known, shown, reports, _Details(node, measured, view, configmap))
    pending: Counter[str] = Counter()
    for report in reports:
        pending.update(report.pending)
    amounts = {}
    for resource in shown:
        on_gpus = sum(gpu.amounts[resource].allocated for gpu in gpus)
        amounts[resource] = Amount(on_gpus + pending[resource], node.allocatable.get(resource, 0))
    return NodeReport(
        node=node,
        measure=measured,
        gpus=gpus,
        amounts=amounts,
        pending=dict(pending),
        pods=reports,
        links=configmap.links if configmap else (),
        seen=view is not None,
        unseen=NO_GPUS_SEEN if page and not view else unseen,
        problems=page.problems if page else None,
    )


def _measured(node: GpuNode, page: AgentView | None) -> Measure:
    """The unit of memory, which the agent knows best, and how much of it each GPU has."""
    measured = measure(node) if node.offered(GPU_MEM) else Measure(None, None)
    if page and page.unit:
        return Measure(page.unit, measured.per_gpu, measured.doubt)
    return measured


def _held(pods: Iterable[PodReport]) -> Counter[tuple[int, str]]:
    """Units that the pods hold together, by number of the GPU and resource."""
    held: Counter[tuple[int, str]] = Counter()
    for pod in pods:
        for resource, units_by_gpu in pod.places.items():
            for gpu, units in units_by_gpu.items():
                held[gpu, resource] += units
    return held


def _shown_resources(node: GpuNode, pods: Iterable[PodReport]) -> list[str]:
    """The resources that the node advertises, and those that its pods ask for, as after a change of its mode."""
    wanted: set[str] = set()
    for pod in pods:
        wanted.update(pod.pod.asks)
    return [name for name in RESOURCES if node.offered(name) or name in wanted]


def _gpus(
    known: Sequence[int] | None,
    shown: Sequence[str],
    pods: Sequence[PodReport],
    details: "_Details",
) -> tuple[GpuReport, ...]:
    """The GPUs of the node; those that its pods hold if it is not known which it has."""
    held = _held(pods)
    numbers = sorted({number for number, _ in held}) if known is None else known
    gpus: list[GpuReport] = []
    for number in numbers:
        amounts: dict[str, Amount] = {}
        for resource in shown:
            amounts[resource] = Amount(held[number, resource], details.total(number, resource))
        gpu = GpuReport(
            number,
            amounts,
            cause=details.cause(number),
            model=details.model(number),
            memory_mib=details.memory_mib(number),
        )
        gpus.append(gpu)
    return tuple(gpus)


def _numbers(node: GpuNode, view: AgentView | None, configmap: GpuConfigMap | None) -> list[int] | None:
    """Minor numbers of the node's GPUs; None where no source has their number."""
    if view:
        return sorted(view.gpus)
    if configmap and configmap.whole and configmap.health:
        return sorted(configmap.health)
    return None if node.gpu_count is None else list(range(node.gpu_count))


@dataclass(frozen=True, slots=True)
class _Details:
    """The total amounts of a GPU, its model, and whether it is unhealthy, each from the best source."""

    node: GpuNode
    measured: Measure
    view: AgentView | None
    configmap: GpuConfigMap | None

    def total(self, number: int, resource: str) -> int | None:
        if self.view:
            return self.view.gpus[number].units.get(resource, 0)
        if not self.node.offered(resource):
            return 0
        if resource == GPU_MEM:
            return self.measured.per_gpu
        if resource == GPU_WHOLE and self.configmap and self.configmap.whole:
            return 1
        return part_of_each(self.node, resource)

    def cause(self, number: int) -> str:
        if self.view:
            gpu = self.view.gpus[number]
            return "" if gpu.healthy else gpu.cause or "Unhealthy"
        word = self.configmap.health.get(number, HEALTHY) if self.configmap else HEALTHY
        return "" if word == HEALTHY else word or "Unhealthy"

    def model(self, number: int) -> str:
        if self.view:
            return self.view.gpus[number].model
        # The labels of a node are about its first GPU.
        return self.node.model if number == 0 else ""

    def memory_mib(self, number: int) -> int | None:
        if self.view:
            return self.view.gpus[number].memory_mib
        return self.node.first_mib if number == 0 else None
