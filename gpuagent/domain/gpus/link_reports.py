"""Connections that each GPU reports: NVLinks, PCIe, NVLink fabric."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Relation(enum.StrEnum):
    """The PCIe path between two GPUs, nearest first. The names are those of ``nvidia-smi topo -m``."""

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
    """The kind of device at the far end of an NVLink, as the driver reports it."""

    GPU = "GPU"
    SWITCH = "SWITCH"
    OTHER = "OTHER"
    """A POWER CPU."""
    UNKNOWN = "UNKNOWN"
    """The driver does not report it."""


@dataclass(frozen=True, slots=True)
class Nvlink:
    """One active NVLink as one of its ends reports it.

    Attributes:
        version: ``2.0``; empty if the driver does not report it.
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
    """The connections that one GPU reports.

    Attributes:
        nvlinks: its active links.
        inactive: number of further links, which are down: all links on a card without a bridge.
        relations: PCI bus id of another GPU to the PCIe path to it.
        pcie: generation and number of lanes that GPU and slot support; None if the driver does not report them.
        fabric: None where there is none, as on boxes before Hopper.
        problems: properties that could not be read, in words.
    """

    nvlinks: tuple[Nvlink, ...] = ()
    inactive: int = 0
    relations: Mapping[str, Relation] = field(default_factory=dict)
    pcie: tuple[int, int] | None = None
    fabric: Fabric | None = None
    problems: tuple[str, ...] = ()
