"""The summary of one node, which the scheduler's page and `kubectl inspect cgpu` show in one line.

Use: read the Node object with `node_reading`, say how much of each GPU pods hold, and call `node_summary`::

    reading = node_reading(node)          # decoded JSON of the Node; None if the node has nothing to do with GPUs
    gpus = [GpuUse(0, memory=80, core=100, held_memory=8, held_core=10, pods=1), ...]
    summary = node_summary(reading, gpus, unit_mib=1024, pods=1, waiting=0)
    summary.memory                        # Amount(held=8, total=640), units of aliyun.com/gpu-mem
    summary.largest                       # FreeShare(memory=80, core=100): the most that one pod gets on one GPU
    summary.problems, summary.severity    # the worst first; "" if there is none

The agent knows how much memory is *used*. That is not on the Node object, because it changes all the time and each
change would be a write. So a summary does not have it: `waste` adds it up from what the agents say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuagent.domain.fleet.node_problems import AgentReport, NodeProblem, Severity, agent_report, worst_first
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_MEM, GPU_WHOLE, MODE_LABEL, Mode

RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)
_MODEL_LABEL = "aliyun.accelerator/nvidia_name"
_COUNT_LABEL = "aliyun.accelerator/nvidia_count"
_MOST_GPUS = 128
"""A larger number in a node's labels or amounts is ignored."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What the Node object alone says of its GPUs.

    Attributes:
        name: of the Node.
        label: value of the label `ack.node.gpu.schedule`; empty without.
        model: of the first GPU, by the agent's label; empty without.
        gpu_count: how many GPUs the node has, by the agent's amount or label; None if neither says it.
        is_ready: kubelet is there and ready.
        report: of the agent; None if no agent of ours has run on the node.
        allocatable: resource to units of those of `RESOURCES` that the Node names, with those at 0.
    """

    name: str
    label: str = ""
    model: str = ""
    gpu_count: int | None = None
    is_ready: bool = True
    report: AgentReport | None = None
    allocatable: Mapping[str, int] = field(default_factory=dict, hash=False)


class GpuUse(NamedTuple):
    """One GPU, and how much of it pods hold or have reserved.

    A tuple takes less time to make, and a large cluster has tens of thousands of GPUs.

    Attributes:
        minor: its minor number.
        memory: units of `aliyun.com/gpu-mem`; 0 in modes without.
        core: percent of `aliyun.com/gpu-core.percentage`; 0 in modes without.
        whole: it is given as one `aliyun.com/gpu`.
        usable: it is healthy, not fenced, and no container holds it in another mode.
        held_memory: units that pods hold.
        held_core: percent that pods hold.
        pods: how many pods hold a part of it.
        takes_pods: the limit of pods that share it is not reached.
    """

    minor: int
    memory: int = 0
    core: int = 0
    whole: bool = False
    usable: bool = True
    held_memory: int = 0
    held_core: int = 0
    pods: int = 0
    takes_pods: bool = True


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a resource pods hold, out of how much: units of memory, percent of compute, or whole GPUs."""

    held: int = 0
    total: int = 0

    @property
    def part(self) -> float:
        """The held part, from 0 on; 0 of nothing."""
        return self.held / self.total if self.total else 0.0


