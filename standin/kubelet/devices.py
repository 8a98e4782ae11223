"""Kubelet's device accounting: what is listed, reserved and held. Pure: no I/O, no threads, no clock."""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp

WITHOUT_TOPOLOGY = -1
HEALTHY = "Healthy"


class AllocationError(Exception):
    """Kubelet refuses an allocation; the text is what the pod's status shows inside."""


class Slot(NamedTuple):
    """The container and resource of one ``Allocate``."""

    uid: str
    container: str
    resource: str


class Ask(NamedTuple):
    """The values that kubelet would put into ``GetPreferredAllocation``."""

    available: frozenset[str]
    must_include: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True)
class Held:
    """The devices of one container and resource, by NUMA node, and the plugin's answer for them."""

    by_numa: Mapping[int, tuple[str, ...]]
    answer: dp.ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        """The devices without their NUMA nodes."""
        return frozenset(device for ids in self.by_numa.values() for device in ids)


class Devices:
    """The tables of the device manager.

    Args:
        rng: stands for Go's map order; every random choice comes from it.
        double_allocation: forget reservations of a running ``Allocate`` when held devices are collected, as kubelet
            does: the next pod can then get the same ids.
        checks_health: refuse allocations of resources without a healthy device, and of held devices gone bad.
    """

    def __init__(self, rng: random.Random, *, double_allocation: bool = False, checks_health: bool = True) -> None:
        self._rng = rng
        self._double_allocation = double_allocation
        self._checks_health = checks_health
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.numa: dict[str, dict[str, tuple[int, ...]]] = {}
        self.reserved: dict[str, set[str]] = {}
        self.held: dict[Slot, Held] = {}
        self._in_flight: dict[Slot, set[str]] = {}

    # Devices of plugins.

    def replace(self, resource: str, devices: Iterable[dp.Device]) -> None:
        """Take a list; it replaces the former one. Only ``Healthy`` to the letter is healthy."""
        healthy: set[str] = set()
        unhealthy: set[str] = set()
        numa: dict[str, tuple[int, ...]] = {}
        for device in devices:
            (healthy if device.health == HEALTHY else unhealthy).add(device.ID)
            numa[device.ID] = tuple(node.ID for node in device.topology.nodes)
        self.healthy[resource], self.unhealthy[resource], self.numa[resource] = healthy, unhealthy, numa

    def mark_unhealthy(self, resource: str) -> None:
        """The plugin is gone: its devices stay, none of them healthy."""
        if resource in self.healthy:
            self.unhealthy.setdefault(resource, set()).update(self.healthy[resource])
            self.healthy[resource] = set()

    def forget(self, resource: str) -> None:
        """The grace period is over. Kubelet keeps the table of NUMA nodes."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)

    def known(self, resource: str) -> bool:
        """Whether the resource belongs to a device plugin; admission ignores the others."""
        return resource in self.healthy or resource in self.reserved

    # Devices of pods.

    def container(self, uid: str, container: str) -> dict[str, Held]:
        """A container's devices, by resource."""
        return {slot.resource: held for slot, held in self.held.items() if slot[:2] == (uid, container)}

    def restore(self, held: Mapping[Slot, Held], resources: Iterable[str]) -> None:
        """Start from a checkpoint: known resources have no device until their plugin is back."""
        self.held = dict(held)
        self._rebuild()
        for resource in resources:
            self.healthy[resource], self.unhealthy[resource] = set(), set()

    def collect(self, active: Collection[str]) -> None:
        """Free what pods that are not active hold. Kubelet does this lazily."""
        ended = [slot for slot in self.held if slot.uid not in active]
        if ended:
            for slot in ended:
                del self.held[slot]
            self._rebuild()

    def _rebuild(self) -> None:
        reserved: dict[str, set[str]] = {}
        for slot, held in self.held.items():
            reserved.setdefault(slot.resource, set()).update(held.ids)
        if not self._double_allocation:
            for slot, ids in self._in_flight.items():
                reserved.setdefault(slot.resource, set()).update(ids)
        self.reserved = reserved

    # One allocation: choose (reserves), then commit, roll back or leak.

    def choose(
        self, slot: Slot, required: int, reusable: Collection[str], affinity: Collection[int] | None
    ) -> Generator[Ask, Collection[str], frozenset[str]]:
        """Choose and reserve devices.

        Yields at most once, when the plugin may be asked for its preference; send the ids it answered. Returns the
        devices to allocate, empty when the container holds them already.
        """
        needed = self._needed(slot, required)
        if not needed:
            return frozenset()
        resource = slot.resource
        taken = self._in_flight.setdefault(slot, set())

        def take(candidates: Collection[str]) -> bool:
            free = sorted(set(candidates) - taken)
            picked = self._rng.sample(free, min(needed - len(taken), len(free)))
            taken.update(picked)
            self.reserved.setdefault(resource, set()).update(picked)
            return len(taken) == needed

        done = False
        try:
            # Reuse comes before the plugin's preference: it may not be asked at all.
            done = take(reusable)
            if not done:
                available = self.healthy[resource] - self.reserved.get(resource, set())
                short = needed - len(taken)
                if len(available) < short:
                    raise AllocationError(
                        f"requested number of devices unavailable for {resource}. "
                        f"Requested: {short}, Available: {len(available)}"
                    )
                aligned, unaligned, rest = self._by_affinity(resource, available, affinity)
                # More aligned devices than needed: the plugin chooses among those. Else all of them are taken first.
                pool = aligned if short < len(aligned) else available
                done = pool is available and take(aligned)
                if not done:
                    preferred = yield Ask(frozenset(pool | taken), frozenset(taken), required)
                    wanted = set(preferred) & pool
                    done = take(wanted) or take(aligned) or take(unaligned) or take(rest)
            return frozenset(taken)
        finally:
            if not done:  # As in kubelet, what was reserved so far stays reserved until the next rebuild.
                self._in_flight.pop(slot, None)

    def _needed(self, slot: Slot, required: int) -> int:
        held = self.held.get(slot)
        if held is not None and len(held.ids) != required:
            raise AllocationError(
                f'pod "{slot.uid}" container "{slot.container}" changed request for resource "{slot.resource}" '
                f"from {len(held.ids)} to {required}"
            )
        healthy = self.healthy.get(slot.resource)
        if healthy is None and (self._checks_health or not held):
            raise AllocationError(f"cannot allocate unregistered device {slot.resource}")
        if self._checks_health and healthy is not None:
            if not healthy:
                raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {slot.resource}")
            if held and not held.ids <= healthy:
                raise AllocationError(
                    "previously allocated devices are no longer healthy; "
                    f"cannot allocate unhealthy devices {slot.resource}"
                )
        return 0 if held else required

    def _by_affinity(
        self, resource: str, available: set[str], affinity: Collection[int] | None
    ) -> tuple[set[str], set[str], set[str]]:
        if affinity is None:
            return set(), set(), available
        nodes = self.numa[resource]
        rest = {device for device in available if not nodes[device]}
        aligned = {device for device in available if not set(affinity).isdisjoint(nodes[device])}
        return aligned, available - aligned - rest, rest

    def vanished(self, resource: str, ids: Collection[str]) -> list[str]:
        """Which of the devices the newest list lacks: since 1.34 kubelet dereferences nil there."""
        return sorted(set(ids) - self.numa.get(resource, {}).keys())

    def commit(self, slot: Slot, ids: Collection[str], answer: dp.ContainerAllocateResponse) -> None:
        """The plugin answered: the container holds the devices."""
        nodes = self.numa.get(slot.resource, {})
        by_numa: dict[int, list[str]] = {}
        for device in sorted(ids):
            for node in nodes.get(device) or (WITHOUT_TOPOLOGY,):
                by_numa.setdefault(node, []).append(device)
        self.held[slot] = Held({node: tuple(ids) for node, ids in by_numa.items()}, answer)
        self._in_flight.pop(slot, None)

    def roll_back(self, slot: Slot) -> None:
        """The plugin refused: kubelet rebuilds the reserved devices from the held ones."""
        self._in_flight.pop(slot, None)
        self._rebuild()

    def leak(self, slot: Slot) -> None:
        """Handle an answer with no container response: the devices stay reserved for no container."""
        self._in_flight.pop(slot, None)
