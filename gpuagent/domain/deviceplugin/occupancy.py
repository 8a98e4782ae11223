"""Devices in use at the moment of a call: kubelet's allocations as last read, and those of the last minutes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain

from gpuagent.domain.pods.exchange import Exchanged, joined
from gpuagent.domain.pods.holdings import Recorded
from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName
from gpuagent.domain.scheduling.decision import DecidedContainer
from gpuagent.domain.snapshot import Snapshot

REMEMBER_S = 120.0
"""How long to keep an allocation at least. Kubelet may offer again an id that it lost during Allocate."""

LAPSE_S = 30.0
"""Within this time kubelet writes an allocation to its checkpoint, even on a slow disk."""


@dataclass(frozen=True, slots=True)
class RecentAllocation:
    """One answered Allocate.

    Attributes:
        uuids: UUIDs of the GPUs.
        at: monotonic seconds.
        owner: the container; None if the agent cannot identify it.
        pod_uid: UID of its pod; None where only the name is known.
        certain: kubelet's allocations named it.
        guessed: another pod that gets the same answer may be the owner; kubelet did not answer.
        exchanged: the ids that kubelet has in place of `ids`.
    """

    resource: str
    ids: frozenset[str]
    uuids: frozenset[str]
    at: float
    owner: ContainerRef | None = None
    pod_uid: str | None = None
    certain: bool = False
    guessed: bool = False
    exchanged: Mapping[str, str] = field(default_factory=dict)


InUse = Holding | RecentAllocation


@dataclass(frozen=True)
class RecentAllocations:
    """Oldest first; no two share an id."""

    all: tuple[RecentAllocation, ...] = ()

    def adding(self, new: RecentAllocation) -> "RecentAllocations":
        """With `new`."""
        kept = self.all
        if new.exchanged or not self.ids.isdisjoint(new.ids):
            kept = tuple([left for old in kept if (left := _left(old, new))])
        return RecentAllocations((*kept, new))

    def fresh(self, now: float, snapshot: Snapshot) -> "RecentAllocations":
        """Without old allocations, unless their pod lives and kubelet's allocations were not read since."""
        young = self.since(now - REMEMBER_S)
        old = self.all[: len(self.all) - len(young)]
        kept = tuple([one for one in old if one.at >= snapshot.holdings_at and one.pod_uid in snapshot.pod_by_uid])
        return self if len(kept) == len(old) else RecentAllocations((*kept, *young))

    def since(self, at: float) -> tuple[RecentAllocation, ...]:
        """Those that were made after `at`."""
        first = next((n for n, one in enumerate(self.all) if one.at > at), len(self.all))
        return self.all[first:] if first else self.all

    def read(self, recorded: Recorded, read_at: float) -> "RecentAllocations":
        """With the containers that kubelet's allocations name, read by a call that began at `read_at`."""

        def named(one: RecentAllocation) -> RecentAllocation:
            if one.certain or one.exchanged or one.at >= read_at:
                return one
            records = recorded.containers.get((one.resource, one.ids), ())
            found = next((record for record in records if record.container.pod.namespace), None)
            if found is None:
                return one
            uid = found.pod.uid if found.pod else found.uid or None
            return replace(one, owner=found.container, pod_uid=uid, certain=True, guessed=False)

        kept = tuple(map(named, self.all))
        return RecentAllocations(kept) if kept != self.all else self

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
        """Whether the container of some allocation is not identified yet."""
        return None in [one.owner for one in self.all]

    @cached_property
    def exchanged(self) -> tuple[Mapping[str, str], ...]:
        """Exchanged ids and their units, one mapping an allocation, oldest first."""
        return tuple([one.exchanged for one in self.all if one.exchanged])


def _left(older: RecentAllocation, newer: RecentAllocation) -> RecentAllocation | None:
    """`older` with the units that are not in `newer` and whose ids `newer` does not exchange; None without any."""
    if not older.exchanged and older.ids.isdisjoint(newer.ids):
        return older
    again = [unit for device_id, unit in older.exchanged.items() if device_id in newer.exchanged]
    left = older.ids.difference(newer.ids, again)
    return replace(older, ids=left) if left else None


