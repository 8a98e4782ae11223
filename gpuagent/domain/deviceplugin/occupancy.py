"""What is in use at the moment of a call: kubelet's allocations as last read, and those of the last minutes.

`offered` are the ids that kubelet calls free in that call. An allocation one of whose ids is offered again has been
freed (kubelet frees all of a pod at once), or kubelet has lost it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain

from gpuagent.domain.deviceplugin.recent_allocations import RecentAllocation, RecentAllocations
from gpuagent.domain.exchange import Exchanged, joined
from gpuagent.domain.pods import Holding, Owner, Pod, PodName
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.units import units_of

LAPSE_S = 30.0
"""Within this time what kubelet was answered is in its checkpoint, however slow the disk."""

InUse = Holding | RecentAllocation


@dataclass(frozen=True)
class Occupancy:
    """What is in use at `now` (monotonic seconds), seen from one call."""

    snapshot: Snapshot
    recent: RecentAllocations
    offered: frozenset[str]
    now: float

    @cached_property
    def all(self) -> tuple[InUse, ...]:
        """Everything that may be in use, by pods that may live."""
        return (*self._holdings, *self._unlisted)

    @cached_property
    def _unlisted(self) -> list[RecentAllocation]:
        """Recent allocations that kubelet's do not show; of the others it knows better whose they are."""
        known = {(h.resource, h.ids) for h in self._holdings}
        gone = {pod for pod in {(o.owner.pod, o.pod_uid) for o in self.recent.all if o.owner} if not self._lives(*pod)}
        found = [
            one
            for one in self.recent.all
            if (one.resource, one.ids) not in known and not (one.owner and (one.owner.pod, one.pod_uid) in gone)
        ]
        return [one for one in found if not self._lapsed(one)] if self.recent.exchanged else found

    def _lapsed(self, one: RecentAllocation) -> bool:
        """Kubelets before 1.19 offer no ids: there their allocations alone say that nothing has them any more."""
        return bool(one.exchanged) and self.snapshot.holdings_at - one.at > LAPSE_S

    @cached_property
    def _newer(self) -> frozenset[str]:
        """Ids that were allocated since kubelet's allocations were read."""
        return frozenset[str]().union(*[one.ids for one in self.recent.since(self.snapshot.holdings_at)])

    @cached_property
    def _holdings(self) -> Sequence[Holding]:
        newer = self._newer
        return [h for h in self.snapshot.holdings if h.ids.isdisjoint(newer)] if newer else self.snapshot.holdings

    def _lives(self, name: PodName, uid: str | None) -> bool:
        pod = self.snapshot.living_pods.get(name)
        return not self.snapshot.pods_known or (pod is not None and (not uid or uid == pod.uid))

    def may_live(self, one: InUse) -> bool:
        """Whether its pod may live, as far as is known."""
        uid = one.pod_uid if isinstance(one, RecentAllocation) else None
        return one.owner is None or self._lives(one.owner.pod, uid)

    @cached_property
    def standing(self) -> tuple[InUse, ...]:
        """What is in use and not offered again."""
        offered = self.offered
        return tuple([one for one in self.all if one.ids.isdisjoint(offered)])

    @cached_property
    def suspect(self) -> tuple[InUse, ...]:
        """Allocations of living pods whose ids are offered all the same: kubelet can lose a reservation."""
        offered = self.offered
        return tuple([one for one in self.all if not one.ids.isdisjoint(offered) and self.may_live(one)])

    @cached_property
    def served(self) -> frozenset[Owner]:
        """Containers that were given units; kubelet may have lost them (`suspect`)."""
        return frozenset([owner for one in (*self.standing, *self.suspect) if (owner := one.owner)])

    @cached_property
    def exchanged(self) -> Exchanged:
        """What kubelet's ids were exchanged for; empty where it asks which ones to take."""
        return reduce(joined, self.recent.exchanged, self.snapshot.exchanged)

    def given(self, resource: str, ids: frozenset[str]) -> InUse | None:
        """The allocation that has all of `ids`: kubelet asks for them again, or reuses them."""
        for one in self.recent.all:
            if one.resource == resource and ids <= one.ids and self.may_live(one):
                return one
        return next((h for h in self._holdings if h.resource == resource and ids <= h.ids), None)

    def gpus_of(self, one: InUse) -> set[str]:
        """UUIDs of the GPUs on offer that it has units of."""
        return {uuid for uuid in set(map(self.snapshot.units.get, one.ids)) if uuid}

    @cached_property
    def _by_gpu(self) -> list[tuple[InUse, frozenset[str]]]:
        """What stands, and the UUIDs of its GPUs."""
        offered, newer, units = self.offered, self._newer, self.snapshot.units.keys()
        return [
            *[(h, uuids) for h, uuids in self.snapshot.placed if h.ids.isdisjoint(newer) and h.ids.isdisjoint(offered)],
            *[
                (one, one.uuids if one.ids <= units else frozenset(self.gpus_of(one)))
                for one in self._unlisted
                if one.ids.isdisjoint(offered)
            ],
        ]

    def free(self, resource: str) -> dict[str, int]:
        """GPU UUID to units on offer that no container has."""
        ids = chain.from_iterable([one.ids for one in self.standing if one.resource == resource])
        held = Counter(map(self.snapshot.units.get, ids))
        blocks = (block for block in self.snapshot.lists.get(resource, ()) if block.healthy)
        return {block.gpu.uuid: block.count - held[block.gpu.uuid] for block in blocks}

    @property
    def some_unnamed(self) -> bool:
        """Whether some are of containers that are not known yet."""
        return None in [one.owner for one in self._unlisted]

    def full_gpus(self, requester: Owner | None) -> set[str]:
        """UUIDs of GPUs with as many pods, or for the isolation layer as many containers, as allowed.

        The requesting pod's own GPUs do not have a pod too many for it, its container's own not a container.
        """
        most_pods, most_containers = self.snapshot.policy.max_pods_per_gpu, self.snapshot.max_sharers
        pods: dict[str, set[PodName]] = defaultdict(set)
        containers: dict[str, set[Owner]] = defaultdict(set)
        unnamed: dict[str, Counter[str]] = defaultdict(Counter)
        for one, uuids in self._by_gpu:
            owner = one.owner
            for uuid in uuids:
                if owner is None:
                    unnamed[uuid][one.resource] += 1
                    continue
                pods[uuid].add(owner.pod)
                if most_containers is not None:
                    containers[uuid].add(owner)
        full = set()
        for uuid in {*pods, *unnamed}:
            # The two resources of one container that is not known are two allocations.
            unknown = max(unnamed[uuid].values(), default=0)
            if len(pods[uuid]) + unknown >= most_pods and (requester is None or requester.pod not in pods[uuid]):
                full.add(uuid)
            if most_containers is not None and len(containers[uuid] - {requester}) + unknown >= most_containers:
                full.add(uuid)
        return full

    def short_gpus(self, resource: str, need: int, reserved_units: Mapping[str, int]) -> set[str]:
        """UUIDs of GPUs with less than `need` units of the mode's other resource than `resource` left.

        `reserved_units` are those of that other resource.
        """
        others = [(name, kind) for name, kind in self.snapshot.sold.items() if name != resource]
        if not others:
            return set()
        (other, kind), *_ = others
        # Kubelet frees all resources of a pod at once.
        freed = {one.owner for one in self.all if one.resource == resource} - {
            one.owner for one in self.standing if one.resource == resource
        }
        held = [
            one.ids for one in self.standing if one.resource == other and (one.owner is None or one.owner not in freed)
        ]
        used = Counter(map(self.snapshot.units.get, chain.from_iterable(held)))
        unit = self.snapshot.policy.unit
        return {
            uuid
            for uuid, gpu in self.snapshot.gpus.items()
            if units_of(gpu, kind, unit) - used[uuid] - reserved_units.get(uuid, 0) < max(need, 1)
        }


