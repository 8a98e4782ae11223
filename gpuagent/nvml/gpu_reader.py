"""Reads the inventory from the driver: the GPUs and their properties."""

from pathlib import Path

from gpuagent.domain.gpus.gpu import Gpu, Inventory, UnreadableGpu
from gpuagent.domain.gpus.link_reports import Wiring
from gpuagent.nvml.answers import MIB
from gpuagent.nvml.binding import ABSENT, Handle, Nvml
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, driver_error, gpu_reason
from gpuagent.nvml.link_queries import joined, read_links, read_relations

SYSFS, DEV, PROC = Path("/sys"), Path("/dev"), Path("/proc")
MOST_NUMA_NODE = 1023
"""The most NUMA nodes of Linux (MAX_NUMNODES)."""


def discover(*, nvml: Nvml | None = None, sysfs: Path = SYSFS, dev: Path = DEV) -> Inventory:
    """Read every GPU in its own error scope: one that fails is `unreadable`, the others are whole.

    Args:
        nvml: the facade to read through (the guard against hanging calls reads its `pending`).
        sysfs: where sysfs is mounted; source of the NUMA node of a PCI device.
        dev: where the device nodes are.

    Returns:
        The inventory in NVML's order. No GPU at all is an ordinary answer: ``gpus == ()``.

    Raises:
        DriverError: the driver as a whole does not answer; its text says why and what to do.
    """
    nvml = nvml or Nvml()
    gpus: list[Gpu] = []
    unreadable: list[UnreadableGpu] = []
    links: dict[str, Wiring] = {}
    wiring: dict[str, Wiring] = {}
    with nvml.session():
        version = nvml.driver_version()
        for index in range(count_gpus(nvml)):
            try:
                gpu = read_gpu(nvml, index, sysfs)
                *_, links[gpu.uuid] = read_links(nvml, index)
                gpus.append(gpu)
            except CallError as err:
                if err.code in DRIVER_WIDE:
                    raise driver_error(err) from err
                unreadable.append(UnreadableGpu(index, gpu_reason(err)))
        bus_ids = {gpu.index: gpu.pci_bus_id for gpu in gpus}
        try:
            for gpu in gpus:
                *_, relations = read_relations(nvml, gpu.index, bus_ids)
                wiring[gpu.uuid] = joined(links[gpu.uuid], relations)
        except CallError as err:
            raise driver_error(err) from err
    return Inventory(tuple(gpus), tuple(unreadable), version, device_nodes(dev), wiring)


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


def read_gpu(nvml: Nvml, index: int, sysfs: Path) -> Gpu:
    """Read one GPU from NVML. Raises CallError."""
    handle = nvml.handle(index)
    total, reserved = nvml.memory_bytes(handle)
    bus_id = nvml.pci_bus_id(handle)
    return Gpu(
        uuid=nvml.uuid(handle),
        index=index,
        minor=nvml.minor(handle),
        pci_bus_id=bus_id,
        model=nvml.name(handle),
        memory_mib=total // MIB,
        reserved_mib=reserved // MIB,
        compute_capability=_compute_capability(nvml, handle),
        numa_node=_numa_node(nvml, handle, sysfs / "bus/pci/devices" / sysfs_name(bus_id) / "numa_node"),
        mig=_mig(nvml, handle),
    )


def _compute_capability(nvml: Nvml, handle: Handle) -> tuple[int, int] | None:
    try:
        return nvml.compute_capability(handle)
    except CallError as err:
        if err.code in ABSENT:
            return None
        raise


def _mig(nvml: Nvml, handle: Handle) -> bool:
    try:
        return nvml.mig_enabled(handle)
    except CallError as err:
        if err.code in ABSENT:
            return False
        raise


def _numa_node(nvml: Nvml, handle: Handle, sysfs_file: Path) -> int | None:
    """The NUMA node whose CPUs are nearest.

    sysfs takes precedence. Where GPU memory is itself a NUMA node (Grace), NVML's call names that node, which has no
    CPUs, so kubelet could not align pods to it.
    """
    try:
        node = int(sysfs_file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        try:
            node = nvml.numa_node(handle)
        except CallError as err:
            if err.code not in ABSENT:
                raise
            return None
    return node if 0 <= node <= MOST_NUMA_NODE else None
