"""Memory of GPUs and who may have it: the accounting of NVIDIA's driver from 615 on, as a model without I/O.

Cgroups, processes and clients are whatever identifies them for the caller. A client is what a process gets when it
opens the driver; other processes may use it as well, for example after a fork.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent.simulation.memory_backends import (
    NO_LIMIT,
    Backend,
    Charge,
    DmemBackend,
    Limits,
    MiscBackend,
    NoBackend,
    Refusal,
    RefusedError,
)
from gpuagent.simulation.memory_groups import AddressPool, Cgroup, CgroupId, CgroupTree

__all__ = [
    "NO_LIMIT",
    "AddressPool",
    "Allocation",
    "BackendName",
    "Limits",
    "Memory",
    "MemoryAccounting",
    "Refusal",
    "RefusedError",
]

Client = Hashable


class BackendName(StrEnum):
    """Which backend the driver chose when it was loaded."""

    DMEM = "dmem"
    MISC = "misc"
    NONE = "none"


_BACKENDS: dict[BackendName, type[Backend]] = {
    BackendName.DMEM: DmemBackend,
    BackendName.MISC: MiscBackend,
    BackendName.NONE: NoBackend,
}


@dataclass(slots=True, eq=False, weakref_slot=True)
class Allocation:
    """Memory of a GPU. It exists, and is charged as it was, until the last client that has it lets it go.

    Attributes:
        owner: the client that allocated it; others may have imported it.
    """

    gpu: str
    size: int
    owner: Client
    charge: Charge | None
    clients: set[Client]


@dataclass(frozen=True, slots=True)
class Memory:
    """A GPU's memory as a process is told, in bytes; `is_limited`: this is not all that the GPU has."""

    total: int
    used: int
    free: int
    is_limited: bool = False


@dataclass(slots=True)
class _GpuState:
    capacity: int
    used: int = 0
    persistent: bool = True
    mig: bool = False
    opened_by: set[Client] = field(default_factory=set)
    allocations: set[Allocation] = field(default_factory=set)


