"""The devices that the agent advertises."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import Kind


@dataclass(frozen=True, slots=True)
class DeviceRange:
    """All units of one kind on one GPU, as advertised: `count` devices that share GPU, NUMA node and health."""

    gpu: Gpu
    kind: Kind
    count: int
    healthy: bool = True

    @property
    def key(self) -> tuple[str, Kind]:
        """GPU UUID and kind of unit, which identify the block."""
        return self.gpu.uuid, self.kind


@dataclass(frozen=True, slots=True)
class Draining:
    """Units that leave a list: shown unhealthy until no Allocate for them can be in progress."""

    resource: str
    block: DeviceRange
    since: float


Lists = Mapping[str, tuple[DeviceRange, ...]]
"""Resource name to its advertised devices; a resource at zero has an empty tuple."""
