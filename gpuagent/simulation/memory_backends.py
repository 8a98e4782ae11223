"""The two ways in which NVIDIA's driver keeps memory limits of cgroups, as models without I/O.

With `DmemBackend`, the kernel's controller ``dmem`` counts and limits, in each cgroup and all its ancestors. With
`MiscBackend`, for kernels without that controller, the driver itself keeps a map of limits by the address of a cgroup,
and only the nearest entry counts. NVIDIA's `memacct.c` (615.71.09) has the second; its oddities are kept here.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from gpuagent.simulation.memory_groups import Cgroup

NO_LIMIT = 2**64 - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""


class Refusal(StrEnum):
    """Why the driver refuses something."""

    NOT_SUPPORTED = "NOT_SUPPORTED"
    NOT_FOUND = "NOT_FOUND"
    INVALID_LIMIT = "INVALID_LIMIT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class RefusedError(Exception):
    """The driver refuses to set or get limits, or to allocate memory."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in force and the use that counts against them, in bytes."""

    soft: int
    hard: int
    used: int


class Charge(ABC):
    """Memory that counts against a limit until it is released."""

    @abstractmethod
    def release(self) -> None:
        """Count it no longer."""


class Backend(ABC):
    """Counts the memory of each GPU by cgroup. All methods raise RefusedError for what the driver refuses."""

    @abstractmethod
    def charge(self, gpu: str, size: int, task: Cgroup, creator: Cgroup | None) -> Charge | None:
        """Count `size` bytes; None if they count for no cgroup.

        `task` is the cgroup of the process that allocates, and `creator` that of the process that opened the driver;
        None if that process has ended.
        """

    @abstractmethod
    def set_limits(self, gpu: str, cgroup: Cgroup, soft: int, hard: int) -> None: ...

    @abstractmethod
    def limits(self, gpu: str, cgroup: Cgroup) -> Limits:
        """The limits as NVML reports them for that cgroup."""

    @abstractmethod
    def seen(self, gpu: str, cgroup: Cgroup) -> Limits | None:
        """The limits by which a process in that cgroup is told the size of the GPU; None: it sees all of it."""

    @abstractmethod
    def removed(self, cgroup: Cgroup) -> None:
        """The cgroup has been removed."""

    @abstractmethod
    def torn_down(self, gpu: str) -> None:
        """The GPU has been shut down: nothing is known of it any more."""


class NoBackend(Backend):
    """``RmMemacctMode=0``, or a machine without cgroup v2: nothing is counted, and no limit can be set."""

    def charge(self, gpu: str, size: int, task: Cgroup, creator: Cgroup | None) -> None:
        return None

    def set_limits(self, gpu: str, cgroup: Cgroup, soft: int, hard: int) -> None:
        raise RefusedError(Refusal.NOT_SUPPORTED)

    def limits(self, gpu: str, cgroup: Cgroup) -> Limits:
        raise RefusedError(Refusal.NOT_SUPPORTED)

    def seen(self, gpu: str, cgroup: Cgroup) -> None:
        return None

    def removed(self, cgroup: Cgroup) -> None: ...

    def torn_down(self, gpu: str) -> None: ...


# -- dmem ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Pool:
    """What the kernel keeps for a cgroup and a GPU: ``dmem.min``, ``dmem.max`` and ``dmem.current``."""

    low: int = 0
    high: int = NO_LIMIT
    used: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _PoolCharge(Charge):
    pools: list[_Pool]
    size: int

    def release(self) -> None:
        for pool in self.pools:
            pool.used -= self.size


