"""Devices in use at the moment of a call: kubelet's allocations as last read, and the record of its calls since."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName
from gpuagent.domain.scheduling.decision import DecidedContainer
from gpuagent.domain.snapshot import Snapshot

REMEMBER_S = 120.0
"""How long to keep an allocation at least. Kubelet may offer again an id that it lost during Allocate."""

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
        exchanged: kubelet has other ids in place of `ids`.
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


@dataclass(frozen=True)
class AdmissionTracker:
    """The agent's record of kubelet's calls.

    Attributes:
        recent: allocations of the last minutes, oldest first; no two share an id.
        admission: allocations of the pod in admission, oldest first.
        refused: UIDs of pods that the agent refused, or whose units kubelet assigned to others. Kubelet never admits
            them again, unless it is restarted.
        deleted: pods that were deleted before they held a device, each with the monotonic seconds of the sighting.
        refused_names: names of refused pods that the agent has not read yet, each with the monotonic seconds of the
            refusal.
    """

    recent: tuple[RecentAllocation, ...] = ()
    admission: tuple[RecentAllocation, ...] = ()
    refused: frozenset[str] = frozenset()
    deleted: tuple[tuple[float, Pod], ...] = ()
    refused_names: tuple[tuple[float, PodName], ...] = ()

    @property
    def last(self) -> RecentAllocation | None:
        """The last allocation of the pod in admission."""
        return self.admission[-1] if self.admission else None

    @cached_property
    def ids(self) -> frozenset[str]:
        """Device ids of all recent allocations."""
        return frozenset[str]().union(*[one.ids for one in self.recent])

    @cached_property
    def by_pod(self) -> dict[str | None, list[RecentAllocation]]:
        """UIDs of the pods to their recent allocations; None where no pod is known."""
        found: dict[str | None, list[RecentAllocation]] = defaultdict(list)
        for one in self.recent:
            found[one.pod_uid].append(one)
        return found

    def holders(self, ids: frozenset[str]) -> set[str]:
        """UIDs of the pods that have some of `ids` by kubelet's allocations."""
        return {one.pod_uid for one in self.recent if one.certain and one.pod_uid and not one.ids.isdisjoint(ids)}

    def allocated(self, new: RecentAllocation) -> "AdmissionTracker":
        """After an answered Allocate."""
        last = self.last
        admission: tuple[RecentAllocation, ...] = (new,)
        if new.owner is None and last and last.owner is None and last.resource != new.resource:
            admission = ()  # the second resource of an unseen pod's container: the container is complete
        elif new.owner and last and last.pod_uid == new.pod_uid:
            same = new.owner, new.resource
            admission = (*[one for one in self.admission if (one.owner, one.resource) != same], new)
        left, refused = self.freeing(new.ids), self.refused
        if left is not self:  # kubelet has assigned again what these pods had
            refused |= self.holders(new.ids).difference([one.pod_uid for one in left.recent])
        refused -= {new.pod_uid}  # a restarted kubelet tries again
        now = replace(self, recent=(*left.recent, new), admission=admission, refused=refused)
        if left is self:
            vars(now)["by_pod"] = self.by_pod | {new.pod_uid: [*self.by_pod.get(new.pod_uid, ()), new]}
        return now

    def freeing(self, ids: frozenset[str]) -> "AdmissionTracker":
        """After kubelet has freed these ids."""
        left = tuple([one if one.ids.isdisjoint(ids) else replace(one, ids=one.ids - ids) for one in self.recent])
        return self if left == self.recent else replace(self, recent=tuple([one for one in left if one.ids]))

    def refusing(self, pod: Pod | None, begun: Collection[PodName], snap: Snapshot, now: float) -> "AdmissionTracker":
        """After a refusal: kubelet rejects the pod in admission.

        Args:
            pod: that pod; None if it is uncertain.
            begun: pods that kubelet listed without devices during the refused call. Kubelet lists a pod from the
                beginning of its admission on, and admits one at a time: so it is done with each of them.
            snap: the current snapshot.
            now: monotonic seconds.
        """
        past = {pod.uid} if pod else set[str]()
        ambiguous = {deleted.name for _, deleted in self.deleted}
        names = [name for name in begun if name not in ambiguous]
        past.update([snap.living_pods[name].uid for name in names if name in snap.living_pods])
        unread = tuple([(now, name) for name in names if name not in snap.living_pods])
        return replace(self, admission=(), refused=self.refused | past, refused_names=self.refused_names + unread)

    def restarted(self) -> "AdmissionTracker":
        """After a start of kubelet: it may admit again what it has rejected, and lists a pod only from then on."""
        return replace(self, admission=(), refused=frozenset(), refused_names=())

    def seeing(self, former: Snapshot | None, snap: Snapshot, now: float) -> "AdmissionTracker":
        """With the deleted pods and the container names of a new snapshot."""
        kept = self.fresh(now, snap)
        deleted, refused, recent = kept.deleted, kept.refused, kept.recent
        if former and former.living_pods is not snap.living_pods:
            present = {pod.uid for pod in snap.pods}  # kubelet itself reports which have ended
            done = (former.with_devices | kept.by_pod.keys()).difference(one.pod_uid for one in kept.admission)
            past = present | refused | done
            deleted += tuple((now, pod) for uid, pod in former.pod_by_uid.items() if uid not in past)
            refused = refused & {*present, *(pod.uid for _, pod in deleted)}
        unread = kept.refused_names
        if unread:
            read = {name: snap.living_pods[name].uid for _, name in unread if name in snap.living_pods}
            refused |= set(read.values())
            unread = tuple([(at, name) for at, name in unread if name not in read])
        if former is None or former.holdings_at < snap.holdings_at:
            recent = tuple([_named(one, snap) for one in recent])
        return replace(kept, recent=recent, deleted=deleted, refused=refused, refused_names=unread)

    def fresh(self, now: float, snap: Snapshot) -> "AdmissionTracker":
        """Without entries that are too old. One of a living pod stays until kubelet's allocations are read."""
        recent, admission = self.recent, self.admission
        if recent and now - recent[0].at >= REMEMBER_S:
            young, read_at, pods = now - REMEMBER_S, snap.holdings_at, snap.pod_by_uid
            recent = tuple([one for one in recent if one.at > young or (one.at >= read_at and one.pod_uid in pods)])
        if admission and now - admission[-1].at >= ADMISSION_S:
            admission = ()
        deleted = tuple([one for one in self.deleted if now - one[0] < DELETED_S]) if self.deleted else ()
        unread = tuple([one for one in self.refused_names if now - one[0] < REMEMBER_S]) if self.refused_names else ()
        if (recent, admission, deleted, unread) == (self.recent, self.admission, self.deleted, self.refused_names):
            return self
        return replace(self, recent=recent, admission=admission, deleted=deleted, refused_names=unread)