@dataclass(frozen=True)
class Occupancy:
    """Devices in use, as seen from one call.

    Attributes:
        snapshot: with kubelet's allocations as last read.
        recent: allocations of the last minutes.
        offered: ids that kubelet calls free in this call. If an allocation has one of these ids, kubelet has freed or
            lost that allocation. Kubelet frees all ids of a pod at once.
        refused: UIDs of pods that kubelet does not admit.
    """

    snapshot: Snapshot
    recent: RecentAllocations
    offered: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()

    @cached_property
    def all(self) -> list[tuple[InUse, frozenset[str]]]:
        """Everything that may be in use by pods that may live, and the UUIDs of its GPUs."""
        newer = frozenset[str]().union(*[one.ids for one in self.recent.since(self.snapshot.holdings_at)])
        listed = [(h, uuids) for h, uuids in self.snapshot.placed if h.ids.isdisjoint(newer)]
        known = {(h.resource, h.ids) for h, _ in listed}  # kubelet's owner is more reliable
        pods = {(one.owner.pod, one.pod_uid) for one in self.recent.all if one.owner}
        gone = {pod for pod in pods if not self._lives(*pod)}
        others = [one for one in self.recent.all if (one.resource, one.ids) not in known]
        others = [one for one in others if (one.owner and (one.owner.pod, one.pod_uid)) not in gone]
        # Kubelets before 1.19 do not list free ids: only their allocations show which ids are free again.
        lapsed = self.snapshot.holdings_at - LAPSE_S
        return [*listed, *[(one, one.uuids) for one in others if not (one.exchanged and one.at < lapsed)]]

    def _lives(self, name: PodName, uid: str | None) -> bool:
        pod = self.snapshot.living_pods.get(name)
        return not self.snapshot.pods_known or (pod is not None and (not uid or uid == pod.uid))

    def may_live(self, one: InUse) -> bool:
        """Whether its pod may still be alive."""
        uid = one.pod_uid if isinstance(one, RecentAllocation) else None
        return one.owner is None or self._lives(one.owner.pod, uid)

    def work_out(self) -> None:
        """Work out now what calls need, and what lasts on a node with many pods."""
        _ = self.ids, self._sharers, self._unserved

    def is_of(self, snapshot: Snapshot, recent: RecentAllocations, refused: frozenset[str]) -> bool:
        """Whether it is made of these very values."""
        return self.snapshot is snapshot and self.recent is recent and self.refused is refused

    def seen_with(self, offered: frozenset[str]) -> "Occupancy":
        """As seen from a call in which kubelet calls these ids free. Usually that changes nothing."""
        return self if self.ids.isdisjoint(offered) else replace(self, offered=offered)

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of everything in `all`."""
        return frozenset[str]().union(*[one.ids for one, _ in self.all])

    @cached_property
    def standing(self) -> list[tuple[InUse, frozenset[str]]]:
        """Allocations without an id that kubelet now calls free, each with the UUIDs of its GPUs."""
        return [(one, uuids) for one, uuids in self.all if one.ids.isdisjoint(self.offered)]

    @cached_property
    def again(self) -> list[InUse]:
        """Allocations with an id that kubelet now calls free."""
        return [one for one, _ in self.all if not one.ids.isdisjoint(self.offered)]

    @cached_property
    def suspect(self) -> list[InUse]:
        """Allocations of living pods that kubelet still calls free: kubelet can lose a reservation."""
        return [one for one in self.again if self.may_live(one)]

    @cached_property
    def suspect_ids(self) -> frozenset[str]:
        """All ids of the suspect allocations; kubelet calls some of these ids free."""
        return frozenset[str]().union(*[one.ids for one in self.suspect])

    @cached_property
    def exchanged(self) -> Exchanged:
        """Kubelet's ids and the units in their place; empty if kubelet asks which ids to take."""
        return reduce(joined, self.recent.exchanged, self.snapshot.exchanged)

    def given(self, resource: str, ids: frozenset[str]) -> InUse | None:
        """The allocation that has all of `ids`, which kubelet requests again or reuses."""
        for one in self.recent.all:
            if one.resource == resource and ids <= one.ids and self.may_live(one):
                return one
        return next((one for one, _ in self.all if one.resource == resource and ids <= one.ids), None)

    def free(self, resource: str) -> dict[str, int]:
        """GPU UUID to the number of advertised units that no container has."""
        freed = {one.owner for one in self.again} - {None}
        held = [one.ids for one, _ in self.standing if one.resource == resource and one.owner not in freed]
        used = Counter(map(self.snapshot.units.get, chain.from_iterable(held)))
        blocks = (block for block in self.snapshot.lists.get(resource, ()) if block.healthy)
        return {block.gpu.uuid: block.count - used[block.gpu.uuid] for block in blocks}

    def full_gpus(self, requester: ContainerRef | None) -> set[str]:
        """UUIDs of GPUs with as many pods, or for the isolation layer as many containers, as allowed.

        For the requesting pod, its own GPUs do not count as full of pods; the same holds for its container.
        """
        most_pods, most_containers = self.snapshot.policy.max_pods_per_gpu, self.snapshot.max_sharers

        def is_full(containers: set[ContainerRef]) -> bool:
            if len(containers) >= most_pods:
                pods = {container.pod for container in containers}
                if len(pods) >= most_pods and (requester is None or requester.pod not in pods):
                    return True
            return most_containers is not None and len(containers - {requester}) >= most_containers

        return {uuid for uuid, containers in self._sharers.items() if is_full(containers)}

    @cached_property
    def _sharers(self) -> dict[str, set[ContainerRef]]:
        """GPU UUID to the containers there; one without a name stands for each that is not identified."""
        sharers: dict[str, set[ContainerRef]] = defaultdict(set)
        unnamed: Counter[tuple[str, str]] = Counter()
        for one, uuids in self.standing:
            for uuid in uuids:
                owner = one.owner
                if owner is None:  # the two resources of one unidentified container are two allocations
                    unnamed[uuid, one.resource] += 1
                    owner = ContainerRef(PodName("", str(unnamed[uuid, one.resource])), "")
                sharers[uuid].add(owner)
        return sharers

    def reserved(self, resource: str, requester: PodName | None) -> Counter[str]:
        """GPU UUID to units that schedulers chose for pods which kubelet has still to admit.

        Any author of a pod can write a decision. So a pod reserves only units that kubelet may still request and that
        are free. The oldest pods come first, and the sum on a GPU never exceeds its free units.
        """
        found: Counter[str] = Counter()
        if not self.snapshot.decided:
            return found
        free = self.free(resource)
        for pod in self._to_come(requester):
            wanted: Counter[str] = Counter()
            for one in self._unserved[pod.name]:
                wanted.update({uuid: units.get(resource, 0) for uuid, units in one.units.items()})
            if all(free.get(uuid, 0) >= units for uuid, units in wanted.items()):
                found.update(wanted)
                for uuid, units in wanted.items():
                    free[uuid] -= units
        return found

    @cached_property
    def _unserved(self) -> dict[PodName, list[DecidedContainer]]:
        """Pods that lack devices which a scheduler chose, each with those containers."""
        served = {one.owner for one, _ in self.standing}.union([one.owner for one in self.suspect])
        lacking = (
            (name, [one for one in containers if one.owner not in served])
            for name, containers in self.snapshot.decided.items()
        )
        return {name: containers for name, containers in lacking if containers}

    def _to_come(self, requester: PodName | None) -> Iterator[Pod]:
        """Pods with a decision that kubelet may still admit, while it admits `requester`, oldest first.

        Kubelet admits pods in order of arrival, by age if many arrive at once, and tries none twice. So it has admitted
        or rejected every pod that precedes the requesting pod in both orders. A running pod was admitted: its GPUs are
        in use even if kubelet has lost its checkpoint.
        """
        living, order = self.snapshot.living_pods, self.snapshot.arrival
        until = living.get(requester) if requester else None
        for name in self._unserved:
            pod = living[name]
            if not pod.deleting and pod.uid not in self.refused:
                passed_over = until and order[name] < order[until.name] and pod.created <= until.created
                if pod.container_ids or not (pod.mirror or passed_over):
                    yield pod
