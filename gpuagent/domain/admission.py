"""Which container is kubelet asking for? Its calls carry only device ids; their order tells the rest.

Kubelet admits one pod at a time. It goes through the pod's containers in order, init containers first, and asks for all
resources of one container, in any order, before the next. So every call either goes on with the container or the pod
of the call before, or begins a pod that has nothing yet. What fits both calls and pod specs is kept as a place the
admission may be at; places that a later call contradicts are dropped. Certain identity comes with PreStartContainer.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.ledger import PAIR_S, Handout
from gpuagent.domain.mode import GPU_COUNT_LABEL, Kind
from gpuagent.domain.pods import ContainerSpec, Holding, Owner, Owners, Pod, requests
from gpuagent.domain.snapshot import Snapshot

Trail = tuple[tuple[Owner, Handout], ...]
"""What one pod was given so far in this admission, in order."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A container that a call may be for.

    Attributes:
        trail: what its pod was given before this call.
        first: what this container was given before: its other resource.
    """

    pod: Pod
    container: ContainerSpec
    trail: Trail = ()
    first: Handout | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.pod.name, self.container.name)

    @property
    def _init(self) -> set[str]:
        """Names of the pod's ordinary init containers."""
        return {container.name for container in self.pod.containers if container.init}

    @property
    def pinned(self) -> tuple[str, ...]:
        """UUIDs of GPUs with units of the pod's init containers: kubelet hands those on to its other containers."""
        init = self._init
        return tuple(uuid for owner, handout in self.trail if owner.container in init for uuid in handout.uuids)

    @property
    def given(self) -> frozenset[str]:
        """Ids that its pod was given so far."""
        return frozenset[str]().union(*(handout.ids for _, handout in self.trail))

    @property
    def lasting(self) -> frozenset[str]:
        """Those of them that kubelet's book shows: an init container's are not in it."""
        init = self._init
        return frozenset[str]().union(*(h.ids for owner, h in self.trail if owner.container not in init))

    def spare(self, resource: str) -> frozenset[str]:
        """Ids, as kubelet has them, that it takes first for the pod's next container: left by its init containers."""
        init, found = self._init, frozenset[str]()
        if not init:
            return found
        for owner, handout in self.trail:
            if handout.resource == resource:
                ids = frozenset(handout.exchanged) or handout.ids
                found = found | ids if owner.container in init else found - ids
        return found

    def may_want(self, resource: str, size: int) -> bool:
        """Whether the container's call for `resource` may be still to come, and is for `size`."""
        return self.container.may_want(resource, size) and not (self.first and self.first.resource == resource)

    def room(self, resource: str) -> int:
        """Units that the largest container to reuse this one's GPU will want; 0 unless it is an init container."""
        return max(c.limits.get(resource, 0) for c in self.pod.containers) if self.container.init else 0

    def other(self, resource: str, sold: Collection[str]) -> int:
        """Units of the mode's other resource that this container, or one that reuses its GPU, asks for."""
        asking = self.pod.containers if self.container.init else (self.container,)
        return max(sum(c.limits.get(name, 0) for name in sold if name != resource) for c in asking)


@dataclass(frozen=True, slots=True)
class Admission:
    """Places kubelet's admission may be at after the last call, most likely first."""

    places: tuple[Candidate, ...] = ()
    at: float = float("-inf")

    def candidates(self, resource: str, size: int, claims: Claims) -> tuple[Candidate, ...]:
        """Containers that a call for `size` of `resource` may be for, most likely first."""
        found: list[Candidate] = []
        may_begin = True
        for _, step in self._steps(claims):
            if step is None:
                # At this place the pod has everything: the call begins another one.
                found += beginning(resource, size, claims) if may_begin else ()
                may_begin = False
            elif step.may_want(resource, size):
                found.append(step)
        return tuple(found or beginning(resource, size, claims))

    def going_on(self, resource: str, size: int, claims: Claims) -> tuple[Candidate, ...]:
        """Those of the candidates that belong to a pod whose admission has begun."""
        return tuple(step for _, step in self._steps(claims) if step and step.may_want(resource, size))

    def carried(self, resource: str, size: int, fixed: frozenset[str], claims: Claims) -> "Admission":
        """Without the places that ids contradict which kubelet has `fixed` for a call, for `size` of `resource`."""

        def fits(place: Candidate, step: Candidate | None) -> bool:
            spare = place.spare(resource)
            goes_on = step is not None and step.may_want(resource, size)
            return len(fixed & spare) == (min(size, len(spare)) if goes_on else 0)

        left = tuple(place for place, step in self._steps(claims) if fits(place, step))
        return replace(self, places=left)

    def told(self, owners: Owners) -> "Admission":
        """Without the places that kubelet's book contradicts: somebody else has what was given there."""
        places = tuple(
            place
            for place in self.places
            if all(owners.get((given.resource, given.ids), owner) == owner for owner, given in place.trail)
        )
        return replace(self, places=places)

    def _steps(self, claims: Claims) -> Iterator[tuple[Candidate, Candidate | None]]:
        """Each place, and what follows: a container of the same pod, or None where the pod is complete, or gone."""
        snap = claims.snapshot
        for place in self.places:
            if claims.now - self.at < PAIR_S:
                yield place, _next(place, snap.sold) if place.pod.name in snap.living_pods else None