class MemoryAccounting:
    """The driver's accounting. Methods raise RefusedError for what the driver refuses, KeyError for unknown names.

    Args:
        gpus: bytes that programs may have, by UUID.
        root: the root cgroup.
    """

    def __init__(
        self,
        backend: BackendName,
        gpus: Mapping[str, int],
        *,
        root: CgroupId = "/",
        addresses: AddressPool | None = None,
    ) -> None:
        self.backend = backend
        self._backend = _BACKENDS[backend]()
        self._cgroups = CgroupTree(root, addresses or AddressPool())
        self._gpus = {gpu: _GpuState(capacity) for gpu, capacity in gpus.items()}

    # -- cgroups ---------------------------------------------------------------------------------------------------

    def __contains__(self, cgroup: CgroupId) -> bool:
        return cgroup in self._cgroups

    def cgroup(self, identity: CgroupId) -> Cgroup:
        return self._cgroups[identity]

    def add_cgroup(self, identity: CgroupId, parent: CgroupId, *, dmem_files: bool = True) -> Cgroup:
        """A cgroup was made below `parent`. Without `dmem_files`, the kernel's controller is not enabled for it."""
        return self._cgroups.add(identity, parent, dmem_files)

    def remove_cgroup(self, identity: CgroupId) -> None:
        """A cgroup, which has none below it, was removed. A later cgroup may get its address."""
        removed = self._cgroups.remove(identity)
        self._backend.removed(removed)

    # -- limits ----------------------------------------------------------------------------------------------------

    def set_limits(self, gpu: str, cgroup: CgroupId, soft: int, hard: int) -> None:
        """Set the limits of a cgroup, as NVML does."""
        limited = self._accounted(gpu, cgroup)
        self._backend.set_limits(gpu, limited, soft, hard)

    def limits(self, gpu: str, cgroup: CgroupId) -> Limits:
        """The limits of a cgroup, as NVML reports them."""
        return self._backend.limits(gpu, self._accounted(gpu, cgroup))

    def memory(self, gpu: str, cgroup: CgroupId) -> Memory:
        """The GPU's memory, as a process in that cgroup is told."""
        state = self._gpus[gpu]
        free = state.capacity - state.used
        seen = self._backend.seen(gpu, self._cgroups[cgroup])
        if seen is None or seen.hard >= state.capacity:
            return Memory(state.capacity, state.used, free)
        below_limit = max(seen.hard - seen.used, 0)
        return Memory(seen.hard, seen.used, min(below_limit, free), is_limited=True)

    def _accounted(self, gpu: str, cgroup: CgroupId) -> Cgroup:
        """The cgroup, if limits can be set on that GPU and there."""
        state = self._gpus.get(gpu)
        accounted = self._cgroups.get(cgroup)
        if state and state.mig:
            raise RefusedError(Refusal.NOT_SUPPORTED)
        if state is None or accounted is None:
            raise RefusedError(Refusal.NOT_FOUND)
        return accounted

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, client: Client, gpu: str, size: int, *, task: CgroupId, creator: CgroupId | None) -> Allocation:
        """Allocate memory, as cudaMalloc does.

        `task` is the cgroup of the process that allocates, and `creator` that of the process that opened the driver for
        this client; None if that process has ended.
        """
        state = self._with_room(gpu, size)
        creating = None if creator is None else self._cgroups[creator]
        charge = self._backend.charge(gpu, size, self._cgroups[task], creating)
        return self._allocated(client, gpu, state, size, charge)

    def allocate_managed(self, client: Client, gpu: str, size: int) -> Allocation:
        """Allocate memory that moves between GPU and host, as cudaMallocManaged does: it counts for no cgroup."""
        state = self._with_room(gpu, size)
        return self._allocated(client, gpu, state, size, charge=None)

    def import_memory(self, client: Client, allocation: Allocation) -> None:
        """Let another client have the memory too. It counts for whoever allocated it, also after that has ended."""
        if allocation not in self._gpus[allocation.gpu].allocations:
            raise RefusedError(Refusal.NOT_FOUND)
        self.open(client, allocation.gpu)
        allocation.clients.add(client)

    def free(self, client: Client, allocation: Allocation) -> None:
        """Let memory go; nothing happens if the client does not have it."""
        allocation.clients.discard(client)
        state = self._gpus[allocation.gpu]
        if allocation.clients or allocation not in state.allocations:
            return
        state.allocations.discard(allocation)
        state.used -= allocation.size
        if allocation.charge:
            allocation.charge.release()

    def used(self, gpu: str) -> int:
        """The memory in use, by whomever."""
        return self._gpus[gpu].used

    def allocated_by(self, client: Client, gpu: str) -> int:
        """The memory that this client has allocated and that still exists, however it is charged."""
        return sum(allocation.size for allocation in self._gpus[gpu].allocations if allocation.owner == client)

    def _with_room(self, gpu: str, size: int) -> _GpuState:
        state = self._gpus[gpu]
        if state.used + size > state.capacity:
            raise RefusedError(Refusal.OUT_OF_MEMORY)
        return state

    def _allocated(self, client: Client, gpu: str, state: _GpuState, size: int, charge: Charge | None) -> Allocation:
        allocation = Allocation(gpu, size, client, charge, {client})
        state.opened_by.add(client)
        state.allocations.add(allocation)
        state.used += size
        return allocation

    # -- GPUs ------------------------------------------------------------------------------------------------------

    def open(self, client: Client, gpu: str) -> None:
        """Keep the GPU running until `close`."""
        self._gpus[gpu].opened_by.add(client)

    def close(self, client: Client) -> None:
        """End a client: its memory is free, unless another client has it too."""
        for gpu, state in self._gpus.items():
            for allocation in [*state.allocations]:
                if client in allocation.clients:
                    self.free(client, allocation)
            if client in state.opened_by:
                state.opened_by.remove(client)
                self._rest(gpu)

    def set_persistence(self, gpu: str, enabled: bool) -> None:
        """Whether the driver keeps the GPU running when no client has it open."""
        self._gpus[gpu].persistent = enabled
        self._rest(gpu)

    def set_mig(self, gpu: str, enabled: bool) -> None:
        """Switch MIG mode, which resets the GPU. A GPU in MIG mode has no limits."""
        self._gpus[gpu].mig = enabled
        self.tear_down(gpu)

    def tear_down(self, gpu: str) -> None:
        """Shut the GPU down, as a reset does, or the end of the driver: memory and limits are gone."""
        state = self._gpus[gpu]
        state.allocations.clear()
        state.used = 0
        self._backend.torn_down(gpu)

    def _rest(self, gpu: str) -> None:
        """Shut the GPU down if no process keeps it running."""
        state = self._gpus[gpu]
        if not state.persistent and not state.opened_by:
            self.tear_down(gpu)
