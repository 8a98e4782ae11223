"""A node's GPUs as NVML reports them."""

from base64 import b32encode
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256

from gpuagent.domain.gpus.link_reports import Wiring

KEY_CHARS = 10
"""Length of a GPU's key: 50 bits. Two of a node's 16 GPUs share a key once in 10 million million nodes."""

_Property = tuple[str, str | int]
"""Name and value of a property that no two GPUs may share."""


@lru_cache(maxsize=256)
def key_of(uuid: str) -> str:
    """The GPU's name in device ids: a hash of its whole UUID, as UUIDs of one node may begin or end alike."""
    digest = sha256(uuid.encode()).digest()
    encoded = b32encode(digest)[:KEY_CHARS]
    return encoded.decode().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU.

    Attributes:
        uuid: as NVML spells it, ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``. The identity of the GPU.
        index: NVML enumeration index; may change when another GPU dies.
        minor: N of ``/dev/nvidiaN``.
        pci_bus_id: ``00000000:07:00.0``; empty if the driver does not report it.
        model: product name, ``NVIDIA A100-SXM4-80GB``.
        memory_mib: total framebuffer in MiB, rounded down (NVML memory info ``total``); 0 if the driver does not report
            it, as for GPUs that share the memory of the host.
        reserved_mib: MiB of it that driver and firmware reserve; 0 if the driver does not report it.
        compute_capability: ``(8, 0)``; None if the driver does not report it.
        numa_node: None where unknown.
        mig: True while MIG mode is enabled.
        brand: NVIDIA's name of the product line, ``Nvidia``, ``Tesla``; empty if the driver does not report it.
        pcie_root: name of the PCIe root complex, ``pci0000:00``; empty if the kernel does not show it.
        key: the GPU's name in device ids.
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
    brand: str = ""
    pcie_root: str = ""
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(self.uuid))

    def __str__(self) -> str:
        """As messages name it."""
        return f"GPU {self.index} ({self.uuid})"

    @property
    def only_whole(self) -> bool:
        """Whether the GPU can only be given whole, because its memory is not known."""
        return self.memory_mib == 0


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
    """GPU UUID to its reported connections; a GPU that could not be queried is absent."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """PCI address of each GPU on the bus that the driver does not list, as the kernel writes it, to which driver it is
    bound to, in words."""
    unasked: frozenset[str] = field(default=frozenset(), compare=False)
    """UUIDs of GPUs that have not reported their health yet. Health has its own event, so it is not compared here."""
    cuda_version: str = ""
    """The newest CUDA that the driver supports: ``13.0``; empty if the driver does not report it."""


def unambiguous(inventory: Inventory, known: Collection[Gpu]) -> Inventory:
    """Report as unreadable every GPU that shares a unique property, such as its UUID, with another GPU.

    Otherwise units of one GPU would count for the other, or a container would get the other's device node. All GPUs
    that share the property are left out, so the order of reading does not matter.

    Args:
        inventory: as the driver reports it.
        known: GPUs that were read before. Kubelet may have allocations on one that the driver no longer lists.
    """
    listed = {gpu.uuid for gpu in inventory.gpus}
    owners: defaultdict[_Property, list[Gpu]] = defaultdict(list)
    for gpu in inventory.gpus:
        for name in _names(gpu):
            owners[name].append(gpu)
    for gpu in known:
        # Kubelet may still have its key in allocations.
        if gpu.uuid not in listed:
            owners["device id key", gpu.key].append(gpu)
    usable = []
    left_out = []
    for gpu in inventory.gpus:
        shared = [name for name in _names(gpu) if len(owners[name]) > 1]
        if not shared:
            usable.append(gpu)
            continue
        first = shared[0]
        reason = _shares(gpu, first, owners[first])
        left_out.append(UnreadableGpu(gpu.index, reason))
    return replace(
        inventory,
        gpus=tuple(usable),
        unreadable=(*inventory.unreadable, *left_out),
    )


def _shares(
    gpu: Gpu,
    shared: _Property,
    owners: Collection[Gpu],
) -> str:
    """With which other GPUs a GPU shares a property, in words."""
    name, value = shared
    others = [owner for owner in owners if owner is not gpu]
    words = [f"GPU {other.index} at {other.pci_bus_id}" for other in others]
    named = ", ".join(words)
    return f"its {name} ({value}) is also that of {named}; see NVRM lines in `dmesg`"


def _names(gpu: Gpu) -> list[_Property]:
    """The properties that no two GPUs may share, each with its value."""
    names: list[_Property] = [
        ("UUID", gpu.uuid),
        ("device id key", gpu.key),
        ("minor number", gpu.minor),
    ]
    if gpu.pci_bus_id:
        names.append(("PCI address", gpu.pci_bus_id))
    return names