def _next(place: Candidate, sold: Collection[str]) -> Candidate | None:
    own = place.owner
    given = {handout.resource: handout for _, handout in takewhile(lambda one: one[0] == own, reversed(place.trail))}
    if any(place.container.asks(name) and name not in given for name in sold):
        return Candidate(place.pod, place.container, place.trail, next(iter(given.values()), None))
    names = [container.name for container in place.pod.containers]
    for container in place.pod.containers[names.index(place.container.name) + 1 :]:
        if any(map(container.asks, sold)):
            return Candidate(place.pod, container, place.trail)
    return None


def beginning(resource: str, size: int, claims: Claims) -> Iterator[Candidate]:
    """Pods that have nothing yet and whose first container asks for `size` of `resource`, oldest first."""
    asks = claims.snapshot.first_asks
    asking = [*asks.get((resource, size), ()), *asks.get((resource, None), ())]
    if not asking:
        return
    begun = {owner.pod for name in claims.snapshot.sold for owner in claims.served(name) if owner}
    for pod, container in asking:
        if pod.name not in begun and may_ask(pod, claims):
            yield Candidate(pod, container)


def may_ask(pod: Pod, claims: Claims) -> bool:
    """Whether kubelet can ask for a living pod: not after a refusal, and not when it gives back what it had."""
    return pod.uid not in claims.ledger.refused and not (pod.deleting and pod.name in claims.given_back)


def at_book(pod: Pod, holdings: Iterable[Holding], resource: str, size: int, claims: Claims) -> Iterator[Candidate]:
    """Containers of the pod that a call for `size` of `resource` may be for, where kubelet's book has `holdings`.

    That lists no ordinary init containers: whether those have been asked for does not follow from it.
    """
    snap = claims.snapshot
    held = {(h.owner.container, h.resource): h for h in holdings if h.resource in snap.sold}
    trail: Trail = ()
    for container in pod.containers:
        own = [h for name in snap.sold if (h := held.pop((container.name, name), None))]
        given = [_handout(holding, pod, claims) for holding in own]
        lacking = {name for name in snap.sold if container.asks(name)} - {holding.resource for holding in own}
        trail += tuple((holding.owner, handout) for holding, handout in zip(own, given, strict=True))
        # Kubelet goes through them in order: later ones have nothing while this one asks.
        if resource in lacking and container.may_want(resource, size) and not held:
            yield Candidate(pod, container, trail, next(iter(given), None))
        if lacking and not container.init:
            return


def _handout(holding: Holding, pod: Pod, claims: Claims) -> Handout:
    uuids = {uuid for i in holding.ids if (uuid := claims.snapshot.units.get(i))}
    return Handout(holding.resource, holding.ids, tuple(sorted(uuids)), claims.now, holding.owner, pod.uid)


def deleted_unserved(before: Snapshot, after: Snapshot) -> list[Pod]:
    """Pods that are gone and had nothing yet by kubelet's book. Kubelet may hear of it later, and ask for them."""
    if before.living_pods is after.living_pods:
        return []
    uids = {pod.uid for pod in after.pods}  # kubelet itself tells which have ended
    gone = [pod for pod in before.living_pods.values() if pod.uid not in uids]
    served = {holding.owner.pod for holding in before.holdings} if gone else set()
    return [pod for pod in gone if pod.name not in served]


def gpu_count(pod: Pod, resource: str, size: int, sold: Mapping[str, Kind]) -> int:
    """Over how many GPUs the pod's label `aliyun.com/gpu-count` spreads this request; 1 without it.

    Raises:
        Refusal: the label cannot be honoured.
    """
    count, kind = pod.gpu_count, sold.get(resource)
    if pod.gpu_count_label is None or kind is None or kind.is_whole:
        return 1
    said = f"pod {pod.name}: label {GPU_COUNT_LABEL}={pod.gpu_count_label!r}"
    if count is None:
        raise Refusal(Reason.GPU_COUNT, f"{said} is not a number of GPUs; set it to 1 or more, or remove it")
    if count > 1 and kind in {Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM}:
        raise Refusal(Reason.GPU_COUNT, f"{said} cannot be combined with mode core_mem: one container, one GPU there")
    if size % count:
        text = f"{said} does not divide {size} units of {resource}; ask for a multiple of {count}"
        raise Refusal(Reason.GPU_COUNT, text)
    return count


def spread_was_asked(resource: str, size: int, count: int, snapshot: Snapshot) -> bool:
    """Some pod of the node wants `size` units of `resource` spread over `count` GPUs."""
    return any(pod.gpu_count == count for pod, _ in requests(snapshot.pods, resource, size))
