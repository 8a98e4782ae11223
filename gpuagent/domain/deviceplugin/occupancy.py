"""Devices in use at the moment of a call: kubelet's allocations as last read, and the answered Allocates since."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.recent_allocations import InUse, RecentAllocation, all_ids
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.scheduling.decision import DecidedContainer
from gpuagent.domain.snapshot import Snapshot

Placed = tuple[InUse, frozenset[str]]
"""An allocation, and the UUIDs of its GPUs."""


class Sharers(NamedTuple):
    """Who shares a GPU: the containers, and their pods."""

    containers: Collection[ContainerRef]
    pods: Collection[PodName]


UsedUnits = Mapping[str, Counter[str | None]]
"""Resource to units in use by the UUID of their GPU; None for units that are not advertised."""


@dataclass(frozen=True, slots=True)
class Indexes:
    """What an `Occupancy` derives, extended by each Allocate: to build it again would slow down the next call.

    Attributes:
        allocations: as `Occupancy.allocations`.
        ids: their ids, in two sets. The first one is large and stays, and the second one grows.
        sharers: GPU UUID to who shares it.
        used: units in use.
        unserved: pods that lack devices which a scheduler chose, each with those containers.
    """

    allocations: list[Placed]
    ids: tuple[frozenset[str], frozenset[str]]
    sharers: Mapping[str, Sharers]
    used: UsedUnits
    unserved: Mapping[PodName, list[DecidedContainer]]


@dataclass(frozen=True)
class Occupancy:
    """Devices in use, as seen from one call.

    Attributes:
        snapshot: with kubelet's allocations as last read.
        tracker: with the allocations of the last minutes, and the pods that kubelet does not admit.
        offered: ids that kubelet calls free in this call. If an allocation has one of these ids, kubelet has freed or
            lost that allocation. Kubelet frees all ids of a pod at once.
        extended: indexes from before the last Allocate, extended by it; None: they are built when they are needed.
    """

    snapshot: Snapshot
    tracker: AdmissionTracker
    offered: frozenset[str] = frozenset()
    extended: Indexes | None = field(default=None, repr=False, compare=False)

    def allocated(self, tracker: AdmissionTracker) -> "Occupancy":
        """After the last Allocate of `tracker`. Extends the indexes if that call only adds to them."""
        allocation = tracker.recent[-1]
        owner = allocation.owner
        # An Allocate from before the last read may free units by which a later Allocate overrides that read.
        is_after_read = allocation.at > self.snapshot.allocations.read_at
        only_adds = is_after_read or tracker.recent[:-1] == self.tracker.recent
        # The number of an unidentified container depends on all others, so the indexes are built again for it.
        extended = None
        if owner and only_adds:
            is_new = not self.has_of(allocation.ids)
            if is_new and self.may_live(allocation):
                extended = self._indexes_with(allocation, owner)
        return Occupancy(self.snapshot, tracker, self.offered, extended)

    def _indexes_with(self, allocation: RecentAllocation, owner: ContainerRef) -> Indexes:
        """The indexes, with an allocation whose units were free."""
        resource = allocation.resource
        sharers = {**self._sharers}
        no_sharers = Sharers((), ())
        # Copies: calls that began before this Allocate still read the former sets.
        for uuid in allocation.uuids:
            others = sharers.get(uuid, no_sharers)
            sharers[uuid] = Sharers({*others.containers, owner}, {*others.pods, owner.pod})
        units = Counter(map(self.snapshot.units.get, allocation.ids))
        used_units = self._used.get(resource, Counter()) + units
        # The container has its units now, so it reserves none any more.
        unserved = _without_served(self._unserved, {owner})
        large, growing = self._ids
        return Indexes(
            allocations=[*self.allocations, (allocation, allocation.uuids)],
            ids=(large, growing | allocation.ids),
            sharers=sharers,
            used={**self._used, resource: used_units},
            unserved=unserved,
        )

    def work_out(self) -> None:
        """Work out now what calls need, and what lasts on a node with many pods: reading a cached property does so."""
        _ = self._ids
        _ = self._sharers
        _ = self._used
        _ = self._unserved
        _ = self.snapshot.serving
        _ = self.snapshot.pod_index.first_asks
        _ = self.snapshot.allocation_index.unstarted
        _ = self.snapshot.pod_index.by_uid
        _ = self.snapshot.pod_index.arrival
        _ = self.snapshot.names

    def seen_with(self, offered: frozenset[str]) -> "Occupancy":
        """As seen from a call in which kubelet calls these ids free. Usually that changes nothing."""
        if not self.has_of(offered):
            return self
        return self.with_freed(offered)

    def with_freed(self, ids: frozenset[str]) -> "Occupancy":
        """As if kubelet called these ids free, and only these."""
        return Occupancy(self.snapshot, self.tracker, offered=ids)

    @cached_property
    def allocations(self) -> list[Placed]:
        """Everything that may be in use by pods that may live."""
        if self.extended:
            return self.extended.allocations
        recent = self.tracker.recent
        read_at = self.snapshot.allocations.read_at
        listed = self.snapshot.allocation_index.placed
        # Kubelet has assigned these units again since the agent last read its allocations.
        reassigned = all_ids([allocation for allocation in recent if allocation.at > read_at])
        if reassigned:
            listed = [(holding, uuids) for holding, uuids in listed if holding.ids.isdisjoint(reassigned)]
        known = {(holding.resource, holding.ids) for holding, _ in listed}
        unlisted = []
        for allocation in recent:
            # Where both have an allocation, the owner that kubelet names is more reliable.
            is_listed = (allocation.resource, allocation.ids) in known
            if not is_listed and self.may_live(allocation):
                unlisted.append((allocation, allocation.uuids))
        return [*listed, *unlisted]

    @cached_property
    def _ids(self) -> tuple[frozenset[str], frozenset[str]]:
        """Ids of all the allocations, in two sets."""
        if self.extended:
            return self.extended.ids
        allocations = [allocation for allocation, _ in self.allocations]
        return all_ids(allocations), frozenset()

    def has_of(self, ids: frozenset[str]) -> bool:
        """Whether some of `ids` are in use."""
        large, growing = self._ids
        return not (large.isdisjoint(ids) and growing.isdisjoint(ids))

    def may_live(self, allocation: InUse) -> bool:
        """Whether its pod may still be alive."""
        owner = allocation.owner
        if owner is None or not self.snapshot.pod_list.known:
            return True
        pod = self.snapshot.living_pods.get(owner.pod)
        if pod is None:
            return False
        uid = allocation.pod_uid if isinstance(allocation, RecentAllocation) else None
        # Another pod may have taken the name.
        return not uid or uid == pod.uid

    @cached_property
    def in_use(self) -> list[Placed]:
        """Allocations without an id that kubelet now calls free."""
        offered = self.offered
        if not offered:
            return self.allocations
        return [(allocation, uuids) for allocation, uuids in self.allocations if allocation.ids.isdisjoint(offered)]

    @cached_property
    def offered_again(self) -> list[InUse]:
        """Allocations with an id that kubelet now calls free."""
        offered = self.offered
        if not offered:
            return []
        return [allocation for allocation, _ in self.allocations if not allocation.ids.isdisjoint(offered)]

    @cached_property
    def suspect(self) -> list[InUse]:
        """Allocations of living pods that kubelet still calls free: kubelet can lose a reservation."""
        return [allocation for allocation in self.offered_again if self.may_live(allocation)]

    @cached_property
    def suspect_ids(self) -> frozenset[str]:
        """All ids of the suspect allocations; kubelet calls some of these ids free."""
        return all_ids(self.suspect)

    def allocation_with(self, resource: str, ids: frozenset[str]) -> InUse | None:
        """The allocation that has all of `ids`, which kubelet requests again or reuses."""
        # A recent allocation knows the UID of its pod, so look there first.
        for allocation in self.tracker.recent:
            if allocation.resource != resource:
                continue
            if ids <= allocation.ids and self.may_live(allocation):
                return allocation
        if not self.has_of(ids):
            return None
        for listed, _ in self.allocations:
            if listed.resource == resource and ids <= listed.ids:
                return listed
        return None

    def free(self, resource: str) -> dict[str, int]:
        """GPU UUID to the number of advertised units that no container has."""
        used = self._used.get(resource, Counter())
        free = {}
        for block in self.snapshot.lists.get(resource, ()):
            if block.healthy:
                uuid = block.gpu.uuid
                free[uuid] = block.offered - used[uuid]
        return free

    @cached_property
    def _used(self) -> UsedUnits:
        if self.extended:
            return self.extended.used
        # Kubelet frees all ids of a pod at once, so it has freed the other allocations of these containers too.
        freed = {allocation.owner for allocation in self.offered_again}
        freed.discard(None)
        used: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
        for allocation, _ in self.in_use:
            if allocation.owner not in freed:
                uuids = map(self.snapshot.units.get, allocation.ids)
                used[allocation.resource].update(uuids)
        return used

    def full_gpus(self, requester: ContainerRef | None) -> Collection[str]:
        """UUIDs of GPUs with as many pods, or for the isolation layer as many containers, as allowed.

        For the requesting pod, its own GPUs do not count as full of pods; the same holds for its container.
        """
        most_pods = self.snapshot.policy.max_pods_per_gpu
        # Only some isolation layers have a limit.
        most_containers = self.snapshot.max_sharers
        full = []
        for uuid, (containers, pods) in self._sharers.items():
            is_own_gpu = requester is not None and requester.pod in pods
            has_most_pods = len(pods) >= most_pods and not is_own_gpu
            has_most_containers = False
            if most_containers is not None:
                others = len(containers) - (requester in containers)
                has_most_containers = others >= most_containers
            if has_most_pods or has_most_containers:
                full.append(uuid)
        return full

    @cached_property
    def _sharers(self) -> Mapping[str, Sharers]:
        if self.extended:
            return self.extended.sharers
        return _sharers_of(self.in_use)

    def reserved(self, resource: str, requester: PodName | None) -> Mapping[str, int]:
        """GPU UUID to units that schedulers chose for pods which kubelet has still to admit.

        Any author of a pod can write a decision. So a pod reserves only units that kubelet may still request and that
        are free. The oldest pods come first, and the sum on a GPU never exceeds its free units.
        """
        if not self._unserved:
            return {}
        reserved = Counter[str]()
        free = Counter(self.free(resource))
        for containers in _still_to_come(self._unserved, requester, self.snapshot, self.tracker):
            wanted: defaultdict[str, int] = defaultdict(int)
            for container in containers:
                for uuid, amounts in container.units.items():
                    wanted[uuid] += amounts.get(resource, 0)
            lacking = [uuid for uuid, units in wanted.items() if units > free[uuid]]
            if not lacking:
                reserved.update(wanted)
                free.subtract(wanted)
        return reserved

    @cached_property
    def _unserved(self) -> Mapping[PodName, list[DecidedContainer]]:
        if self.extended:
            return self.extended.unserved
        if not self.snapshot.schedulers.decided:
            return {}
        # A container whose units kubelet has lost still runs on them: it does not ask for them again.
        served = {allocation.owner for allocation, _ in self.in_use}
        served.update([allocation.owner for allocation in self.suspect])
        return _without_served(self.snapshot.schedulers.decided, served)


def _sharers_of(in_use: Iterable[Placed]) -> dict[str, Sharers]:
    """GPU UUID to who shares it; a container without a name stands for each that is not identified."""
    sharers: defaultdict[str, tuple[set[ContainerRef], set[PodName]]] = defaultdict(lambda: (set(), set()))
    unnamed: Counter[tuple[str, str]] = Counter()
    for allocation, uuids in in_use:
        for uuid in uuids:
            owner = allocation.owner
            if owner is None:
                # The two resources of one unidentified container are two allocations. So count by resource, and
                # give the first of each the same name: otherwise the container would count twice.
                unnamed[uuid, allocation.resource] += 1
                number = str(unnamed[uuid, allocation.resource])
                owner = ContainerRef(PodName("", number), "")
            containers, pods = sharers[uuid]
            containers.add(owner)
            pods.add(owner.pod)
    return {uuid: Sharers(*sets) for uuid, sets in sharers.items()}


def _without_served(
    decided: Mapping[PodName, Sequence[DecidedContainer]],
    served: Collection[ContainerRef | None],
) -> dict[PodName, list[DecidedContainer]]:
    """The pods that still lack devices which a scheduler chose, each with those containers."""
    unserved = {}
    for name, containers in decided.items():
        lacking = [container for container in containers if container.owner not in served]
        if lacking:
            unserved[name] = lacking
    return unserved


def _still_to_come(
    unserved: Mapping[PodName, list[DecidedContainer]],
    requester: PodName | None,
    snap: Snapshot,
    tracker: AdmissionTracker,
) -> Iterator[list[DecidedContainer]]:
    """Containers of pods that kubelet may still admit, while it admits `requester`, oldest first.

    Kubelet tries no pod twice. So it has admitted or rejected every pod that came before the requesting one.
    """
    living = snap.living_pods
    requesting_pod = living.get(requester) if requester else None
    for name, containers in unserved.items():
        pod = living[name]
        # Kubelet admits neither a pod that is being deleted nor one that it has rejected.
        if pod.deleting or pod.uid in tracker.refused:
            continue
        if pod.container_ids:
            # A running pod was admitted: its GPUs are in use even if kubelet has lost its checkpoint.
            yield containers
            continue
        if pod.mirror:
            # Kubelet does not admit it. Any author of a pod can set this, so a running one was counted above.
            continue
        if requesting_pod is None:
            yield containers
            continue
        if not tracker.came_before(pod, requesting_pod, snap):
            yield containers
