"""Devices in use at the moment of a call: kubelet's allocations as last read, and the record of its calls since."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName
from gpuagent.domain.scheduling.decision import DecidedContainer
from gpuagent.domain.snapshot import Snapshot

REMEMBER_S = 120.0
"""Least time to remember an allocation: kubelet may lose one while it is made, and offers its ids again."""

ADMISSION_S = 30.0
"""The calls of one pod's admission follow each other. After a pause of this length, a call is for another pod."""

DELETED_S = 30.0
"""How long kubelet may still admit a pod whose deletion the agent has seen."""


@dataclass(frozen=True, slots=True)
class RecentAllocation:
    """One answered Allocate.

    Attributes:
        uuids: UUIDs of the GPUs.
        at: monotonic seconds.
        owner: the container; None if the agent cannot identify it.
        pod_uid: UID of its pod; None where only the name is known.
        certain: kubelet's allocations named it.
        exchanged: `ids` are the units that the agent chose, and kubelet records the ids that it picked itself.
    """

    resource: str
    ids: frozenset[str]
    uuids: frozenset[str]
    at: float
    owner: ContainerRef | None = None
    pod_uid: str | None = None
    certain: bool = False
    exchanged: bool = False


InUse = Holding | RecentAllocation

Placed = tuple[InUse, frozenset[str]]
"""An allocation, and the UUIDs of its GPUs."""


def all_ids(allocations: Iterable[InUse]) -> frozenset[str]:
    """The device ids of all these allocations."""
    return frozenset[str]().union(*[allocation.ids for allocation in allocations])


ByPod = Mapping[str | None, Collection[RecentAllocation]]
"""UID of a pod to its recent allocations; None where no pod is known."""


@dataclass(frozen=True)
class RecentAllocations:
    """The allocations of the last minutes, with their index.

    Attributes:
        allocations: oldest first; no two share an id.
        by_pod: the same by pod.
    """

    allocations: tuple[RecentAllocation, ...] = ()
    by_pod: ByPod = field(default_factory=dict)

    @classmethod
    def of(cls, allocations: Collection[RecentAllocation]) -> "RecentAllocations":
        by_pod: defaultdict[str | None, list[RecentAllocation]] = defaultdict(list)
        for allocation in allocations:
            by_pod[allocation.pod_uid].append(allocation)
        return cls(tuple(allocations), by_pod)

    def adding(self, allocation: RecentAllocation) -> "RecentAllocations":
        """A copy with this allocation, which shares no id with the others."""
        uid = allocation.pod_uid
        # Extend the index: to build it again would make each Allocate slower than the one before.
        of_pod = [*self.by_pod.get(uid, ()), allocation]
        by_pod = {**self.by_pod, uid: of_pod}
        return RecentAllocations((*self.allocations, allocation), by_pod)

    def freeing(self, ids: frozenset[str]) -> "RecentAllocations":
        """After kubelet has freed these ids."""
        # Most Allocates are for units that no recent allocation has: then the index stays.
        touched = [allocation for allocation in self.allocations if not allocation.ids.isdisjoint(ids)]
        if not touched:
            return self
        remaining = []
        for allocation in self.allocations:
            if allocation.ids.isdisjoint(ids):
                remaining.append(allocation)
                continue
            # A new container may have only some of them. For all that the agent knows, the rest is still in use.
            kept_ids = allocation.ids - ids
            if kept_ids:
                remaining.append(replace(allocation, ids=kept_ids))
        return RecentAllocations.of(remaining)

    def fresh(self, at: float, snap: Snapshot) -> "RecentAllocations":
        """Without old allocations. One of a living pod stays until kubelet's allocations were read after it."""
        if not self.allocations:
            return self
        oldest_kept = at - REMEMBER_S
        # The oldest one comes first, so usually one look is enough.
        if self.allocations[0].at > oldest_kept:
            return self
        kept = []
        for allocation in self.allocations:
            is_young = allocation.at > oldest_kept
            is_living = allocation.pod_uid in snap.pod_index.by_uid
            # Until kubelet's allocations are read, no other record says that the pod has these devices.
            is_unread = is_living and allocation.at >= snap.allocations.read_at
            if is_young or is_unread:
                kept.append(allocation)
        if len(kept) == len(self.allocations):
            return self
        return RecentAllocations.of(kept)

    def with_named_containers(self, snap: Snapshot) -> "RecentAllocations":
        """With the containers that kubelet's allocations name."""
        return RecentAllocations.of([_with_named_container(allocation, snap) for allocation in self.allocations])

    @cached_property
    def ids(self) -> frozenset[str]:
        """Device ids of all the allocations."""
        return all_ids(self.allocations)

    def holders(self, ids: frozenset[str]) -> set[str]:
        """UIDs of the pods that have some of `ids` by kubelet's allocations."""
        uids = set[str]()
        for allocation in self.allocations:
            # Whose the other allocations are, is only what the agent believes.
            if allocation.ids.isdisjoint(ids) or not allocation.certain:
                continue
            if allocation.pod_uid:
                uids.add(allocation.pod_uid)
        return uids


