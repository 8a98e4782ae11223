"""The summary of each node, which its line shows: the same that the scheduler's page works out."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuagent.domain.fleet.node_problems import SEVERITIES, NodeProblem, Severity
from gpuagent.domain.fleet.node_summary import GpuUse, NodeReading, NodeSummary, node_summary
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from inspectcgpu.order import Value, in_order
from inspectcgpu.report import ClusterReport, GpuReport, NodeReport

Column = Callable[[NodeReport], Value]


def summary_of(node: NodeReport) -> NodeSummary:
    """Sum up a node. What its agent reports beside the node's condition is among the problems."""
    reading = node.node.reading or NodeReading(node.node.name, label=node.node.mode)
    pods_of = Counter(number for pod in node.pods for number in _gpus_of(pod.places))
    waiting = sum(bool(pod.pending) for pod in node.pods)
    unit = node.measure.unit
    summary = node_summary(
        reading,
        [_use(gpu, pods_of[gpu.number]) for gpu in node.gpus],
        unit_mib=0 if unit is None else unit.mib,
        pods=len(node.pods),
        waiting=waiting,
        others=_others(node, reading),
    )
    model = summary.model or next((gpu.model for gpu in node.gpus if gpu.model), "")
    return replace(summary, model=model)


def sorted_by(report: ClusterReport, column: Column) -> ClusterReport:
    """The report with its nodes in the order of a column, those that are equal there by name."""
    by_name = sorted(report.nodes, key=lambda node: node.node.name)
    return replace(report, nodes=in_order(by_name, column))


def _gpus_of(places: Mapping[str, Mapping[int, int]]) -> set[int]:
    """The GPUs of a pod, each once."""
    return {number for gpus in places.values() for number in gpus}


def _use(gpu: GpuReport, pods: int) -> GpuUse:
    memory = gpu.amounts.get(GPU_MEM)
    core = gpu.amounts.get(GPU_CORE)
    whole = gpu.amounts.get(GPU_WHOLE)
    return GpuUse(
        minor=gpu.number,
        memory=(memory.total or 0) if memory else 0,
        core=(core.total or 0) if core else 0,
        whole=bool(whole and whole.total),
        usable=not gpu.cause,
        held_memory=memory.allocated if memory else 0,
        held_core=core.allocated if core else 0,
        # Pods of other namespaces may be left out of the report; their amounts are not.
        pods=max(pods, whole.allocated if whole else 0),
    )


def _others(node: NodeReport, reading: NodeReading) -> Iterable[NodeProblem]:
    """Problems that the Node object does not say: those that the agent reports now, and GPUs that are unhealthy."""
    in_condition = (
        {(problem.reason, problem.message) for problem in reading.report.problems} if reading.report else set()
    )
    for problem in node.problems or ():
        if (problem.reason, problem.message) not in in_condition:
            yield NodeProblem(_severity(problem.severity), problem.reason, problem.message)
    if node.problems or in_condition:
        return
    for gpu in node.gpus:
        if gpu.cause:
            yield NodeProblem("warning", "GPUUnhealthy", f"GPU {gpu.number} is unhealthy: {gpu.cause}")


def _severity(text: str) -> Severity:
    return next((known for known in SEVERITIES if known == text), "warning")


def _held(node: NodeReport) -> float:
    """The held part, of memory or of whole GPUs."""
    summary = summary_of(node)
    return max(summary.memory.part, summary.whole.part)


def _free(node: NodeReport) -> float:
    """MiB of the largest free share; a whole GPU counts as its memory."""
    summary = summary_of(node)
    each_mib = node.node.first_mib or 1
    return summary.largest.memory * max(summary.unit_mib, 1) + summary.largest.gpus * each_mib


def _badness(node: NodeReport) -> float:
    """The severity of the worst problem, then how many problems there are."""
    summary = summary_of(node)
    if not summary.problems:
        return 0.0
    worst: Sequence[str] = SEVERITIES
    return (len(worst) - worst.index(summary.severity)) * 1000 + len(summary.problems)


COLUMNS: Mapping[str, Column] = {
    "name": lambda node: node.node.name,
    "mode": lambda node: summary_of(node).mode,
    "model": lambda node: summary_of(node).model,
    "gpus": lambda node: summary_of(node).gpus,
    "held": _held,
    "free": _free,
    "pods": lambda node: len(node.pods),
    "waiting": lambda node: summary_of(node).waiting,
    "problems": _badness,
}
"""What nodes can be sorted by: `combinations.COMMANDS` has the same names."""