class FreeShare(NamedTuple):
    """The most that one pod gets now: units of memory and percent of compute of one GPU, or whole GPUs of the node.

    `core` is 0 on a node that does not give out compute.
    """

    memory: int = 0
    core: int = 0
    gpus: int = 0

    def __bool__(self) -> bool:
        return any(self)


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One line about a node.

    Attributes:
        name: of the Node.
        mode: in force; empty if it is not known.
        model: of the first GPU; empty if it is not known.
        unit_mib: MiB of one unit of memory; 0 if it is not known.
        gpus: how many GPUs it has.
        usable: how many of them can be given to pods now.
        memory: units.
        core: percent, 100 for each GPU.
        whole: GPUs.
        largest: the largest share that is free.
        pods: how many pods hold GPUs of it.
        waiting: how many pods of it wait for theirs.
        problems: all of them, the worst first.
    """

    name: str
    mode: str
    model: str
    unit_mib: int
    gpus: int
    usable: int
    memory: Amount
    core: Amount
    whole: Amount
    largest: FreeShare
    pods: int
    waiting: int
    problems: tuple[NodeProblem, ...]

    @property
    def severity(self) -> Severity | str:
        """Of the worst problem; empty if there is none."""
        return self.problems[0].severity if self.problems else ""

    @property
    def is_ready(self) -> bool:
        """Whether the node serves what its mode promises."""
        return self.severity != "blocking"


def node_reading(node: Mapping[str, Any]) -> NodeReading | None:
    """Read a Node object (decoded JSON); None if neither an agent, an amount nor a label says that it has GPUs."""
    metadata = mapping(node.get("metadata"))
    labels = mapping(metadata.get("labels"))
    status = mapping(node.get("status"))
    allocatable = _amounts(mapping(status.get("allocatable")))
    capacity = _amounts(mapping(status.get("capacity")))
    label = text(labels.get(MODE_LABEL))
    report = agent_report(node)
    has_amounts = any(allocatable.values()) or any(capacity.values())
    is_published = NODE_GPUS_ANNOTATION in mapping(metadata.get("annotations"))
    has_mode = label not in {"", Mode.DEFAULT}
    if not (has_amounts or is_published or has_mode or report):
        return None
    return NodeReading(
        name=text(metadata.get("name")),
        label=label,
        model=text(labels.get(_MODEL_LABEL)),
        gpu_count=_gpu_count(status, labels),
        is_ready=_is_ready(status),
        report=report,
        allocatable=allocatable,
    )


def node_summary(  # noqa: PLR0913 (by name)
    reading: NodeReading,
    gpus: Sequence[GpuUse],
    *,
    unit_mib: int,
    pods: int,
    waiting: int = 0,
    others: Iterable[NodeProblem] = (),
) -> NodeSummary:
    """Sum up a node.

    Args:
        reading: the Node object.
        gpus: that schedulers may use, by minor number; empty if the node offers none, for example in mode `dra`.
        unit_mib: MiB of one unit of memory; 0 if it is not known.
        pods: how many pods hold GPUs of the node, or have them reserved.
        waiting: how many of them wait, for example because kubelet has not given them their GPUs yet.
        others: problems that the caller sees, and that the Node object does not say.
    """
    problems = tuple(worst_first([*_node_problems(reading, gpus), *others]))
    is_blocked = any(problem.severity == "blocking" for problem in problems)
    usable = () if is_blocked else tuple(gpu for gpu in gpus if gpu.usable)
    whole = [gpu for gpu in gpus if gpu.whole]
    shared = [gpu for gpu in gpus if not gpu.whole]
    return NodeSummary(
        name=reading.name,
        mode=_mode(reading, gpus),
        model=reading.model,
        unit_mib=unit_mib,
        gpus=max(len(gpus), reading.gpu_count or 0),
        usable=len(usable),
        memory=Amount(sum(gpu.held_memory for gpu in shared), sum(gpu.memory for gpu in shared)),
        core=Amount(sum(gpu.held_core for gpu in shared), sum(gpu.core for gpu in shared)),
        whole=Amount(sum(gpu.pods > 0 for gpu in whole), len(whole)),
        largest=_largest(usable),
        pods=pods,
        waiting=waiting,
        problems=problems,
    )


def free_share(gpu: GpuUse) -> FreeShare:
    """What a pod gets of a usable GPU. A GPU without compute left is not free, however much memory it has."""
    if not gpu.takes_pods:
        return FreeShare()
    if gpu.whole:
        return FreeShare(gpus=int(gpu.pods == 0))
    memory = max(gpu.memory - gpu.held_memory, 0)
    core = max(gpu.core - gpu.held_core, 0)
    lacks_memory = gpu.memory > 0 and not memory
    lacks_core = gpu.core > 0 and not core
    return FreeShare() if lacks_memory or lacks_core else FreeShare(memory, core)


def _largest(usable: Iterable[GpuUse]) -> FreeShare:
    shares = [free_share(gpu) for gpu in usable]
    gpus = sum(share.gpus for share in shares)
    # A pod may get several whole GPUs, and its share of memory comes from one GPU.
    return FreeShare(gpus=gpus) if gpus else max(shares, default=FreeShare())


def _node_problems(reading: NodeReading, gpus: Iterable[GpuUse]) -> list[NodeProblem]:
    """The problems that the Node object says: those of its agent, and those that the agent cannot report."""
    report = reading.report
    problems = list(report.problems) if report else []
    if not reading.is_ready:
        text = "kubelet does not report that the node is ready, so no pod is placed on it"
        problems.append(NodeProblem("blocking", "NodeNotReady", text))
        return problems
    if any(problem.severity == "blocking" for problem in problems):
        # It says why amounts are at 0.
        return problems
    offered = [gpu for gpu in gpus if gpu.usable]
    advertised = {
        GPU_MEM: any(gpu.memory for gpu in offered),
        GPU_CORE: any(gpu.core for gpu in offered),
        GPU_WHOLE: any(gpu.whole for gpu in offered),
    }
    for name, is_advertised in advertised.items():
        if is_advertised and reading.allocatable.get(name) == 0:
            problems.append(amount_at_zero(name))
    return problems


def amount_at_zero(resource: str) -> NodeProblem:
    """The problem of a node that publishes GPUs of which kubelet offers none."""
    text = (
        f"{resource} is 0 in the node's allocatable amounts although it publishes usable GPUs: its agent is away or "
        "restarts. Look at the agent's pod on the node"
    )
    return NodeProblem("blocking", "AmountAtZero", text)


def _mode(reading: NodeReading, gpus: Sequence[GpuUse]) -> str:
    """The mode in force; empty if it is not known.

    The agent says it. Of other agents, the GPUs say it, or the label, which may name a mode that is not in force.
    """
    if reading.report and reading.report.mode:
        return reading.report.mode
    if any(gpu.whole for gpu in gpus):
        return Mode.TOPOLOGY.value
    if any(gpu.core for gpu in gpus):
        return Mode.CORE_MEM.value
    return reading.label if reading.label in set(Mode) else ""


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Whether kubelet is ready. The status of a node whose kubelet is silent is Unknown."""
    ready = [condition for condition in mappings(status.get("conditions")) if condition.get("type") == "Ready"]
    return all(condition.get("status") == "True" for condition in ready)


def _amounts(side: Mapping[str, Any]) -> dict[str, int]:
    return {name: amount(str(side[name])) or 0 for name in RESOURCES if name in side}


def _gpu_count(status: Mapping[str, Any], labels: Mapping[str, Any]) -> int | None:
    capacity = mapping(status.get("capacity"))
    for count_text in (capacity.get(GPU_COUNT), labels.get(_COUNT_LABEL)):
        count = amount(str(count_text))
        if count is not None and count <= _MOST_GPUS:
            return count
    return None
