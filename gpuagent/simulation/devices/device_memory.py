"""The memory of a simulated box, accounted for real processes in real cgroups."""

from dataclasses import dataclass
from pathlib import Path

from gpuagent.host.cgroups import CGROUP_ROOT
from gpuagent.simulation.boxes import Box
from gpuagent.simulation.devices.cgroup_folders import PROC, ROOT, CgroupFolders
from gpuagent.simulation.memory_accounting import (
    AddressPool,
    Allocation,
    BackendName,
    Memory,
    MemoryAccounting,
    Refusal,
    RefusedError,
)
from gpuagent.simulation.memory_groups import CgroupId

MIB = 1 << 20
NVML = "NVML"
"""The client that has all GPUs open while this process has NVML initialized."""


@dataclass(frozen=True, slots=True)
class CgroupSource:
    """Where cgroups and processes are looked up; see `CgroupFolders`."""

    root: Path = CGROUP_ROOT
    proc: Path = PROC


class DeviceMemory:
    """A driver that was loaded with a backend. Raises RefusedError for what the driver refuses."""

    def __init__(self, box: Box, backend: BackendName, source: CgroupSource, addresses: AddressPool) -> None:
        # A GPU that shares the memory of the host has none that could be accounted for.
        sizes = {gpu.uuid: (gpu.memory_mib - gpu.reserved_mib) * MIB for gpu in box.gpus if gpu.memory_reported}
        self.accounting = MemoryAccounting(backend, sizes, root=ROOT, addresses=addresses)
        self.folders = CgroupFolders(self.accounting, source.root, source.proc)
        self.gpus = tuple(sizes)

    def open_nvml(self) -> None:
        """This process has initialized NVML."""
        for gpu in self.gpus:
            self.accounting.open(NVML, gpu)

    def close_nvml(self) -> None:
        self.accounting.close(NVML)

    def used(self, gpu: str) -> int:
        """Bytes that processes have allocated."""
        return self.accounting.used(gpu) if gpu in self.gpus else 0

    def seen_by(self, pid: int, gpu: str) -> Memory:
        """The GPU's memory, as that process is told."""
        return self.accounting.memory(gpu, self._running(pid))

    def allocate(self, client: object, gpu: str, size: int, pid: int, creator: int | None) -> Allocation:
        """Let process `pid` allocate memory as a client that process `creator` made; None: that has ended."""
        opener = None if creator is None else self.folders.of_process(creator)
        return self.accounting.allocate(client, gpu, size, task=self._running(pid), creator=opener)

    def _running(self, pid: int) -> CgroupId:
        """The cgroup of a process, which must be running: only then can it call the driver."""
        cgroup = self.folders.of_process(pid)
        if cgroup is None:
            raise RefusedError(Refusal.NOT_FOUND)
        return cgroup