class DmemBackend(Backend):
    """The kernel's controller ``dmem``."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[Cgroup, _Pool]] = {}

    def charge(self, gpu: str, size: int, task: Cgroup, creator: Cgroup | None) -> Charge:
        # The kernel charges the process that allocates, whoever opened the driver.
        pools = [self._pool(gpu, cgroup) for cgroup in task.upwards() if cgroup.has_dmem_files]
        for pool in pools:
            if pool.used + size > pool.high:
                raise RefusedError(Refusal.OUT_OF_MEMORY)
        for pool in pools:
            pool.used += size
        return _PoolCharge(pools, size)

    def set_limits(self, gpu: str, cgroup: Cgroup, soft: int, hard: int) -> None:
        if cgroup.is_root:
            raise RefusedError(Refusal.NOT_SUPPORTED)
        if not cgroup.has_dmem_files:
            raise RefusedError(Refusal.NOT_FOUND)
        pool = self._pool(gpu, cgroup)
        # The kernel refuses a maximum below the use, and whoever writes dmem.max is not told.
        if hard >= pool.used:
            pool.high = hard
        # NVML makes each ancestor reserve what is reserved below it. That is not undone for a removed cgroup.
        added = soft - pool.low
        for reserving in cgroup.upwards():
            if reserving.has_dmem_files:
                self._pool(gpu, reserving).low += added

    def limits(self, gpu: str, cgroup: Cgroup) -> Limits:
        if cgroup.is_root:
            raise RefusedError(Refusal.NOT_SUPPORTED)
        counted = self._counted(cgroup)
        if counted is None:
            raise RefusedError(Refusal.NOT_FOUND)
        pool = self._pool(gpu, counted)
        return Limits(pool.low, pool.high, pool.used)

    def seen(self, gpu: str, cgroup: Cgroup) -> Limits | None:
        counted = self._counted(cgroup)
        if counted is None:
            return None
        # Limits of ancestors hold as well, but no reading tells of them.
        pool = self._pool(gpu, counted)
        return None if pool.high == NO_LIMIT else Limits(pool.low, pool.high, pool.used)

    def removed(self, cgroup: Cgroup) -> None:
        # Memory that is still charged to it stays charged to its ancestors.
        for pools in self._pools.values():
            pools.pop(cgroup, None)

    def torn_down(self, gpu: str) -> None:
        self._pools.pop(gpu, None)

    def _pool(self, gpu: str, cgroup: Cgroup) -> _Pool:
        pools = self._pools.setdefault(gpu, {})
        return pools.setdefault(cgroup, _Pool())

    def _counted(self, cgroup: Cgroup) -> Cgroup | None:
        """The nearest cgroup for which the controller is enabled: memory is charged to it."""
        for candidate in cgroup.upwards():
            if candidate.has_dmem_files:
                return candidate
        return None


# -- misc ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Entry:
    """What the driver keeps for an address and a GPU."""

    soft: int
    hard: int
    available: int

    @property
    def used(self) -> int:
        return self.hard - self.available


@dataclass(frozen=True, slots=True, eq=False)
class _EntryCharge(Charge):
    entry: _Entry
    size: int

    def release(self) -> None:
        self.entry.available += self.size


class MiscBackend(Backend):
    """The driver's own map. Its keys are addresses of cgroups, and nothing removes an entry but the GPU's shutdown.

    So a new cgroup at the address of a removed one has its limits, and what is still charged to it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, dict[int, _Entry]] = {}

    def charge(self, gpu: str, size: int, task: Cgroup, creator: Cgroup | None) -> Charge | None:
        # The driver charges the process that opened it, also if another one allocates. If that has ended, none.
        if creator is None:
            return None
        entry = self._nearest(gpu, creator)
        if entry is None:
            return None
        if size > entry.available:
            raise RefusedError(Refusal.OUT_OF_MEMORY)
        entry.available -= size
        return _EntryCharge(entry, size)

    def set_limits(self, gpu: str, cgroup: Cgroup, soft: int, hard: int) -> None:
        if cgroup.is_root:
            raise RefusedError(Refusal.NOT_SUPPORTED)
        entries = self._entries.setdefault(gpu, {})
        entry = entries.get(cgroup.address)
        if entry is None:
            # What this cgroup has allocated until now stays charged to an ancestor, or to no cgroup.
            entries[cgroup.address] = _Entry(soft, hard, available=hard)
            return
        used = entry.used
        if used > hard:
            raise RefusedError(Refusal.INVALID_LIMIT)
        entry.soft = soft
        entry.hard = hard
        entry.available = hard - used

    def limits(self, gpu: str, cgroup: Cgroup) -> Limits:
        entry = self._nearest(gpu, cgroup)
        if entry is None:
            raise RefusedError(Refusal.NOT_SUPPORTED)
        return Limits(entry.soft, entry.hard, entry.used)

    def seen(self, gpu: str, cgroup: Cgroup) -> Limits | None:
        entry = self._nearest(gpu, cgroup)
        if entry is None:
            return None
        return Limits(entry.soft, entry.hard, entry.used)

    def removed(self, cgroup: Cgroup) -> None:
        """Keep its entry: the driver is not told."""

    def torn_down(self, gpu: str) -> None:
        self._entries.pop(gpu, None)

    def _nearest(self, gpu: str, cgroup: Cgroup) -> _Entry | None:
        """The entry of the cgroup or of its nearest ancestor that has one."""
        entries = self._entries.get(gpu, {})
        for candidate in cgroup.upwards():
            entry = entries.get(candidate.address)
            if entry is not None:
                return entry
        return None
