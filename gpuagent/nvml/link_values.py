"""NVML's numbers and structures of links, as the values of the domain."""

import re
import uuid
from collections.abc import Mapping
from typing import Any

import pynvml

from gpuagent.domain.gpus.link_reports import End, Fabric, Relation

VERSIONS: Mapping[int, str] = {
    pynvml.NVML_NVLINK_VERSION_1_0: "1.0",
    pynvml.NVML_NVLINK_VERSION_2_0: "2.0",
    pynvml.NVML_NVLINK_VERSION_2_2: "2.2",
    pynvml.NVML_NVLINK_VERSION_3_0: "3.0",
    pynvml.NVML_NVLINK_VERSION_3_1: "3.1",
    pynvml.NVML_NVLINK_VERSION_4_0: "4.0",
    pynvml.NVML_NVLINK_VERSION_5_0: "5.0",
    pynvml.NVML_NVLINK_VERSION_6_0: "6.0",
}
"""NVLink version names of NVIDIA, by NVML's numbers."""

ENDS: Mapping[int, End] = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: End.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: End.OTHER,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: End.SWITCH,
    pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN: End.UNKNOWN,
}

RELATIONS: Mapping[int, Relation] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Relation.PIX,  # two GPUs of one board, behind the board's own bridge
    pynvml.NVML_TOPOLOGY_SINGLE: Relation.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Relation.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Relation.PHB,
    pynvml.NVML_TOPOLOGY_NODE: Relation.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: Relation.SYS,
}

_BUS_ID = re.compile(r"([0-9A-F]{4,8}):([0-9A-F]{2}):([0-9A-F]{2})\.[0-7]")
_NO_PCI_ID = frozenset({0, 0xFFFFFFFF})


def version(number: int) -> str:
    """``2.0``; ``#9`` for a number that is newer than this table."""
    return VERSIONS.get(number, f"#{number}")


def bus_id(text: str) -> str:
    """A bus id in NVML's form for GPUs, ``00000000:07:00.0``; empty for an invalid or an empty address."""
    spelled = _BUS_ID.fullmatch(text.upper())
    if spelled is None:
        return ""
    domain, bus, device = spelled.groups()
    is_zero = int(domain + bus + device, 16) == 0
    # NVML fills in zeros or ones for what it does not know.
    if is_zero or set(domain) == {"F"}:
        return ""
    _, _, rest = text.upper().partition(":")
    return f"{domain:0>8}:{rest}"


def remote(info: Any) -> tuple[str, int]:  # noqa: ANN401 (NVML's structure)
    """Bus id, and PCI device and vendor, of a link's other end; empty and 0 where unknown."""
    pci_id = 0 if info.pciDeviceId in _NO_PCI_ID else int(info.pciDeviceId)
    return bus_id(str(info.busId)), pci_id


def fabric(info: Any) -> Fabric | None:  # noqa: ANN401 (NVML's structure)
    """The fabric of a GPU; None if it has none."""
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    # The state says only that the registration has ended; the status says how.
    is_complete = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    is_ready = is_complete and info.status == pynvml.NVML_SUCCESS
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    return Fabric(str(cluster), int(info.cliqueId), is_ready)
