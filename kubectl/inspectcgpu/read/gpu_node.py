"""A Node as the inspector needs it: its resources, its labels about GPUs, and its address."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.fleet.node_problems import NodeProblem
from gpuagent.domain.fleet.node_summary import NodeReading, node_reading
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import (
    CORE_PERCENT_PER_GPU,
    GPU_CORE,
    GPU_MEM,
    GPU_WHOLE,
    MODE_LABEL,
    PLACEMENT_LABEL,
    Mode,
)

GPU_COUNT = "aliyun.com/gpu-count"
RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)
WITHOUT_AMOUNTS = ("", Mode.DEFAULT)
"""Values of the mode's label with which a healthy node may have none of `RESOURCES`."""
MOST_GPUS = 128
"""A larger count in a node's labels is ignored: each GPU would be a column."""
_LABEL = "aliyun.accelerator/nvidia_"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """One node that has, or should have, GPUs.

    Attributes:
        name: of the Node.
        address: its InternalIP; "" where it has none.
        mode: raw value of the label `ack.node.gpu.schedule`; "" without.
        placement: raw value of the label `ack.node.gpu.placement`; "" without.
        model: of the first GPU, by the node's label; "" without.
        first_mib: memory of the first GPU by the node's label; None without.
        gpu_count: how many GPUs the node has; None where no label or amount shows it.
        capacity: resource to units, unhealthy GPUs included; only those that are not 0.
        allocatable: resource to units, unhealthy GPUs left out; only those that are not 0.
        reading: what the Node says of its agent, for the summary of the node.
    """

    name: str
    address: str = ""
    mode: str = ""
    placement: str = ""
    model: str = ""
    first_mib: int | None = None
    gpu_count: int | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    reading: NodeReading | None = None

    @property
    def agent(self) -> bool:
        """Whether it has the condition that this project's agent writes."""
        return bool(self.reading and self.reading.report)

    @property
    def reported(self) -> tuple[NodeProblem, ...]:
        """The problems in that condition, the worst first."""
        return self.reading.report.problems if self.reading and self.reading.report else ()

    @property
    def problem(self) -> str:
        """The blocking ones in words; "" without any."""
        return "; ".join(str(problem) for problem in self.reported if problem.severity == "blocking")

    def offered(self, resource: str) -> int:
        """All units, including those of unhealthy GPUs, which are not allocatable."""
        return max(self.capacity.get(resource, 0), self.allocatable.get(resource, 0))

    @property
    def needs_no_amounts(self) -> bool:
        """Whether only its health is of interest: in its mode, the GPUs may be left to another plugin."""
        has_amounts = any(map(self.offered, RESOURCES))
        return self.mode in WITHOUT_AMOUNTS and not self.problem and not has_amounts


def read_node(node: Mapping[str, Any]) -> GpuNode | None:
    """Parse the node; None where it has none of these resources, and no agent. Never raises."""
    meta = mapping(node.get("metadata"))
    status = mapping(node.get("status"))
    labels = mapping(meta.get("labels"))
    capacity = _amounts(mapping(status.get("capacity")))
    allocatable = _amounts(mapping(status.get("allocatable")))
    mode = text(labels.get(MODE_LABEL))
    reading = node_reading(node)
    has_amount = any(capacity.get(name) or allocatable.get(name) for name in RESOURCES)
    should_have_amounts = mode not in WITHOUT_AMOUNTS
    # An agent that has a problem may advertise nothing, whatever the label: without one, the mode before stays.
    has_agent = bool(reading and reading.report)
    if not (has_amount or should_have_amounts or has_agent):
        return None
    return GpuNode(
        name=sys.intern(text(meta.get("name"))),
        address=_address(status),
        mode=mode,
        placement=text(labels.get(PLACEMENT_LABEL)),
        model=text(labels.get(f"{_LABEL}name")),
        first_mib=_mib(text(labels.get(f"{_LABEL}mem"))),
        gpu_count=_gpu_count(capacity, allocatable, text(labels.get(f"{_LABEL}count"))),
        capacity=capacity,
        allocatable=allocatable,
        reading=reading,
    )


def read_node_with_gpus(node: Mapping[str, Any]) -> GpuNode | None:
    """Parse the node as `read_node` does; None also where it needs no amounts."""
    read = read_node(node)
    return None if read is None or read.needs_no_amounts else read


ReadNode = Callable[[Mapping[str, Any]], GpuNode | None]
"""`read_node`, which the health of nodes needs, or `read_node_with_gpus`."""


def _amounts(side: Mapping[str, Any]) -> dict[str, int]:
    names = (*RESOURCES, GPU_COUNT)
    return {name: units for name in names if (units := amount(str(side.get(name, 0))))}


def _gpu_count(capacity: Mapping[str, int], allocatable: Mapping[str, int], label: str) -> int | None:
    counts = (
        capacity.get(GPU_COUNT),
        allocatable.get(GPU_COUNT),
        amount(label),
        capacity.get(GPU_WHOLE),
        capacity.get(GPU_CORE, 0) // CORE_PERCENT_PER_GPU,
    )
    return next((count for count in counts if count and count <= MOST_GPUS), None)


def _address(status: Mapping[str, Any]) -> str:
    for address in mappings(status.get("addresses")):
        if address.get("type") == "InternalIP":
            return text(address.get("address"))
    return ""


def _mib(label: str) -> int | None:
    """The memory that a label such as ``15109MiB`` names; None for anything else."""
    if not label.endswith("MiB"):
        return None
    return amount(label.removesuffix("MiB")) or None
