"""Modes of a node: what `ack.node.gpu.schedule` may say, what each mode sells and what it promises."""

import enum
from dataclasses import dataclass

GPU_MEM = "aliyun.com/gpu-mem"
GPU_CORE = "aliyun.com/gpu-core.percentage"
GPU_WHOLE = "aliyun.com/gpu"
GPU_COUNT = "aliyun.com/gpu-count"
"""An amount of the node that kubelet does not manage: how many GPUs there are."""

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
"""Pod annotation of a scheduler: the GPUs the pod's containers shall see, those of its job on the node."""
DISABLE_LABEL = "cgpu.disable.isolation"
"""Node label: `true` has cGPU's containers run without isolation."""

CORE_PERCENT_PER_GPU = 100


class Mode(enum.StrEnum):
    """Values of the node label `ack.node.gpu.schedule`; exactly one is in force on a node."""

    DEFAULT = "default"
    SHARE = "share"
    CGPU = "cgpu"
    MPS = "mps"
    CORE_MEM = "core_mem"
    TOPOLOGY = "topology"


class Placement(enum.StrEnum):
    """Values of the node label `ack.node.gpu.placement`: how shared requests fill the GPUs of a node."""

    BINPACK = "binpack"
    SPREAD = "spread"


class Isolates(enum.StrEnum):
    """What a mode promises to keep apart between containers on one GPU, or a driver is able to."""

    MEMORY = "memory"
    COMPUTE = "compute"


class Kind(enum.StrEnum):
    """What one device id counts, and in which mode it was sold: the middle part of the id.

    The mode is part of the id so that kubelet's own book says under which promise a unit was handed out:
    a GPU-memory unit sold unisolated by `share` is not one sold by `cgpu`.
    """

    MEMORY_SHARE = "ms"
    MEMORY_CGPU = "mc"
    MEMORY_MPS = "mp"
    MEMORY_CORE_MEM = "mm"
    CORE_CORE_MEM = "cm"
    WHOLE_TOPOLOGY = "gt"
    WHOLE_DEFAULT = "gd"

    @property
    def mode(self) -> Mode:
        return _KIND_MODES[self]

    @property
    def is_whole(self) -> bool:
        """One device is one GPU."""
        return self in {Kind.WHOLE_TOPOLOGY, Kind.WHOLE_DEFAULT}

    @property
    def is_memory(self) -> bool:
        return self.value.startswith("m")


_KIND_MODES = {
    Kind.MEMORY_SHARE: Mode.SHARE,
    Kind.MEMORY_CGPU: Mode.CGPU,
    Kind.MEMORY_MPS: Mode.MPS,
    Kind.MEMORY_CORE_MEM: Mode.CORE_MEM,
    Kind.CORE_CORE_MEM: Mode.CORE_MEM,
    Kind.WHOLE_TOPOLOGY: Mode.TOPOLOGY,
    Kind.WHOLE_DEFAULT: Mode.DEFAULT,
}

PROMISES: dict[Mode, frozenset[Isolates]] = {
    Mode.DEFAULT: frozenset(),
    Mode.SHARE: frozenset(),
    Mode.CGPU: frozenset({Isolates.MEMORY}),
    Mode.MPS: frozenset({Isolates.MEMORY}),
    Mode.CORE_MEM: frozenset({Isolates.MEMORY, Isolates.COMPUTE}),
    Mode.TOPOLOGY: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Resources:
    """The extended resources of a node: which there are, and which kind of unit each mode sells under which."""

    exclusive: str | None = None
    """Resource of mode `default`; None leaves whole GPUs to NVIDIA's own plugin."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every resource that is registered, whatever the mode."""
        always = (GPU_MEM, GPU_CORE, GPU_WHOLE)
        return (*always, self.exclusive) if self.exclusive else always

    def sold(self, mode: Mode) -> dict[str, Kind]:
        """Resource name to kind of unit, for the resources above zero in `mode`."""
        if mode is Mode.DEFAULT:
            return {self.exclusive: Kind.WHOLE_DEFAULT} if self.exclusive else {}
        return _SOLD[mode]

    def of(self, kind: Kind) -> str:
        """Name of the resource under which units of `kind` are sold."""
        return next((name for name, sold in self.sold(kind.mode).items() if sold is kind), "")


_SOLD: dict[Mode, dict[str, Kind]] = {
    Mode.SHARE: {GPU_MEM: Kind.MEMORY_SHARE},
    Mode.CGPU: {GPU_MEM: Kind.MEMORY_CGPU},
    Mode.MPS: {GPU_MEM: Kind.MEMORY_MPS},
    Mode.CORE_MEM: {GPU_MEM: Kind.MEMORY_CORE_MEM, GPU_CORE: Kind.CORE_CORE_MEM},
    Mode.TOPOLOGY: {GPU_WHOLE: Kind.WHOLE_TOPOLOGY},
}
