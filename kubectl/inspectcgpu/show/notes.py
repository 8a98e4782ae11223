"""Notes below the numbers: unhealthy GPUs, doubts, pods with wrong annotations, agents that did not answer."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gpuagent.domain.sharing.mode import GPU_MEM
from inspectcgpu.read.gpu_node import RESOURCES, GpuNode
from inspectcgpu.report import NO_GPUS_SEEN, UNKNOWN, ClusterReport, NodeReport, PodReport

MANY = 5
"""The most names in a sentence; it counts the others."""


def notes(report: ClusterReport) -> list[str]:
    """All of them, a sentence each."""
    texts = list(report.problems)
    texts += _about_nodes(report.nodes)
    texts += _about_units(report)
    for pod in _pods(report):
        texts += _pod_notes(pod)
    texts += _unseen(report.nodes)
    return texts


def _about_nodes(nodes: Iterable[NodeReport]) -> Iterator[str]:
    """What is wrong with nodes; nodes with the same note share a sentence."""
    names_by_note: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for text in node_notes(node):
            names_by_note[text].append(node.node.name)
    for text, names in names_by_note.items():
        yield f"node {some(names)}: {text}"


def _about_units(report: ClusterReport) -> Iterator[str]:
    """Units of memory of which a sum over the nodes makes no sense, or may make none."""
    names_by_unit: dict[str, list[str]] = defaultdict(list)
    for node in report.having(GPU_MEM):
        if node.node.offered(GPU_MEM):
            names_by_unit[node.unit].append(node.node.name)
    if len(names_by_unit) > 1:
        counts = ", ".join(f"{unit} ({len(names)})" for unit, names in sorted(names_by_unit.items()))
        yield f"nodes count GPU memory in different units: {counts}"
    unknown = names_by_unit.get(UNKNOWN, [])
    if len(unknown) > 1:
        yield f"the unit of node {some(unknown)} is not known: their sum is right if they count alike"


def _pod_notes(report: PodReport) -> Iterator[str]:
    name = report.pod.name
    if report.why and not report.pending:
        yield f"pod {name}: {report.why}"
    if report.differs:
        yield f"pod {name}: {report.differs}"
    if report.resize and report.resize.refused:
        yield f"pod {name}: its memory limit is not changed: {report.resize.refused}"


def _pods(report: ClusterReport) -> Iterator[PodReport]:
    for node in report.nodes:
        yield from node.pods


def node_notes(node: NodeReport) -> Iterator[str]:
    """What the inspector sees of a node that is not as it should be."""
    for gpu in node.gpus:
        if gpu.cause:
            cause = "" if gpu.cause == "Unhealthy" else f" ({gpu.cause})"
            yield f"GPU {gpu.number} is unhealthy{cause}"
    if node.measure.doubt and not node.seen:
        yield node.measure.doubt
    spec = node.node
    if not any(spec.offered(name) for name in RESOURCES):
        yield from _nothing_advertised(spec)
        return
    if spec.problem:
        yield spec.problem
    yield from amount_notes(node)


def _nothing_advertised(spec: GpuNode) -> Iterator[str]:
    if spec.needs_no_amounts:
        return
    mode = f"mode {spec.mode}, and " if spec.mode else ""
    cause = f": {spec.problem}" if spec.problem else ""
    yield f"{mode}nothing is advertised{cause}"


def amount_notes(node: NodeReport) -> Iterator[str]:
    """Amounts that are lower than they should be, and no unhealthy GPU that would say why."""
    spec = node.node
    unhealthy = any(gpu.cause for gpu in node.gpus)
    for name in RESOURCES:
        allocatable = spec.allocatable.get(name, 0)
        capacity = spec.capacity.get(name, 0)
        is_explained = unhealthy and allocatable > 0
        if allocatable < capacity and not is_explained:
            yield (
                f"{allocatable} of {capacity} {name} are allocatable: GPUs are unhealthy, or the node's agent is away"
            )


def _unseen(nodes: Iterable[NodeReport]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node.unseen:
            by_reason[node.unseen].append(node.node.name)
    for reason, names in by_reason.items():
        if reason == NO_GPUS_SEEN:
            yield f"the agent of node {some(names)} sees no GPUs: what labels and annotations say of them is shown"
            continue
        yield f"the agent of node {some(names)} could not be asked: {reason}"


def some(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more
