"""Allocations of the last minutes: what kubelet's allocations, as last read, do not show yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpuagent.domain.pods import CheckpointEntry, Holding, Owner, Pod, PodName

REMEMBER_S = 120.0
"""Kubelet can offer an id again that it lost from its allocations while Allocate ran."""


@dataclass(frozen=True, slots=True)
class RecentAllocation:
    """One answered Allocate.

    Attributes:
        uuids: UUIDs of the GPUs.
        at: monotonic seconds.
        owner: the container; None where it is not known.
        pod_uid: UID of its pod; None where only the name is known.
        certain: kubelet's allocations named it.
        exchanged: the ids that kubelet has in place of `ids`.
    """

    resource: str
    ids: frozenset[str]
    uuids: frozenset[str]
    at: float
    owner: Owner | None = None
    pod_uid: str | None = None
    certain: bool = False
    exchanged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RecentAllocations:
    """Oldest first; no two share an id."""

    all: tuple[RecentAllocation, ...] = ()

    def adding(self, new: RecentAllocation) -> "RecentAllocations":
        """With `new`."""
        kept = self.all
        if new.exchanged or not self.ids.isdisjoint(new.ids):
            rest = (replace(old, ids=left) if (left := _left(old, new)) != old.ids else old for old in kept)
            kept = tuple(old for old in rest if old.ids)
        return RecentAllocations((*kept, new))

    def fresh(self, now: float) -> "RecentAllocations":
        """Without what is too old."""
        kept = self.since(now - REMEMBER_S)
        return self if kept is self.all else RecentAllocations(kept)

    def since(self, at: float) -> tuple[RecentAllocation, ...]:
        """Those that were made after `at`."""
        first = next((n for n, one in enumerate(self.all) if one.at > at), len(self.all))
        return self.all[first:] if first else self.all

    def read(
        self,
        holdings: Sequence[Holding],
        checkpoint: Sequence[CheckpointEntry],
        read_at: float,
        pods: Mapping[PodName, Pod],
    ) -> "RecentAllocations":
        """With the containers that kubelet's allocations name, read by a call that began at `read_at`.

        Args:
            holdings: pod-resources, which has no ordinary init containers.
            checkpoint: has them, by the UID of the pod.
            read_at: monotonic seconds.
            pods: the living ones.
        """
        unread = [one for one in self.all if not (one.certain or one.exchanged) and one.at < read_at]
        if not unread:
            return self
        wanted = {(one.resource, one.ids) for one in unread}
        by_uid = {pod.uid: pod for pod in pods.values()}
        uids = {(entry.resource, entry.ids): entry.pod_uid for entry in checkpoint}
        found: dict[tuple[str, frozenset[str]], tuple[Owner, str | None]] = {}
        for holding in holdings:
            if (ask := (holding.resource, holding.ids)) in wanted and holding.owner.pod.namespace:
                pod, uid = pods.get(holding.owner.pod), uids.get(ask)
                # The list has names alone, which a newer pod may have. Of static pods the checkpoint has other UIDs.
                found[ask] = holding.owner, pod.uid if pod and (pod.static or not uid) else uid
        for entry in checkpoint:
            if (entry.resource, entry.ids) in wanted and entry.pod_uid in by_uid:
                owner = Owner(by_uid[entry.pod_uid].name, entry.container)
                found.setdefault((entry.resource, entry.ids), (owner, entry.pod_uid))
        return RecentAllocations(tuple(_named(one, found.get((one.resource, one.ids))) for one in self.all))

    @cached_property
    def ids(self) -> frozenset[str]:
        """Device ids of all."""
        return frozenset[str]().union(*[one.ids for one in self.all])

    @cached_property
    def pod_uids(self) -> frozenset[str]:
        """UIDs of the pods that they were for."""
        return frozenset([one.pod_uid for one in self.all if one.pod_uid])

    @cached_property
    def some_unnamed(self) -> bool:
        """Whether some are of containers that are not known yet."""
        return None in [one.owner for one in self.all]

    @cached_property
    def exchanged(self) -> tuple[Mapping[str, str], ...]:
        """What ids were exchanged for, oldest first, where some were."""
        return tuple([one.exchanged for one in self.all if one.exchanged])


def _named(one: RecentAllocation, found: tuple[Owner, str | None] | None) -> RecentAllocation:
    return replace(one, owner=found[0], pod_uid=found[1], certain=True) if found else one


def _left(older: RecentAllocation, newer: RecentAllocation) -> frozenset[str]:
    """Units of `older` that `newer` does not have, and for whose ids it has no others."""
    if older.exchanged:
        again = (unit for device_id, unit in older.exchanged.items() if device_id in newer.exchanged)
        return older.ids.difference(newer.ids, again)
    return older.ids if older.ids.isdisjoint(newer.ids) else older.ids - newer.ids
