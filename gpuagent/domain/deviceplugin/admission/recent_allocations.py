"""The agent's record of its answered Allocates: kubelet's allocations, as last read, may not show them yet."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpuagent.domain.pods.pod import ContainerRef, Holding
from gpuagent.domain.snapshot import Snapshot

REMEMBER_S = 120.0
"""Least time to remember an allocation: kubelet may lose one while it is made, and offers its ids again."""


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
