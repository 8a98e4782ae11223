"""Who has a claim on which units at the moment of a call: kubelet's book as last read, and the latest handouts.

`offered` are the ids kubelet says are free in that call. A claim one of whose ids is offered again has been given back
(kubelet frees all of a pod at once), or kubelet has lost it from its books.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain

from gpuagent.domain.exchange import Exchanged, joined
from gpuagent.domain.ledger import Handout, Ledger
from gpuagent.domain.pods import Holding, Owner, Pod, PodName
from gpuagent.domain.promised import Role, Stray, roles_left
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.units import units_of

LAPSE_S = 30.0
"""Within this time what kubelet was answered is in its checkpoint, however slow the disk."""


@dataclass(frozen=True)
class Claims:
    """Claims at `now` (monotonic seconds), seen from one call."""

    snapshot: Snapshot
    ledger: Ledger
    offered: frozenset[str]
    now: float

    @cached_property
    def all(self) -> tuple[Holding | Handout, ...]:
        """Holdings that were not handed on since, and handouts that the book does not show, of pods that may live."""
        return (*self._holdings, *self._unlisted)

    @cached_property
    def _unlisted(self) -> list[Handout]:
        """Handouts that the book does not show; of the others it knows better whose they are."""
        known = {(h.resource, h.ids) for h in self._holdings}
        found = [h for h in self._handouts if (h.resource, h.ids) not in known]
        return [h for h in found if not self._lapsed(h)] if self.ledger.exchanged else found

    def _lapsed(self, handout: Handout) -> bool:
        """Kubelets that cannot be steered offer no ids: there the book alone tells that nobody has them any more."""
        return bool(handout.exchanged) and self.snapshot.holdings_at - handout.at > LAPSE_S

    @cached_property
    def _handouts(self) -> list[Handout]:
        recent = self.ledger.recent(self.now)
        # Of a pod that lives none is left out: one look for each pod.
        gone = {pod for pod in {(h.owner.pod, h.uid) for h in recent if h.owner} if not self._lives(*pod)}
        return [h for h in recent if not h.owner or (h.owner.pod, h.uid) not in gone] if gone else list(recent)

    @cached_property
    def _holdings(self) -> Sequence[Holding]:
        newer = self._newer
        return [h for h in self.snapshot.holdings if h.ids.isdisjoint(newer)] if newer else self.snapshot.holdings

    @cached_property
    def _newer(self) -> frozenset[str]:
        """Ids that were handed out since the book was read."""
        since = self.snapshot.holdings_at
        return frozenset[str]().union(*[h.ids for h in self.ledger.recent(self.now) if h.at >= since])

    def _may_live(self, claim: Holding | Handout) -> bool:
        return claim.owner is None or self._lives(claim.owner.pod, claim.uid if isinstance(claim, Handout) else None)

    def _lives(self, name: PodName, uid: str | None) -> bool:
        """Whether the pod may live, as far as is known."""
        pod = self.snapshot.living_pods.get(name)
        return not self.snapshot.pods_known or (pod is not None and (not uid or uid == pod.uid))

    @cached_property
    def exchanged(self) -> Exchanged:
        """What kubelet's ids were exchanged for; empty where it asks which ones to take."""
        if not self.ledger.exchanged:
            return self.snapshot.exchanged
        newer = (handout.exchanged for handout in self.ledger.recent(self.now) if handout.exchanged)
        return reduce(joined, newer, self.snapshot.exchanged)

    @cached_property
    def standing(self) -> tuple[Holding | Handout, ...]:
        """Claims of which nothing is offered again."""
        offered = self.offered
        return tuple([claim for claim in self.all if claim.ids.isdisjoint(offered)])

    def served(self, resource: str) -> set[Owner | None]:
        """Containers that have their units of `resource`."""
        return {claim.owner for claim in self.standing if claim.resource == resource}

    def given(self, resource: str, ids: frozenset[str]) -> Holding | Handout | None:
        """The claim that has all of `ids`; they are being asked for again, or reused."""
        for handout in self.ledger.recent(self.now):
            if handout.resource == resource and ids <= handout.ids and self._may_live(handout):
                return handout
        return next((h for h in self._holdings if h.resource == resource and ids <= h.ids), None)

    @cached_property
    def roles(self) -> dict[Owner, Role | None]:
        """Containers that a scheduler decided on and that have nothing yet, to the GPUs they are to get.

        None: those are held for good by one that was taken for it.
        """
        asks = self.snapshot.decided_asks
        if not asks:
            return {}
        # Units that are not on offer now, or another plugin's, are where annotations say.
        places = {claim.owner: gpus or asks[claim.owner].role for claim, gpus in self._places if claim.owner in asks}
        strays = [stray for handout in self._handouts if (stray := self._stray(handout))]
        # Whoever asked and was not known has what was chosen for one of his size.
        for claim, gpus in self._places:
            if claim.owner is None:
                size = (claim.resource, len(claim.ids))
                same = (a.owner for a in asks.values() if a.size == size and a.role == gpus and a.owner not in places)
                if owner := next(same, None):
                    places[owner] = gpus
        return roles_left(asks.values(), places, self.ledger.refused, strays)

    def _stray(self, handout: Handout) -> Stray | None:
        """What its container got although no scheduler had chosen anything for it.

        Others' annotations tell by kubelet's book what they got, and are made true only when nobody waits for what they
        tell (`owed_to_others`).
        """
        owner = handout.owner
        pod = self.snapshot.living_pods.get(owner.pod) if owner else None
        if not (owner and pod and handout.meant) or handout.meant == pod.uid or handout.decided:
            return None
        ask, took = self.snapshot.decided_asks.get(owner), Role(handout.uuids)
        if not handout.ids.isdisjoint(self.offered) or (ask and ask.role != took):
            return None
        return Stray(handout.meant, (handout.resource, len(handout.ids)), took)

    def role_of_size(self, resource: str, size: int) -> Role | None:
        """GPUs of one that a scheduler decided on, that has nothing yet and asks for as much; None without such."""
        asks = self.snapshot.decided_asks
        return next((role for owner, role in self.roles.items() if role and asks[owner].size == (resource, size)), None)

    @cached_property
    def _places(self) -> list[tuple[Holding | Handout, Role]]:
        """Standing claims and the UUIDs of their GPUs."""
        offered, newer = self.offered, self._newer
        listed = [(h, u) for h, u in self.snapshot.placed if h.ids.isdisjoint(newer) and h.ids.isdisjoint(offered)]
        on_offer, unlisted = self.snapshot.units.keys(), [h for h in self._unlisted if h.ids.isdisjoint(offered)]
        roles = {uuids: Role(uuids) for uuids in {h.uuids for h in unlisted}}
        return [
            *listed,
            *[
                (h, roles[h.uuids] if len(h.uuids) == 1 and h.ids <= on_offer else Role(self.gpus_of(h)))
                for h in unlisted
            ],
        ]

    def promised(self, resource: str, asking: Pod | None) -> Counter[str]:
        """GPU UUID to units of `resource` that are reserved: schedulers chose it for pods that are still to come.

        A pod reserves nothing that kubelet will not ask for, or that cannot be given: any author of a pod can write
        a decision. The oldest come first; the sum on a GPU is never more than is free there. `asking` is the pod that
        kubelet admits.
        """
        # One that was given its units is not still to come; whether kubelet has lost them is for `doubted` to tell.
        given = {claim.owner for claim in self.doubted}
        wanted: dict[PodName, dict[str, int]] = defaultdict(dict)
        for owner, role in self.roles.items():
            units = self.snapshot.decided_asks[owner].units.get(resource, 0)
            if role and units and owner not in given:
                of = wanted[owner.pod]
                of.update((uuid, of.get(uuid, 0) + units) for uuid in role)
        found: Counter[str] = Counter()
        free = self._free(resource) if wanted else {}
        for name in self._to_come(wanted, asking):
            if all(free.get(uuid, 0) >= units for uuid, units in wanted[name].items()):
                for uuid, units in wanted[name].items():
                    free[uuid] -= units
                    found[uuid] += units
        return found

    def _to_come(self, names: Collection[PodName], asking: Pod | None) -> Iterator[PodName]:
        """Those of the living pods that kubelet may still ask for when it asks for `asking`, oldest first.

        It admits pods in the order in which they come, by age where many come at once, and tries none twice.
        So it has admitted or rejected those that come before `asking` in both orders. A pod that runs was admitted: its
        GPUs are in use even where kubelet has lost its checkpoint.
        """
        pods = self.snapshot.living_pods
        until = asking if asking and asking.name in pods else None
        for name, pod in pods.items():
            if until and name == until.name:
                until = None
            if name in names:
                passed_over = until is not None and pod.created <= until.created
                if pod.container_ids or not (pod.mirror or passed_over):
                    yield name

    def _free(self, resource: str) -> dict[str, int]:
        """GPU UUID to units that no container has, and that are on offer."""
        ids = chain.from_iterable([claim.ids for claim in self.standing if claim.resource == resource])
        held = Counter(map(self.snapshot.units.get, ids))
        blocks = (block for block in self.snapshot.lists.get(resource, ()) if block.healthy)
        return {block.gpu.uuid: block.count - held[block.gpu.uuid] for block in blocks}

    def gpus_of(self, claim: Holding | Handout) -> set[str]:
        """UUIDs of the GPUs a claim has units of that are on offer now."""
        return {uuid for uuid in set(map(self.snapshot.units.get, claim.ids)) if uuid}

    @property
    def some_unknown(self) -> bool:
        """Whether some are of containers that nothing names yet."""
        return None in [handout.owner for handout in self._unlisted]

    def full_gpus(self, asker: Owner | None) -> set[str]:
        """UUIDs of GPUs with as many pods, or for the isolation layer as many containers, as allowed.

        The asking pod's own GPUs do not have a pod too many for it, the asking container's own not a container.
        """
        most_pods = self.snapshot.policy.max_pods_per_gpu
        most_containers = self.snapshot.max_sharers
        pods: dict[str, set[PodName]] = defaultdict(set)
        containers: dict[str, set[Owner]] = defaultdict(set)
        nameless: dict[str, Counter[str]] = defaultdict(Counter)
        for claim, gpus in self._places:
            for uuid in gpus:
                if claim.owner:
                    pods[uuid].add(claim.owner.pod)
                    if most_containers is not None:
                        containers[uuid].add(claim.owner)
                else:
                    nameless[uuid][claim.resource] += 1
        full = set()
        for uuid in {*pods, *nameless}:
            # The two resources of one nameless container are two claims.
            unknown = max(nameless[uuid].values(), default=0)
            if len(pods[uuid]) + unknown >= most_pods and (asker is None or asker.pod not in pods[uuid]):
                full.add(uuid)
            if most_containers is not None and len(containers[uuid] - {asker}) + unknown >= most_containers:
                full.add(uuid)
        return full

    def short_gpus(self, resource: str, need: int) -> set[str]:
        """UUIDs of GPUs with less than `need` units of the mode's other resource than `resource` left."""
        others = [(name, kind) for name, kind in self.snapshot.sold.items() if name != resource]
        if not others:
            return set()
        (other, kind), *_ = others
        offered = self.offered
        again = [claim.owner for claim in self.all if claim.resource == resource and not claim.ids.isdisjoint(offered)]
        given_back = {owner for owner in again if owner}
        held = [c.ids for c in self.standing if c.resource == other and c.owner not in given_back]
        used = Counter(map(self.snapshot.units.get, chain.from_iterable(held)))
        unit = self.snapshot.policy.unit
        return {
            uuid for uuid, gpu in self.snapshot.gpus.items() if units_of(gpu, kind, unit) - used[uuid] < max(need, 1)
        }

    @cached_property
    def doubted(self) -> tuple[Holding | Handout, ...]:
        """Claims of living pods whose ids are offered all the same: kubelet can lose a reservation from its books."""
        offered = self.offered
        again = [claim for claim in self.all if not claim.ids.isdisjoint(offered)]
        return tuple(claim for claim in again if self._may_live(claim))

    @cached_property
    def given_back(self) -> frozenset[PodName]:
        """Living pods some of whose ids are offered again; one that is new may have the name of one of them."""
        return frozenset(claim.owner.pod for claim in self.doubted if claim.owner)


def owed_to_others(snapshot: Snapshot) -> frozenset[PodName]:
    """Pods whose annotations, although kubelet's book contradicts them, say what is left to an equal that waits."""
    asks = snapshot.decided_asks
    roles = Claims(snapshot, Ledger(), frozenset(), snapshot.holdings_at).roles
    owed = {asks[owner].size for owner, role in roles.items() if role != asks[owner].role}
    sizes: dict[PodName, set[tuple[str, int]]] = defaultdict(set)
    for owner, ask in asks.items():
        if owner not in roles:
            sizes[owner.pod].add(ask.size)
    # A pod is written as a whole: what else it has waits with it, and so do its equals in that.
    while more := {size for of in sizes.values() if owed & of for size in of} - owed:
        owed |= more
    return frozenset(pod for pod, of in sizes.items() if owed & of)
