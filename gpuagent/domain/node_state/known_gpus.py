"""The GPUs of the node: the driver's inventory, and the operator's fence."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Gpu, Inventory, UnreadableGpu, unambiguous
from gpuagent.domain.gpus.link_reports import Wiring
from gpuagent.domain.gpus.topology import Topology, topology

NOT_READ = "not read yet"
DRIVER_GRACE_S = 3.0
"""For this long a driver may fail before its GPUs are out of use, so that one odd answer changes no list."""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """Every GPU read in this run, by UUID in `by_uuid`: a lost GPU keeps its identity.

    Attributes:
        wiring: by UUID, the connections that each GPU reported in its last read.
        topology: the GPUs that the driver listed last, and the links between every two of them.
        unreadable: the GPUs that the driver listed last and could not read.
        absent: GPUs on the PCI bus that the driver does not list, as in `Inventory`.
        resized_mib: by UUID, the memory that the driver reports now, for GPUs that had another size when they were read
            first. Their entries in `by_uuid` keep the first size, because the units of that size are advertised.
        driver_problem: why the driver did not answer the last read; the inventory stays.
        driver_failed_at: when it stopped answering, in monotonic seconds; None while it answers.
        driver_gone: it has not answered for `DRIVER_GRACE_S`.
        fence: the content of the operator's file when it was last valid.
    """

    by_uuid: Mapping[str, Gpu] = field(default_factory=dict)
    wiring: Mapping[str, Wiring] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    unreadable: tuple[UnreadableGpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    device_nodes: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)
    resized_mib: Mapping[str, int] = field(default_factory=dict)
    driver_problem: str | None = NOT_READ
    driver_failed_at: float | None = None
    driver_gone: bool = False
    fence: Fence = field(default_factory=Fence)
    fence_problem: str | None = None

    def taken(self, event: ev.Event) -> Self:
        after = self._changed(event)
        if after.next is not None and event.at >= after.next:
            return replace(after, driver_gone=True)
        return after

    @property
    def next(self) -> float | None:
        """Monotonic seconds when `driver_gone` becomes true without an event; None if it does not."""
        if self.driver_failed_at is None or self.driver_gone:
            return None
        return self.driver_failed_at + DRIVER_GRACE_S

    def _changed(self, event: ev.Event) -> Self:
        match event:
            case ev.InventoryRead():
                return self._read(unambiguous(event.inventory, self.by_uuid.values()))
            case ev.DriverUnavailable():
                # Another reason does not start the grace period again: the driver fails since the first one.
                since = event.at if self.driver_failed_at is None else self.driver_failed_at
                return replace(self, driver_problem=event.reason, driver_failed_at=since)
            case ev.FenceRead():
                return replace(self, fence=event.fence, fence_problem=None)
            case ev.FenceUnreadable():
                return replace(self, fence_problem=event.reason)
        return self

    def _read(self, inventory: Inventory) -> Self:
        """A GPU that was read before and is missing now stays as lost."""
        known = self.by_uuid
        read: dict[str, Gpu] = {}
        resized_mib = dict(self.resized_mib)
        for gpu in inventory.gpus:
            resized_mib.pop(gpu.uuid, None)
            former = known.get(gpu.uuid)
            if former is None or former.only_whole:
                read[gpu.uuid] = gpu
                continue
            # The number of units that were advertised does not change while the agent runs.
            read[gpu.uuid] = replace(gpu, memory_mib=former.memory_mib)
            # MIG mode may take some of the memory, and gives it back.
            if gpu.memory_mib != former.memory_mib and not gpu.mig:
                resized_mib[gpu.uuid] = gpu.memory_mib
        wiring = {**self.wiring, **inventory.wiring}
        indexes = {uuid: gpu.index for uuid, gpu in read.items()}
        former_indexes = {uuid: known[uuid].index for uuid in self.topology.gpus}
        links = self.topology
        # To work out the links again takes milliseconds, and most reads show nothing new.
        if wiring != self.wiring or indexes != former_indexes:
            links = topology(tuple(read.values()), wiring)
        return replace(
            self,
            by_uuid={**known, **read},
            wiring=wiring,
            topology=links,
            unreadable=inventory.unreadable,
            driver_version=inventory.driver_version,
            cuda_version=inventory.cuda_version,
            device_nodes=inventory.device_nodes,
            absent=inventory.absent,
            resized_mib=resized_mib,
            driver_problem=None,
            driver_failed_at=None,
            driver_gone=False,
        )

    @cached_property
    def by_index(self) -> list[Gpu]:
        """In NVML's order."""
        return sorted(self.by_uuid.values(), key=lambda gpu: gpu.index)

    @cached_property
    def known_topology(self) -> Topology:
        """The links between all GPUs read in this run, those that are lost included."""
        any_lost = len(self.topology.gpus) < len(self.by_uuid)
        if not any_lost:
            return self.topology
        gpus = tuple(self.by_uuid.values())
        return topology(gpus, self.wiring)

    @cached_property
    def unread(self) -> dict[str, str]:
        """UUID of each GPU that the driver still lists and could not read last, to the reason."""
        gpus = self.by_uuid
        listed = self.topology.gpus
        missing = [gpu for gpu in gpus.values() if gpu.uuid not in listed]
        reasons = {unreadable.index: unreadable.reason for unreadable in self.unreadable}
        for uuid in listed:
            # An index may be that of another GPU by now.
            reasons.pop(gpus[uuid].index, None)
        # Match by index, which changes when another GPU is lost. If no fewer GPUs are unreadable than missing, all
        # missing ones are unreadable.
        are_all_unreadable = len(missing) <= len(reasons)
        any_reason = next(iter(reasons.values()), None) if are_all_unreadable else None
        unread = {}
        for gpu in missing:
            reason = reasons.get(gpu.index, any_reason)
            if reason is not None:
                unread[gpu.uuid] = reason
        return unread

    @cached_property
    def answering(self) -> frozenset[str]:
        """UUIDs of the GPUs that can be queried now."""
        if self.driver_problem is not None:
            return frozenset()
        silent = {unreadable.index for unreadable in self.unreadable}
        gpus = self.by_uuid.values()
        answering = [gpu.uuid for gpu in gpus if gpu.index not in silent]
        return frozenset(answering)

    @cached_property
    def without_driver(self) -> dict[str, str]:
        """UUID of each GPU to why it is out of use; empty unless the driver is gone."""
        if not self.driver_gone:
            return {}
        why = f"NVIDIA driver: {self.driver_problem}"
        return dict.fromkeys(self.by_uuid, why)

    @cached_property
    def fenced(self) -> dict[str, str]:
        """UUID to the entry of the fence file that names the GPU, in words."""
        fenced: dict[str, str] = {}
        for uuid, gpu in self.by_uuid.items():
            entry = self.fence.entry_of(gpu)
            if entry:
                fenced[uuid] = f"fenced by file ({entry})"
        return fenced
