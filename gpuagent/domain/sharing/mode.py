"""Modes of a node: the values of `ack.node.gpu.schedule`, with the resources and promises of each mode."""

import enum
from dataclasses import dataclass
from typing import Self

GPU_MEM = "aliyun.com/gpu-mem"
GPU_CORE = "aliyun.com/gpu-core.percentage"
GPU_WHOLE = "aliyun.com/gpu"
GPU_COUNT = "aliyun.com/gpu-count"
"""Number of GPUs of the node, an amount that kubelet does not manage."""

MODE_LABEL = "ack.node.gpu.schedule"
PLACEMENT_LABEL = "ack.node.gpu.placement"
GPU_COUNT_LABEL = "aliyun.com/gpu-count"
JOB_LABEL = "gpu-topology"
"""Pod label: name of the distributed job the pod belongs to."""
REPLICAS_LABEL = "gpu-topology-replica"
"""Pod label: how many pods the job has."""
GROUP_ANNOTATION = "topology.kubernetes.io/gpu-group"
"""Pod annotation of a scheduler: the GPUs it chose for the pod, comma-separated minor numbers."""
VISIBLE_ANNOTATION = "topology.kubernetes.io/gpu-visible"
"""Pod annotation of a scheduler: the GPUs that the pod's containers may see, those of its job on the node."""
DRA_DRIVER = "gpu.gpuagent.io"
"""Name of the DRA driver, in ResourceSlices and DeviceClasses."""
DISABLE_LABEL = "cgpu.disable.isolation"
"""Node label: `true` makes cGPU run containers without isolation."""

CORE_PERCENT_PER_GPU = 100


class Mode(enum.StrEnum):
    """Values of the node label `ack.node.gpu.schedule`; exactly one is in force on a node."""

    DEFAULT = "default"
    SHARE = "share"
    CGPU = "cgpu"
    MPS = "mps"
    CORE_MEM = "core_mem"
    TOPOLOGY = "topology"
    DRA = "dra"
    """The node's GPUs are devices of ResourceClaims, and every resource is at zero."""


class Placement(enum.StrEnum):
    """Values of the node label `ack.node.gpu.placement`: how shared requests fill the GPUs of a node."""

    BINPACK = "binpack"
    SPREAD = "spread"


class Isolates(enum.StrEnum):
    """Resources that a mode or a driver isolates between containers on one GPU."""

    MEMORY = "memory"
    COMPUTE = "compute"


class Kind(enum.StrEnum):
    """The resource and the mode of a device id, which are its middle part.

    The mode is part of the id so that kubelet's allocations show the mode, and its promise, for every unit. A memory
    unit of `share`, without isolation, differs from one of `cgpu`.

    Attributes:
        mode: the mode that advertises it.
        is_whole: one device is one GPU.
        is_memory: one device is an amount of memory.
    """

    MEMORY_SHARE = "ms", Mode.SHARE
    MEMORY_CGPU = "mc", Mode.CGPU
    MEMORY_MPS = "mp", Mode.MPS
    MEMORY_CORE_MEM = "mm", Mode.CORE_MEM
    CORE_CORE_MEM = "cm", Mode.CORE_MEM
    WHOLE_TOPOLOGY = "gt", Mode.TOPOLOGY
    WHOLE_DEFAULT = "gd", Mode.DEFAULT

    mode: Mode
    is_whole: bool
    is_memory: bool

    def __new__(cls, code: str, mode: Mode) -> Self:
        kind = str.__new__(cls, code)
        kind._value_ = code
        kind.mode = mode
        kind.is_whole = code[0] == "g"
        kind.is_memory = code[0] == "m"
        return kind


PROMISES: dict[Mode, frozenset[Isolates]] = {
    Mode.DEFAULT: frozenset(),
    Mode.SHARE: frozenset(),
    Mode.CGPU: frozenset({Isolates.MEMORY}),
    Mode.MPS: frozenset({Isolates.MEMORY}),
    Mode.CORE_MEM: frozenset({Isolates.MEMORY, Isolates.COMPUTE}),
    Mode.TOPOLOGY: frozenset(),
    Mode.DRA: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Resources:
    """The extended resources of a node, and the kind of unit that each mode advertises as each resource."""

    exclusive: str | None = None
    """Resource of mode `default`; None leaves whole GPUs to NVIDIA's own plugin."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every registered resource, in any mode."""
        always = (GPU_MEM, GPU_CORE, GPU_WHOLE)
        if self.exclusive is None:
            return always
        return (*always, self.exclusive)

    def in_mode(self, mode: Mode) -> dict[str, Kind]:
        """Resource name to kind of unit, for the resources above zero in `mode`."""
        if mode is Mode.DEFAULT:
            return {self.exclusive: Kind.WHOLE_DEFAULT} if self.exclusive else {}
        return _IN_MODE[mode]

    def of(self, kind: Kind) -> str:
        """Name of the resource of `kind`; empty if no mode advertises it."""
        for name, advertised in self.in_mode(kind.mode).items():
            if advertised is kind:
                return name
        return ""


def other_resource(resource: str) -> str:
    """The resource that a container of mode core_mem has beside `resource`, on the same GPU."""
    return GPU_CORE if resource == GPU_MEM else GPU_MEM


_IN_MODE: dict[Mode, dict[str, Kind]] = {
    Mode.SHARE: {GPU_MEM: Kind.MEMORY_SHARE},
    Mode.CGPU: {GPU_MEM: Kind.MEMORY_CGPU},
    Mode.MPS: {GPU_MEM: Kind.MEMORY_MPS},
    Mode.CORE_MEM: {GPU_MEM: Kind.MEMORY_CORE_MEM, GPU_CORE: Kind.CORE_CORE_MEM},
    Mode.TOPOLOGY: {GPU_WHOLE: Kind.WHOLE_TOPOLOGY},
    Mode.DRA: {},
}