def reserved(resource: str, requester: PodName | None, refused: Collection[str], now: Occupancy) -> Counter[str]:
    """GPU UUID to units that schedulers chose for pods which kubelet has still to admit.

    `refused` are UIDs of pods that kubelet gives up.

    A pod reserves nothing that kubelet will not ask for, or that cannot be given: any author of a pod can write a
    decision. The oldest come first; the sum on a GPU is never more than is free there.
    """
    snap = now.snapshot
    found: Counter[str] = Counter()
    free: dict[str, int] | None = None
    for pod in _to_come(requester, now):
        wanted: Counter[str] = Counter()
        for one in snap.decided[pod.name] if pod.uid not in refused else ():
            if one.owner not in now.served:
                wanted.update({uuid: units.get(resource, 0) for uuid, units in one.units.items()})
        if not wanted.total():
            continue
        free = now.free(resource) if free is None else free
        if all(free.get(uuid, 0) >= units for uuid, units in wanted.items()):
            found.update(wanted)
            for uuid, units in wanted.items():
                free[uuid] -= units
    return found


def _to_come(requester: PodName | None, now: Occupancy) -> Iterator[Pod]:
    """Pods with a decision that kubelet may still ask for while it admits `requester`, oldest first.

    It admits pods in the order in which they come, by age where many come at once, and tries none twice. So it has
    admitted or rejected those that come before the requesting pod in both orders. A pod that runs was admitted: its
    GPUs are in use even where kubelet has lost its checkpoint.
    """
    snap = now.snapshot
    until = snap.living_pods.get(requester) if requester else None
    for name, pod in snap.living_pods.items():
        if until and name == until.name:
            until = None
        if name in snap.decided and not pod.deleting:
            passed_over = until is not None and pod.created <= until.created
            if pod.container_ids or not (pod.mirror or passed_over):
                yield pod
