"""Reads the inventory from the driver: the GPUs and their properties."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpuagent.domain.gpus.gpu import Gpu, Inventory, UnreadableGpu
from gpuagent.domain.gpus.link_reports import Wiring
from gpuagent.host.nvidia_driver import minor_number
from gpuagent.nvml.answers import MIB
from gpuagent.nvml.binding.calls import ABSENT, Handle
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, driver_error, gpu_reason
from gpuagent.nvml.link_queries import joined, read_links, read_relations

SYSFS = Path("/sys")
DEV = Path("/dev")
PROC = Path("/proc")
T = TypeVar("T")

UNKNOWN_MODEL = "NVIDIA GPU"
"""Model of a GPU that does not report its name."""
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
MOST_NUMA_NODE = 1023
"""The most NUMA nodes of Linux (MAX_NUMNODES)."""


def discover(*, nvml: Nvml | None = None, sysfs: Path = SYSFS, dev: Path = DEV, proc: Path = PROC) -> Inventory:
    """Read every GPU in its own error scope: one that fails is `unreadable`, the others are whole.

    Args:
        nvml: the facade to read through (the guard against hanging calls reads its `pending`).
        sysfs: where sysfs is mounted; source of the NUMA node of a PCI device.
        dev: where the device nodes are.
        proc: where procfs is mounted.

    Returns:
        The inventory in NVML's order. No GPU at all is an ordinary answer: ``gpus == ()``.

    Raises:
        DriverError: the driver as a whole does not answer; its text says why and what to do.
    """
    nvml = nvml or Nvml()
    with nvml.session():
        version = nvml.driver_version()
        cuda_version = nvml.cuda_version()
        reading = _read_gpus(nvml, sysfs, proc)
        wiring = _read_wiring(nvml, reading)
    return Inventory(
        tuple(reading.gpus),
        tuple(reading.unreadable),
        driver_version=version,
        cuda_version=cuda_version,
        device_nodes=device_nodes(dev),
        wiring=wiring,
    )


class _Reading(NamedTuple):
    """The GPUs in NVML's order, and the links of each by UUID."""

    gpus: list[Gpu]
    links: dict[str, Wiring]
    unreadable: list[UnreadableGpu]


def _read_gpus(nvml: Nvml, sysfs: Path, proc: Path) -> _Reading:
    """Read each GPU with its links. Raises DriverError: the driver as a whole does not answer."""
    reading = _Reading([], {}, [])
    for index in range(count_gpus(nvml)):
        try:
            gpu = read_gpu(nvml, index, sysfs, proc)
            *_, links = read_links(nvml, index)
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise driver_error(err) from err
            unreadable = UnreadableGpu(index, gpu_reason(err))
            reading.unreadable.append(unreadable)
            continue
        reading.gpus.append(gpu)
        reading.links[gpu.uuid] = links
    return reading


def _read_wiring(nvml: Nvml, reading: _Reading) -> dict[str, Wiring]:
    """Each GPU's links, joined with its paths to the other GPUs. Raises DriverError."""
    # Paths are stored by the address of the other GPU, so a GPU without one is left out.
    bus_ids = {gpu.index: gpu.pci_bus_id for gpu in reading.gpus if gpu.pci_bus_id}
    wiring = {}
    try:
        for gpu in reading.gpus:
            *_, relations = read_relations(nvml, gpu.index, bus_ids)
            wiring[gpu.uuid] = joined(reading.links[gpu.uuid], relations)
    except CallError as err:
        raise driver_error(err) from err
    return wiring


def count_gpus(nvml: Nvml) -> int:
    """How many GPUs the driver has. Raises DriverError."""
    try:
        return nvml.count()
    except CallError as err:
        raise driver_error(err) from err


def device_nodes(dev: Path = DEV) -> frozenset[str]:
    """The driver's device nodes under `dev`, by their paths in containers: ``/dev/nvidia0``."""
    return frozenset(f"/dev/{path.name}" for path in dev.glob("nvidia*") if not path.is_dir())


def sysfs_name(pci_bus_id: str) -> str:
    """``00000000:07:00.0`` as the kernel writes it: ``0000:07:00.0``."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def read_gpu(nvml: Nvml, index: int, sysfs: Path, proc: Path) -> Gpu:
    """Read one GPU from NVML. Raises CallError.

    The agent cannot serve a GPU without its UUID and its minor number, which name it in containers. Every other fact
    may be missing, and the modes that need it say so.
    """
    handle = nvml.handle(index)
    uuid = nvml.uuid(handle)
    total, reserved = _if_supported(lambda: nvml.memory_bytes(handle), (0, 0))
    bus_id = _if_supported(lambda: nvml.pci_bus_id(handle), "")
    return Gpu(
        uuid=uuid,
        index=index,
        minor=_minor(nvml, handle, bus_id, proc),
        pci_bus_id=bus_id,
        model=_if_supported(lambda: nvml.name(handle), UNKNOWN_MODEL),
        memory_mib=total // MIB,
        reserved_mib=reserved // MIB,
        compute_capability=_if_supported(lambda: nvml.compute_capability(handle), None),
        numa_node=_numa_node(nvml, handle, bus_id, sysfs),
        mig=_if_supported(lambda: nvml.mig_enabled(handle), otherwise=False),
        brand=_if_supported(lambda: nvml.brand(handle), ""),
        pcie_root=_pcie_root(bus_id, sysfs),
    )


def _pcie_root(bus_id: str, sysfs: Path) -> str:
    """The root complex in the path of a PCI device, which sysfs shows as a link; empty if it shows none."""
    if not bus_id:
        return ""
    path = os.path.realpath(sysfs / "bus/pci/devices" / sysfs_name(bus_id))
    return next((part for part in path.split("/") if _ROOT.fullmatch(part)), "")


def _if_supported(call: Callable[[], T], otherwise: T) -> T:
    """The answer, or `otherwise` if the driver or the GPU does not have this fact. Raises CallError."""
    try:
        return call()
    except CallError as err:
        if err.code in ABSENT:
            return otherwise
        raise


def _minor(nvml: Nvml, handle: Handle, bus_id: str, proc: Path) -> int:
    """The N of ``/dev/nvidiaN``; the kernel module is asked if NVML does not say it."""
    try:
        return nvml.minor(handle)
    except CallError as err:
        known = minor_number(proc, sysfs_name(bus_id)) if bus_id and err.code in ABSENT else None
        if known is None:
            raise
        return known


def _numa_node(nvml: Nvml, handle: Handle, bus_id: str, sysfs: Path) -> int | None:
    """The NUMA node whose CPUs are nearest; None if unknown, as no mode needs it.

    sysfs takes precedence. Where GPU memory is itself a NUMA node (Grace), NVML's call names that node, which has no
    CPUs, so kubelet could not align pods to it.
    """
    try:
        file = sysfs / "bus/pci/devices" / sysfs_name(bus_id) / "numa_node"
        node = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        try:
            node = nvml.numa_node(handle)
        except CallError as err:
            if err.code not in ABSENT:
                raise
            return None
    return node if 0 <= node <= MOST_NUMA_NODE else None
