"""Notes below the numbers: unhealthy GPUs, doubts, pods with wrong annotations, agents that were not queried."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gpuagent.domain.sharing.mode import GPU_MEM
from inspectcgpu.read.gpu_node import RESOURCES, GpuNode
from inspectcgpu.report import NO_GPUS_SEEN, UNKNOWN, ClusterReport, NodeReport, PodReport

MANY = 5
"""The most names in a sentence; it counts the others."""


def notes(report: ClusterReport) -> list[str]:
    """All of them, a sentence each."""
    found = list(report.problems)
    alike: dict[str, list[str]] = defaultdict(list)
    for node in report.nodes:
        for text in node_notes(node):
            alike[text].append(node.node.name)
    found.extend(f"node {some(names)}: {text}" for text, names in alike.items())
    units: dict[str, list[str]] = defaultdict(list)
    for node in report.having(GPU_MEM):
        if node.node.offered(GPU_MEM):
            units[node.unit].append(node.node.name)
    if len(units) > 1:
        counts = ", ".join(f"{unit} ({len(names)})" for unit, names in sorted(units.items()))
        found.append(f"nodes count GPU memory in different units: {counts}")
    if len(unknown := units.get(UNKNOWN, [])) > 1:
        found.append(f"the unit of node {some(unknown)} is not known: their sum is right if they count alike")
    for pod in _pods(report):
        found += _pod_notes(pod)
    return [*found, *_unseen(report.nodes)]


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
        has, shall = spec.allocatable.get(name, 0), spec.capacity.get(name, 0)
        if has < shall and not (unhealthy and has):
            yield f"{has} of {shall} {name} are allocatable: GPUs are unhealthy, or the node's agent is away"


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
