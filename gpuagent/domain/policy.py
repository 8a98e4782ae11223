"""The settings of the core."""

from dataclasses import dataclass, field

from gpuagent.domain.gpus.health_verdict import APPLICATION_XIDS
from gpuagent.domain.sharing.isolation_layers import AUTO
from gpuagent.domain.sharing.mode import Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings that the core needs; fixed while the agent runs."""

    resources: Resources = field(default_factory=Resources)
    unit: MemoryUnit = field(default_factory=MemoryUnit)
    max_pods_per_gpu: int = 20
    forced_mode: Mode | None = None
    allow_unisolated: bool = False
    isolation: str = AUTO
    """Name of the isolation driver to use, or `auto`."""
    index_for_uuid: bool = False
    """Containers get GPU indexes in place of UUIDs."""
    core_step: int = 5
    """Requests for compute are multiples of this many percent."""
    core_mem_both: bool = True
    """In core_mem, a container must request memory and compute, or neither."""
    numa_of_shares: bool = True
    """Kubelet gets the NUMA node of each GPU also for shares, and not for whole GPUs alone."""
    trust_visible: bool = False
    """The annotation `gpu-visible` is a scheduler's, and shows a pod GPUs beyond its own."""
    fence_file: str = ""
    """Path of the file in which the operator fences GPUs, for messages."""
    settle_s: float = 60.0
    """Seconds a GPU must stay healthy after a fault before it is advertised again."""
    harmless_xids: frozenset[int] = APPLICATION_XIDS
    """XIDs that leave a GPU healthy if the driver does not support recovery actions."""
    startup_taint: str = ""
    """Key of the taint that keeps pods off the node until the node shows its amounts; empty for none."""
    live_resize: bool = False
    """The annotation `gpu-mem-limit` changes the limits of running pods. Only for nodes where no tenant can set it."""
    idle_policy: bool = False
    """The label `gpuagent.io/when-idle` of a namespace has its idle pods reported or evicted."""
    annotate_pods: bool = True
    """Annotate pods that no scheduler annotated, so that schedulers count their devices."""
    evict_claims: bool = False
    """Evict the pods of claims from a GPU with a fault; if False, only new claims are kept off it."""
    gpu_sets: bool = False
    """Publish sets of linked GPUs as devices for claims."""