def _named(one: RecentAllocation, snap: Snapshot) -> RecentAllocation:
    """With the container that kubelet's allocations name.

    Units that an old kubelet did not choose itself stay with the container that they were chosen for.
    """
    if one.certain or one.exchanged or one.at >= snap.holdings_at:
        return one
    records = snap.recorded.containers.get((one.resource, one.ids), ())
    found = next((record for record in records if record.container.pod.namespace), None)
    if found is None:
        return one
    uid = found.pod.uid if found.pod else found.uid or None
    return replace(one, owner=found.container, pod_uid=uid, certain=True)


@dataclass(frozen=True)
class Occupancy:
    """Devices in use, as seen from one call.

    Attributes:
        snapshot: with kubelet's allocations as last read.
        tracker: with the allocations of the last minutes, and the pods that kubelet does not admit.
        offered: ids that kubelet calls free in this call. If an allocation has one of these ids, kubelet has freed or
            lost that allocation. Kubelet frees all ids of a pod at once.
    """

    snapshot: Snapshot
    tracker: AdmissionTracker
    offered: frozenset[str] = frozenset()

    @cached_property
    def all(self) -> list[tuple[InUse, frozenset[str]]]:
        """Everything that may be in use by pods that may live, and the UUIDs of its GPUs."""
        recent, read_at = self.tracker.recent, self.snapshot.holdings_at
        newer = frozenset[str]().union(*[one.ids for one in recent if one.at > read_at])
        listed = self.snapshot.placed
        if newer:
            listed = [(h, uuids) for h, uuids in listed if h.ids.isdisjoint(newer)]
        known = {(h.resource, h.ids) for h, _ in listed}  # kubelet's owner is more reliable
        others = [one for one in recent if (one.resource, one.ids) not in known and self.may_live(one)]
        return [*listed, *[(one, one.uuids) for one in others]]

    def may_live(self, one: InUse) -> bool:
        """Whether its pod may still be alive."""
        if one.owner is None or not self.snapshot.pods_known:
            return True
        pod = self.snapshot.living_pods.get(one.owner.pod)
        uid = one.pod_uid if isinstance(one, RecentAllocation) else None
        return pod is not None and (not uid or uid == pod.uid)

    def work_out(self) -> None:
        """Work out now what calls need, and what lasts on a node with many pods."""
        snap = self.snapshot
        _ = self._ids, self._sharers, self._used, self._unserved, self.tracker.by_pod
        _ = snap.serving, snap.first_asks, snap.unstarted, snap.pod_by_uid, snap.arrival, snap.names

    def allocated(self, tracker: AdmissionTracker) -> "Occupancy":
        """After the last Allocate of `tracker`. Extends the indexes that are cached, if that call only adds to them."""
        now, new = replace(self, tracker=tracker), tracker.recent[-1]
        owner = new.owner
        # An Allocate from before the last read may free units by which a later Allocate overrides that read.
        only_adds = new.at > self.snapshot.holdings_at or tracker.recent[:-1] == self.tracker.recent
        extends = "all" in vars(self) and only_adds and not self.has_of(new.ids)
        if owner and extends and self.may_live(new):
            sharers = {**self._sharers}
            for uuid in new.uuids:
                containers, pods = sharers.get(uuid, ((), ()))
                sharers[uuid] = {*containers, owner}, {*pods, owner.pod}
            more = Counter(map(self.snapshot.units.get, new.ids))
            used = self._used | {new.resource: self._used.get(new.resource, Counter()) + more}
            lacking = {name: [c for c in left if c.owner != owner] for name, left in self._unserved.items()}
            unserved = {name: left for name, left in lacking.items() if left}
            vars(now).update(all=[*self.all, (new, new.uuids)], _ids=(self._ids[0], new.ids.union(*self._ids[1:])))
            vars(now).update(_sharers=sharers, _used=used, _unserved=unserved)
        return now

    def seen_with(self, offered: frozenset[str]) -> "Occupancy":
        """As seen from a call in which kubelet calls these ids free. Usually that changes nothing."""
        return replace(self, offered=offered) if self.has_of(offered) else self

    def has_of(self, ids: frozenset[str]) -> bool:
        """Whether some of `ids` are in use."""
        return not all(part.isdisjoint(ids) for part in self._ids)

    @cached_property
    def _ids(self) -> tuple[frozenset[str], ...]:
        """Ids of everything in `all`, in one set or two."""
        return (frozenset[str]().union(*[one.ids for one, _ in self.all]),)

    @cached_property
    def in_use(self) -> list[tuple[InUse, frozenset[str]]]:
        """Allocations without an id that kubelet now calls free, each with the UUIDs of its GPUs."""
        offered = self.offered
        return [(one, uuids) for one, uuids in self.all if one.ids.isdisjoint(offered)] if offered else self.all

    @cached_property
    def again(self) -> list[InUse]:
        """Allocations with an id that kubelet now calls free."""
        return [one for one, _ in self.all if not one.ids.isdisjoint(self.offered)] if self.offered else []

    @cached_property
    def suspect(self) -> list[InUse]:
        """Allocations of living pods that kubelet still calls free: kubelet can lose a reservation."""
        return [one for one in self.again if self.may_live(one)]

    @cached_property
    def suspect_ids(self) -> frozenset[str]:
        """All ids of the suspect allocations; kubelet calls some of these ids free."""
        return frozenset[str]().union(*[one.ids for one in self.suspect])

    def given(self, resource: str, ids: frozenset[str]) -> InUse | None:
        """The allocation that has all of `ids`, which kubelet requests again or reuses."""
        for one in self.tracker.recent:
            if one.resource == resource and ids <= one.ids and self.may_live(one):
                return one
        found = (one for one, _ in self.all if one.resource == resource and ids <= one.ids)
        return next(found, None) if self.has_of(ids) else None

    def free(self, resource: str) -> dict[str, int]:
        """GPU UUID to the number of advertised units that no container has."""
        used = self._used.get(resource, Counter())
        blocks = (block for block in self.snapshot.lists.get(resource, ()) if block.healthy)
        return {block.gpu.uuid: block.count - used[block.gpu.uuid] for block in blocks}

    @cached_property
    def _used(self) -> dict[str, Counter[str | None]]:
        """Resource to units in use by the UUID of their GPU; None for units that are not advertised."""
        freed = {one.owner for one in self.again} - {None}
        used: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
        for one, _ in self.in_use:
            if one.owner not in freed:
                used[one.resource].update(map(self.snapshot.units.get, one.ids))
        return used

    def full_gpus(self, requester: ContainerRef | None) -> Collection[str]:
        """UUIDs of GPUs with as many pods, or for the isolation layer as many containers, as allowed.

        For the requesting pod, its own GPUs do not count as full of pods; the same holds for its container.
        """
        most_pods, most_containers = self.snapshot.policy.max_pods_per_gpu, self.snapshot.max_sharers
        full = []
        for uuid, (containers, pods) in self._sharers.items():
            of_pods = len(pods) >= most_pods and (requester is None or requester.pod not in pods)
            if of_pods or (most_containers is not None and len(containers - {requester}) >= most_containers):
                full.append(uuid)
        return full

    @cached_property
    def _sharers(self) -> dict[str, tuple[set[ContainerRef], set[PodName]]]:
        """GPU UUID to the containers there and their pods; one without a name for each that is not identified."""
        sharers: dict[str, tuple[set[ContainerRef], set[PodName]]] = defaultdict(lambda: (set(), set()))
        unnamed: Counter[tuple[str, str]] = Counter()
        for one, uuids in self.in_use:
            for uuid in uuids:
                owner = one.owner
                if owner is None:  # the two resources of one unidentified container are two allocations
                    unnamed[uuid, one.resource] += 1
                    owner = ContainerRef(PodName("", str(unnamed[uuid, one.resource])), "")
                containers, pods = sharers[uuid]
                containers.add(owner)
                pods.add(owner.pod)
        return sharers

    def reserved(self, resource: str, requester: PodName | None) -> Mapping[str, int]:
        """GPU UUID to units that schedulers chose for pods which kubelet has still to admit.

        Any author of a pod can write a decision. So a pod reserves only units that kubelet may still request and that
        are free. The oldest pods come first, and the sum on a GPU never exceeds its free units.
        """
        if not self._unserved:
            return {}
        found, free = Counter[str](), Counter(self.free(resource))
        for containers in self._to_come(requester):
            wanted: dict[str, int] = defaultdict(int)
            for uuid, amounts in chain.from_iterable([one.units.items() for one in containers]):
                wanted[uuid] += amounts.get(resource, 0)
            if all(free[uuid] >= units for uuid, units in wanted.items()):
                found.update(wanted)
                free.subtract(wanted)
        return found

    @cached_property
    def _unserved(self) -> dict[PodName, list[DecidedContainer]]:
        """Pods that lack devices which a scheduler chose, each with those containers."""
        if not self.snapshot.decided:
            return {}
        served = {one.owner for one, _ in self.in_use}.union([one.owner for one in self.suspect])
        lacking = (
            (name, [one for one in containers if one.owner not in served])
            for name, containers in self.snapshot.decided.items()
        )
        return {name: containers for name, containers in lacking if containers}

    def _to_come(self, requester: PodName | None) -> Iterator[list[DecidedContainer]]:
        """Containers of pods that kubelet may still admit, while it admits `requester`, oldest first.

        Kubelet admits pods in order of arrival, by age if many arrive at once, and tries none twice. So it has admitted
        or rejected every pod that precedes the requesting pod in both orders. A running pod was admitted: its GPUs are
        in use even if kubelet has lost its checkpoint.
        """
        living, order = self.snapshot.living_pods, self.snapshot.arrival
        until = living.get(requester) if requester else None
        for name, containers in self._unserved.items():
            pod = living[name]
            if not pod.deleting and pod.uid not in self.tracker.refused:
                passed_over = until and order[name] < order[until.name] and pod.created <= until.created
                if pod.container_ids or not (pod.mirror or passed_over):
                    yield containers
