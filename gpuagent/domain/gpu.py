"""What NVML says of a node's GPUs, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.domain.wiring import Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU.

    Attributes:
        uuid: as NVML spells it, ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``. The identity of the GPU.
        index: NVML enumeration index; may change when another GPU dies.
        minor: N of ``/dev/nvidiaN``.
        pci_bus_id: ``00000000:07:00.0``.
        model: product name, ``NVIDIA A100-SXM4-80GB``.
        memory_mib: total framebuffer in MiB, rounded down (NVML memory info ``total``).
        reserved_mib: what driver and firmware keep of it, in MiB; 0 where the driver does not say.
        compute_capability: ``(8, 0)``; None where the driver does not say.
        numa_node: None where unknown.
        mig: True while MIG mode is enabled.
    """

    uuid: str
    index: int
    minor: int
    pci_bus_id: str
    model: str
    memory_mib: int
    reserved_mib: int = 0
    compute_capability: tuple[int, int] | None = None
    numa_node: int | None = None
    mig: bool = False

    @property
    def key(self) -> str:
        """First block of the UUID, 8 characters: names the GPU in device ids and short messages."""
        return self.uuid.removeprefix("GPU-")[:8].lower()


@dataclass(frozen=True, slots=True)
class UnreadableGpu:
    """A GPU that the driver counts but that could not be read.

    It cannot be advertised, unless it was read before and only a call about it hangs now.
    """

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """One look at the driver: every GPU that could be read, and every one that could not."""

    gpus: tuple[Gpu, ...]
    unreadable: tuple[UnreadableGpu, ...] = ()
    driver_version: str = ""
    device_nodes: frozenset[str] = frozenset()
    """Device nodes of the driver that exist on this node, full paths: ``/dev/nvidia0``, ``/dev/nvidiactl``, …"""
    wiring: Mapping[str, Wiring] = field(default_factory=dict)
    """GPU UUID to what it reports of its connections; a GPU that could not be asked is absent."""
    unasked: frozenset[str] = field(default=frozenset(), compare=False)
    """UUIDs of GPUs that have not said yet how they are. That they do is told by itself: it is no other inventory."""
