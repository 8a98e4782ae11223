"""Faults of a simulated driver about memory limits of cgroups."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpuagent.simulation.boxes import MEMORY_LIMITS_SINCE
from gpuagent.simulation.devices.cgroup_folders import OutsideError, UnknownCgroupError
from gpuagent.simulation.devices.device_memory import MIB, DeviceMemory
from gpuagent.simulation.driver import FaultError, GpuRef, SimulatedDriver
from gpuagent.simulation.memory_accounting import NO_LIMIT, AddressPool, BackendName, MemoryAccounting, RefusedError
from gpuagent.simulation.memory_groups import USUALLY_REUSED

FIRST_VERSION = f"{MEMORY_LIMITS_SINCE}.71.09"
_MEBIBYTES = re.compile(r"[0-9]{1,12}")
MEMORY_KINDS = ("device", "managed")


class LimitedDriver(SimulatedDriver):
    """A driver whose accounting of memory can be changed from outside."""

    def limits(self, backend: str, seed: int = 0, reused: int = round(100 * USUALLY_REUSED)) -> None:
        """Load the driver anew with `backend`; one before 615 is upgraded first. All memory is free, no limit is set.

        Args:
            backend: ``dmem``, ``misc``, or ``none`` for ``RmMemacctMode=0``.
            seed: chooses which addresses of removed cgroups are used again.
            reused: percent of new cgroups that get the address of a removed one.
        """
        try:
            chosen = BackendName(backend)
        except ValueError:
            known = ", ".join(BackendName)
            raise FaultError(f"backend: {backend!r} is not one of {known}") from None
        with self._changing():
            if not self.box.has_memory_limits:
                self.box = replace(self.box, driver_version=FIRST_VERSION)
            self.load_accounting(chosen, AddressPool(seed, reused / 100))

    @property
    def backend(self) -> str:
        """The backend in force; empty if the driver is too old for one."""
        return str(self.device_memory.accounting.backend) if self.device_memory else ""

    def alloc(self, gpu: GpuRef, pid: int, mib: int, kind: str = "device", creator: int | None = None) -> None:
        """Let process `pid` allocate memory, until `end`.

        Args:
            gpu: which GPU.
            pid: as this process sees it.
            mib: how much.
            kind: ``device``, or ``managed`` for cudaMallocManaged.
            creator: the process that opened the driver; None: `pid`.
        """
        if kind not in MEMORY_KINDS:
            raise FaultError(f"kind: {kind!r} is not one of {', '.join(MEMORY_KINDS)}")
        with self._accounted() as memory:
            uuid = self._with_memory(memory, gpu)
            client = _client(uuid, pid)
            if kind == "managed":
                memory.accounting.allocate_managed(client, uuid, mib * MIB)
            else:
                memory.allocate(client, uuid, mib * MIB, pid, pid if creator is None else creator)

    def end(self, gpu: GpuRef, pid: int) -> None:
        """End the use of `gpu` by a process."""
        super().end(gpu, pid)
        self._change(gpu, lambda accounting, uuid: accounting.close(_client(uuid, pid)))

    def hook(self, path: str, limit: str | None = None, request: str | None = None, gpu: GpuRef | None = None) -> None:
        """Set limits as NVIDIA's toolkit does when a container is made.

        Args:
            path: the directory of the container's cgroup.
            limit: the container's NVIDIA_GPU_MEMORY_LIMIT, in MiB, as whoever wrote its environment wants; None: unset.
            request: its NVIDIA_GPU_MEMORY_REQUEST.
            gpu: None: every GPU.
        """
        hard = _mebibytes("limit", limit)
        soft = _mebibytes("request", request)
        if hard is None:
            if soft is None:
                return
            hard = NO_LIMIT
        elif soft is None:
            soft = hard
        if soft > hard:
            raise FaultError(f"the container fails: its request of {request} MiB is above its limit of {limit} MiB")
        with self._accounted() as memory:
            uuids = memory.gpus if gpu is None else (self._with_memory(memory, gpu),)
            cgroup = memory.folders.at(Path(path))
            if cgroup is None:
                raise FaultError(f"the container fails: there is no cgroup {path}")
            for uuid in uuids:
                memory.accounting.set_limits(uuid, cgroup, soft, hard)

    def persistence(self, gpu: GpuRef, enabled: bool) -> None:
        """Switch persistence mode: without it, a GPU that no process has open is shut down and forgets its limits."""
        with self._changing():
            self.find(gpu).persistent = enabled
        self._change(gpu, lambda accounting, uuid: accounting.set_persistence(uuid, enabled))

    def reset(self, gpu: GpuRef) -> None:
        """Reset `gpu`: memory and limits are gone."""
        self._change(gpu, lambda accounting, uuid: accounting.tear_down(uuid))

    def restore(self, gpu: GpuRef) -> None:
        """Undo `lose`; a GPU that was lost has been reset."""
        super().restore(gpu)
        self.reset(gpu)

    def mig(self, gpu: GpuRef, enabled: bool) -> None:
        """Switch MIG mode, where the GPU can do MIG."""
        super().mig(gpu, enabled)
        self._change(gpu, lambda accounting, uuid: accounting.set_mig(uuid, enabled))

    def driver(self, present: bool, error: str | int = "DRIVER_NOT_LOADED") -> None:
        """Take the driver away (initialization then returns `error`) or bring it back; sessions do not survive it."""
        super().driver(present, error)
        with self._changing():
            memory = self.device_memory
            if memory and not present:
                memory.close_nvml()
                for uuid in memory.gpus:
                    memory.accounting.tear_down(uuid)

    def dmem_files(self, path: str, present: bool) -> None:
        """Enable the kernel's controller for the cgroup with that directory and those below it, or disable it."""
        with self._accounted() as memory:
            memory.folders.set_dmem_files(Path(path), present)

    @contextmanager
    def _accounted(self) -> Iterator[DeviceMemory]:
        """The accounting, with what it refuses as FaultError."""
        with self._changing():
            memory = self.device_memory
            if memory is None:
                version = self.box.driver_version
                raise FaultError(f"driver {version} has no memory limits; inject the fault limits first")
            try:
                yield memory
            except RefusedError as err:
                raise FaultError(f"the driver refuses: {err.refusal}") from None
            except OutsideError:
                raise FaultError(f"that is not below {self.cgroups.root}, where the cgroups are") from None
            except UnknownCgroupError as err:
                raise FaultError(str(err)) from None

    def _with_memory(self, memory: DeviceMemory, gpu: GpuRef) -> str:
        """The GPU's UUID, if its memory is accounted for."""
        simulated = self.find(gpu)
        uuid = self.own_uuid(simulated)
        if uuid not in memory.gpus:
            raise FaultError(f"GPU {simulated.index} ({simulated.spec.model}) has no memory of its own")
        return uuid

    def _change(self, gpu: GpuRef, change: Callable[[MemoryAccounting, str], None]) -> None:
        """Change the accounting of a GPU, if there is one."""
        with self._changing():
            uuid = self.own_uuid(self.find(gpu))
            memory = self.device_memory
            if memory and uuid in memory.gpus:
                change(memory.accounting, uuid)


def _client(gpu: str, pid: int) -> tuple[str, int]:
    """The client of a process that allocates by a fault."""
    return gpu, pid


def _mebibytes(name: str, text: str | None) -> int | None:
    """A variable of NVIDIA's toolkit, in bytes. Raises FaultError."""
    if text is None:
        return None
    if not _MEBIBYTES.fullmatch(text):
        raise FaultError(f"the container fails: {name} {text!r} is not a number of MiB")
    return int(text) * MIB