def _with_named_container(allocation: RecentAllocation, snap: Snapshot) -> RecentAllocation:
    """With the container that kubelet's allocations name."""
    if allocation.certain or allocation.at >= snap.allocations.read_at:
        return allocation
    # Units that an old kubelet did not choose itself stay with the container that they were chosen for.
    if allocation.exchanged:
        return allocation
    for record in snap.allocation_index.recorded.containers.get((allocation.resource, allocation.ids), ()):
        # An entry of the checkpoint alone has no pod name.
        if record.container.pod.namespace:
            uid = record.pod.uid if record.pod else record.uid
            return replace(
                allocation,
                owner=record.container,
                pod_uid=uid or None,
                certain=True,
            )
    return allocation


class DeletedPod(NamedTuple):
    """A pod that was deleted before it held a device, and the monotonic seconds of the sighting."""

    at: float
    pod: Pod


class RefusedName(NamedTuple):
    """The name of a refused pod that the agent has not read yet, and the monotonic seconds of the refusal."""

    at: float
    pod: PodName


@dataclass(frozen=True)
class AdmissionTracker:
    """The agent's record of kubelet's calls.

    Attributes:
        record: allocations of the last minutes.
        admission: allocations of the pod in admission, oldest first.
        refused: UIDs of pods that the agent refused, or whose units kubelet assigned to others. Kubelet never admits
            them again, unless it is restarted.
        deleted: pods that kubelet may still admit although they were deleted.
        refused_names: refused pods whose UIDs are still to come.
        relisted: UIDs of the pods that lived when kubelet was restarted: it takes them by age then.
    """

    record: RecentAllocations = field(default_factory=RecentAllocations)
    admission: tuple[RecentAllocation, ...] = ()
    refused: frozenset[str] = frozenset()
    deleted: tuple[DeletedPod, ...] = ()
    refused_names: tuple[RefusedName, ...] = ()
    relisted: frozenset[str] = frozenset()

    @property
    def recent(self) -> tuple[RecentAllocation, ...]:
        """Allocations of the last minutes, oldest first."""
        return self.record.allocations

    @property
    def by_pod(self) -> ByPod:
        """The same by pod."""
        return self.record.by_pod

    @property
    def last(self) -> RecentAllocation | None:
        """The last allocation of the pod in admission."""
        return self.admission[-1] if self.admission else None

    def allocated(self, allocation: RecentAllocation) -> "AdmissionTracker":
        """The record after an answered Allocate."""
        others = self.record.freeing(allocation.ids)
        refused = self.refused
        if others is not self.record:
            # Kubelet has given these ids to a new container, so it has rejected the pods that had them.
            rejected = self.record.holders(allocation.ids)
            refused |= rejected.difference(others.by_pod)
        # A pod that gets devices is being admitted: a restarted kubelet tries rejected pods again.
        refused -= {allocation.pod_uid}
        admission = self._admission_after(allocation)
        record = others.adding(allocation)
        return replace(self, record=record, admission=admission, refused=refused)

    def _admission_after(self, allocation: RecentAllocation) -> tuple[RecentAllocation, ...]:
        """Allocations of the pod in admission, after this one."""
        last = self.last
        if last is None:
            return (allocation,)
        if allocation.owner is None:
            # An unseen container has at most two resources. With the second one, it is complete.
            is_second_resource = last.owner is None and last.resource != allocation.resource
            return () if is_second_resource else (allocation,)
        if last.pod_uid != allocation.pod_uid:
            return (allocation,)
        replaced = allocation.owner, allocation.resource
        earlier = [other for other in self.admission if (other.owner, other.resource) != replaced]
        return (*earlier, allocation)

    def freeing(self, ids: frozenset[str]) -> "AdmissionTracker":
        """After kubelet has freed these ids."""
        record = self.record.freeing(ids)
        if record is self.record:
            return self
        return replace(self, record=record)

    def refusing(
        self,
        pod: Pod | None,
        begun: Collection[PodName],
        snap: Snapshot,
        at: float,
    ) -> "AdmissionTracker":
        """After a refusal: kubelet rejects the pod in admission.

        Args:
            pod: that pod; None if it is uncertain.
            begun: pods that kubelet listed without devices during the refused call. Kubelet lists a pod from the
                beginning of its admission on, and admits one at a time: so it is done with each of them.
            snap: the current snapshot.
            at: monotonic seconds.
        """
        refused = {*self.refused}
        if pod is not None:
            refused.add(pod.uid)
        refused_names = [*self.refused_names]
        # Under the name of a deleted pod, kubelet may have listed either that pod or the one that took its name.
        ambiguous = {entry.pod.name for entry in self.deleted}
        for name in begun:
            if name in ambiguous:
                continue
            living = snap.living_pods.get(name)
            if living:
                refused.add(living.uid)
            else:
                # The watch has yet to show it. Its UID comes with the snapshot that has the pod.
                refused_names.append(RefusedName(at, name))
        return replace(
            self,
            admission=(),
            refused=frozenset(refused),
            refused_names=tuple(refused_names),
        )

    def restarted(self, snap: Snapshot | None) -> "AdmissionTracker":
        """After a start of kubelet: it may admit again what it has rejected, and lists a pod only from then on."""
        relisted = frozenset(snap.pod_index.by_uid) if snap else frozenset[str]()
        return replace(self, admission=(), refused=frozenset(), refused_names=(), relisted=relisted)

    def came_before(self, pod: Pod, other: Pod, snap: Snapshot) -> bool:
        """Whether kubelet has certainly tried the living pod `pod` before `other`.

        It takes pods as they come, and by age those that it reads in one list: when it starts, and when its watch
        breaks. The agent may have seen them in another order.
        """
        if not snap.was_seen_before(pod, other):
            return False
        if pod.uid in self.relisted and other.uid in self.relisted:
            return pod.created < other.created
        return pod.created <= other.created

    def seeing(
        self,
        former: Snapshot | None,
        snap: Snapshot,
        at: float,
    ) -> "AdmissionTracker":
        """With the deleted pods and the container names of a new snapshot, seen `at` these monotonic seconds."""
        tracker = self.fresh(at, snap)
        if former is not None and former.living_pods is not snap.living_pods:
            tracker = tracker.after_pod_changes(former, snap, at)
        if tracker.refused_names:
            tracker = tracker.with_uids(snap)
        if former is None or former.allocations.read_at < snap.allocations.read_at:
            record = tracker.record.with_named_containers(snap)
            tracker = replace(tracker, record=record)
        return tracker

    def after_pod_changes(
        self,
        former: Snapshot,
        snap: Snapshot,
        at: float,
    ) -> "AdmissionTracker":
        """With the pods that were deleted between two snapshots."""
        # Kubelet itself reports the pods that have ended, so those are present.
        present = {pod.uid for pod in snap.pods}
        # A pod in admission has some devices, and kubelet may still ask for its other containers.
        in_admission = {allocation.pod_uid for allocation in self.admission}
        with_devices = former.allocation_index.with_devices | self.by_pod.keys()
        admitted = with_devices - in_admission
        # Kubelet may still admit a deleted pod, but neither one that it has rejected nor one that it has admitted.
        settled = present | self.refused | admitted
        deleted = [*self.deleted]
        for uid, pod in former.pod_index.by_uid.items():
            if uid not in settled:
                deleted.append(DeletedPod(at, pod))
        # A UID that no call can be for any more would stay for ever.
        deleted_uids = {entry.pod.uid for entry in deleted}
        refused = self.refused & (present | deleted_uids)
        return replace(self, deleted=tuple(deleted), refused=refused)

    def with_uids(self, snap: Snapshot) -> "AdmissionTracker":
        """With the UIDs of refused pods that the agent has read by now."""
        refused = {*self.refused}
        still_unread = []
        for entry in self.refused_names:
            pod = snap.living_pods.get(entry.pod)
            if pod is None:
                still_unread.append(entry)
            else:
                refused.add(pod.uid)
        return replace(self, refused=frozenset(refused), refused_names=tuple(still_unread))

    def fresh(self, at: float, snap: Snapshot) -> "AdmissionTracker":
        """Without entries that are too old. Returns itself if there are none, which keeps what was derived from it."""
        record = self.record.fresh(at, snap)
        admission = self.admission
        if admission and at - admission[-1].at >= ADMISSION_S:
            admission = ()
        deleted = self.deleted
        if deleted:
            deleted = tuple([entry for entry in deleted if at - entry.at < DELETED_S])
        # A pod that has not come for so long was deleted before the watch saw it.
        refused_names = self.refused_names
        if refused_names:
            refused_names = tuple([entry for entry in refused_names if at - entry.at < REMEMBER_S])
        kept = record, admission, deleted, refused_names
        if kept == (self.record, self.admission, self.deleted, self.refused_names):
            return self
        return replace(self, record=record, admission=admission, deleted=deleted, refused_names=refused_names)


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
