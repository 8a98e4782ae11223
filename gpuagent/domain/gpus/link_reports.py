"""What each GPU reports of its own connections: NVLinks, PCIe, NVLink fabric."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Relation(enum.StrEnum):
    """What lies between two GPUs on PCIe, nearest first; the names are those of ``nvidia-smi topo -m``."""

    PIX = "PIX"
    """At most one PCIe bridge."""
    PXB = "PXB"
    """Several bridges, no host bridge."""
    PHB = "PHB"
    """A host bridge, that is the CPU."""
    NODE = "NODE"
    """Host bridges of one NUMA node."""
    SYS = "SYS"
    """The link between NUMA nodes."""


class End(enum.StrEnum):
    """What an NVLink leads to, as the driver says."""

    GPU = "GPU"
    SWITCH = "SWITCH"
    OTHER = "OTHER"
    """A POWER CPU."""
    UNKNOWN = "UNKNOWN"
    """The driver does not say."""


@dataclass(frozen=True, slots=True)
class Nvlink:
    """One active NVLink as one of its ends reports it.

    Attributes:
        version: ``2.0``; empty where the driver does not say.
        end: kind of device at the other end.
        remote_bus_id: PCI bus id there, spelled as `Gpu.pci_bus_id`; empty where unknown.
        remote_pci_id: PCI device id << 16 | vendor id there; 0 where unknown.
    """

    version: str
    end: End
    remote_bus_id: str = ""
    remote_pci_id: int = 0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink fabric a GPU belongs to. GPUs of one cluster and clique reach each other once they are `ready`."""

    cluster: str
    clique: int
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What one GPU reports of its connections.

    Attributes:
        nvlinks: its active links.
        inactive: how many more links it has, which are down: all of them on a card without a bridge.
        relations: PCI bus id of another GPU to how near it is.
        pcie: generation and number of lanes that GPU and slot can do; None where the driver does not say.
        fabric: None where there is none, as on boxes before Hopper.
        problems: what could not be read, for people.
    """

    nvlinks: tuple[Nvlink, ...] = ()
    inactive: int = 0
    relations: Mapping[str, Relation] = field(default_factory=dict)
    pcie: tuple[int, int] | None = None
    fabric: Fabric | None = None
    problems: tuple[str, ...] = ()
