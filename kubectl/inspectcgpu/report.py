"""The use of each GPU of a cluster, as one value: its nodes with their GPUs and pods, and the pods that wait."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM
from inspectcgpu.read.agent_page import SeenProblem
from inspectcgpu.read.gpu_node import GpuNode
from inspectcgpu.read.gpu_pod import GpuPod, Places
from inspectcgpu.read.resize import Resize
from inspectcgpu.read.unit import Measure
from inspectcgpu.read.usage import Usage

UNKNOWN = "?"
NO_GPUS_SEEN = "it sees no GPUs"


@dataclass(frozen=True, slots=True)
class Amount:
    """Units allocated, out of how many; None where that is not known."""

    allocated: int
    total: int | None

    def __str__(self) -> str:
        return f"{self.allocated}/{UNKNOWN if self.total is None else self.total}"


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU. `amounts` has the resources that its node advertises; `cause` is "" for a healthy one."""

    number: int
    amounts: Mapping[str, Amount]
    cause: str = ""
    model: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod: `places` are its GPUs, `pending` its requests without a GPU, and `why` the reason for those.

    `resize` is the change of its memory limit; None if it has the limit that it requested.
    """

    pod: GpuPod
    places: Places
    sources: Mapping[str, str]
    pending: Mapping[str, int]
    why: str = ""
    differs: str = ""
    usage: Usage | None = None
    resize: Resize | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node. `amounts` has resource to units allocated, those without a GPU included, out of the allocatable.

    `problems` are those that its agent reports; None if it did not answer.
    """

    node: GpuNode
    measure: Measure
    gpus: tuple[GpuReport, ...]
    amounts: Mapping[str, Amount]
    pending: Mapping[str, int]
    pods: tuple[PodReport, ...]
    links: tuple[tuple[str, ...], ...] = ()
    seen: bool = False
    unseen: str = ""
    problems: tuple[SeenProblem, ...] | None = None

    @property
    def unit(self) -> str:
        """The unit of memory: ``GiB``, ``256MiB``, or ``?``."""
        return str(self.measure.unit) if self.measure.unit else UNKNOWN


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster. `waiting` are pods without a node, and refused ones."""

    nodes: tuple[NodeReport, ...]
    waiting: tuple[PodReport, ...]
    usage_problem: str = ""
    problems: tuple[str, ...] = ()

    @property
    def sharing(self) -> tuple[NodeReport, ...]:
        """The nodes with shares of GPUs, by memory or by compute."""
        return tuple(node for node in self.nodes if GPU_MEM in node.amounts or GPU_CORE in node.amounts)

    @property
    def without_gpu(self) -> tuple[PodReport, ...]:
        """The pods that ask for GPUs and have none: those on a node, then those on none."""
        on_nodes = (pod for node in self.nodes for pod in node.pods if pod.pending)
        return (*on_nodes, *self.waiting)

    @property
    def pods(self) -> Iterator[PodReport]:
        """All pods that ask for GPUs."""
        for node in self.nodes:
            yield from node.pods
        yield from self.waiting

    def having(self, resource: str) -> tuple[NodeReport, ...]:
        """The nodes with an amount of `resource`."""
        return tuple(node for node in self.nodes if resource in node.amounts)

    def total(self, nodes: Iterable[NodeReport], resource: str) -> Amount:
        """The sum over those nodes; unknown amounts count as 0."""
        amounts = [node.amounts[resource] for node in nodes]
        allocated = sum(amount.allocated for amount in amounts)
        total = sum(amount.total or 0 for amount in amounts)
        return Amount(allocated, total)


def of_namespace(report: ClusterReport, namespace: str) -> ClusterReport:
    """The report with the pods of one namespace. Amounts still count the pods of all, because they share the GPUs."""
    nodes = [replace(node, pods=_pods_of(node.pods, namespace)) for node in report.nodes]
    return replace(report, nodes=tuple(nodes), waiting=_pods_of(report.waiting, namespace))


def _pods_of(pods: Iterable[PodReport], namespace: str) -> tuple[PodReport, ...]:
    return tuple(pod for pod in pods if pod.pod.name.namespace == namespace)
