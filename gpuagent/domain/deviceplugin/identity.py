"""Which container kubelet asks for: its calls carry device ids and no pod.

Kubelet admits one pod at a time. It lists a pod from the moment it begins to admit it, and what the pod holds as it
goes: containers in order, init containers first, the resources of one container in any order. So the requesting
container is the one that kubelet lists and that lacks exactly what the call is for. Where all containers that fit are
treated alike, kubelet is not queried.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuagent.domain.decision import Decision
from gpuagent.domain.deviceplugin.occupancy import RecentAllocation, RecentAllocations
from gpuagent.domain.deviceplugin.request import AllocationRequest, Requester
from gpuagent.domain.mode import GROUP_ANNOTATION, Mode
from gpuagent.domain.pods import ContainerSpec, Holding, Pod, PodName
from gpuagent.domain.snapshot import Snapshot

ADMISSION_S = 30.0
"""The calls of one pod's admission follow each other; after a pause this long a call is another pod's."""

DELETED_S = 30.0
"""How long kubelet may still ask for a pod whose deletion the agent has seen."""

Listed = Mapping[PodName, Sequence[Holding] | None]
"""What kubelet lists for the pods that it was asked about: holdings, or None for a pod that it does not list."""

_Pair = tuple[str, str]
"""Container's name and resource."""


@dataclass(frozen=True, slots=True)
class QueryPods:
    """Kubelet has to say which of these pods it lists."""

    pods: frozenset[PodName]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The container is none that the agent can name.

    Attributes:
        why: for messages, reads on after "The agent cannot tell which pod asks: ".
        unseen: a pod that the agent may see soon.
        between: pods that it may be, for which schedulers decided differently.
        undecided: it may be a pod for which none decided.
        pod: a deleted one that kubelet may ask for: after this call it does not.
    """

    why: str
    unseen: bool = False
    between: tuple[PodName, ...] = ()
    undecided: bool = False
    pod: Pod | None = None


@dataclass(frozen=True)
class AdmissionTracker:
    """What the agent keeps of kubelet's calls.

    Attributes:
        recent: allocations of the last minutes.
        admission: those of the pod in admission, oldest first.
        refused: UIDs of pods that were refused, or whose units kubelet gave to others: it never admits them again.
        deleted: pods that were deleted before they had anything, and when the agent saw that.
    """

    recent: RecentAllocations = field(default_factory=RecentAllocations)
    admission: tuple[RecentAllocation, ...] = ()
    refused: frozenset[str] = frozenset()
    deleted: tuple[tuple[float, Pod], ...] = ()

    def allocated(self, new: RecentAllocation) -> "AdmissionTracker":
        """After an answered Allocate."""
        before = self.current(new.at)
        if new.owner is None:
            # Of a pod that the agent has not seen only a container's first resource is kept, until its second one.
            second = before and before[-1].owner is None and before[-1].resource != new.resource
            admission: tuple[RecentAllocation, ...] = () if second else (new,)
        else:
            admission = (*before, new) if before and before[-1].pod_uid == new.pod_uid else (new,)
        recent = self.recent.adding(new)
        freed = {one.pod_uid for one in self.recent.all if one.certain and one.pod_uid} - recent.pod_uids
        refused = self.refused | (freed - {new.pod_uid}) if freed else self.refused
        return replace(self, recent=recent, admission=admission, refused=refused)

    def refusing(self, pod: Pod | None) -> "AdmissionTracker":
        """After a refusal: kubelet rejects the pod in admission."""
        return replace(self, admission=(), refused=self.refused | {pod.uid} if pod else self.refused)

    def seeing(self, former: Snapshot | None, snap: Snapshot, now: float) -> "AdmissionTracker":
        """With what a new snapshot says of pods that were deleted, and of containers."""
        deleted, refused = self.deleted, self.refused
        if former and former.living_pods is not snap.living_pods:
            present = {pod.uid for pod in snap.pods}  # kubelet itself reports which have ended
            done = (former.served | refused | self.recent.pod_uids).difference(one.pod_uid for one in self.admission)
            gone = [pod for pod in former.living_pods.values() if pod.uid not in present and pod.uid not in done]
            kept = tuple(one for one in deleted if now - one[0] < DELETED_S)
            deleted = (*kept, *((now, pod) for pod in gone)) if gone or kept else ()
            refused = refused & {*present, *(pod.uid for _, pod in deleted)}
        recent = self.recent
        if former is None or former.holdings_at < snap.holdings_at:
            recent = recent.read(snap.recorded, snap.holdings_at)
        return replace(self, recent=recent, deleted=deleted, refused=refused)

    def fresh(self, now: float) -> "AdmissionTracker":
        """Without what is too old."""
        recent = self.recent.fresh(now)
        return self if recent is self.recent else replace(self, recent=recent)

    def current(self, now: float) -> tuple[RecentAllocation, ...]:
        """What the pod in admission was given so far."""
        return self.admission if self.admission and now - self.admission[-1].at < ADMISSION_S else ()

    def gone(self, now: float) -> list[Pod]:
        """Deleted pods that kubelet may still know."""
        return [pod for at, pod in self.deleted if now - at < DELETED_S]


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known at `now` (monotonic seconds)."""

    tracker: AdmissionTracker
    snap: Snapshot
    now: float


def identify(
    request: AllocationRequest, moment: Moment, listed: Listed | None, *, certainly: bool = False
) -> Requester | Unknown | QueryPods:
    """The container that `request` is for.

    Args:
        request: kubelet's.
        moment: what is known.
        listed: kubelet's answers to the queries so far; empty before the first, None where kubelet did not answer.
        certainly: kubelet is queried in any case.
    """
    look = _Search(request, moment.tracker, moment.snap, moment.now)
    if handed_on := look.handed_on():
        return handed_on
    own = look.by_own_account()
    if not (moment.snap.schedulers or certainly) and look.alike(own) and not look.interrupted():
        return own[0] if own else look.unseen()
    if listed is None:
        return look.unanswered(own)
    for some in look.to_query(own):
        if missing := frozenset(pod.name for pod in some) - listed.keys():
            return QueryPods(missing)
        if found := look.by_kubelet(some, listed):
            return found
    return look.unseen()


def by_own_account(request: AllocationRequest, moment: Moment) -> list[Requester]:
    """Containers that fit by what the agent knows, the most likely first."""
    return _Search(request, moment.tracker, moment.snap, moment.now).by_own_account()


@dataclass(frozen=True)
class _Search:
    request: AllocationRequest
    tracker: AdmissionTracker
    snap: Snapshot
    now: float

    @property
    def _current(self) -> tuple[RecentAllocation, ...]:
        return self.tracker.current(self.now)

    def constraints(self, one: Requester) -> tuple[object, ...]:
        resource = self.request.resource
        return *one.constraints(resource, self.snap.sold), decided_gpus(one, resource, self.snap)

    def handed_on(self) -> Requester | None:
        """The next container of the pod in admission, where kubelet includes units of its init containers."""
        own = [one for one in self._current if not one.ids.isdisjoint(self.request.fixed)]
        pod = self._pod(own[-1].pod_uid) if own else None
        if pod is None:
            return None
        given = _pairs(self._current)
        return self._next(pod, given, certain=own[-1].certain)

    def by_own_account(self) -> list[Requester]:
        """Containers that fit by what the agent knows, the most likely first."""
        current = self._current
        pod = self._pod(current[-1].pod_uid) if current else None
        goes_on = (
            self._next(pod, _pairs(current) | self._recorded(pod), certain=False)
            if pod and not self._spares(pod)
            else None
        )
        begins = list(self._beginning(pod))
        if current and current[-1].owner is None:
            # A pod that the agent had not seen: its second resource comes next, or it has all.
            goes_on = self._unseen_pair()
        return [*([goes_on] if goes_on else ()), *begins]

    def _recorded(self, pod: Pod) -> set[_Pair]:
        """What kubelet has recorded for the pod, also before the agent was started."""
        if pod.uid not in self.snap.served:
            return set()
        return {(h.owner.container, h.resource) for h in self.snap.holdings if h.owner.pod == pod.name}

    def _spares(self, pod: Pod) -> bool:
        """Whether kubelet would hand units of the pod's init containers on first, and does not."""
        init, spare = pod.init_names, frozenset[str]()
        for one in self._current if init else ():
            if one.resource == self.request.resource and one.owner:
                spare = spare | one.ids if one.owner.container in init else spare - one.ids
        return bool(spare) and spare.isdisjoint(self.request.fixed)

    def _beginning(self, but: Pod | None) -> Iterator[Requester]:
        """Pods that hold nothing, in the order in which the agent saw them."""
        asks, resource, size = self.snap.first_asks, self.request.resource, self.request.size
        asking = [*asks.get((resource, size), ()), *asks.get((resource, None), ())]
        if not asking:
            return
        begun, recent = self.snap.served, self.tracker.recent
        if recent.exchanged:  # the turn went to an older pod of the same size, whose own turn this pod gets
            begun = frozenset(one.pod_uid for one in self.snap.checkpoint if one.ids.isdisjoint(recent.ids))
        lately = recent.pod_uids
        for pod, container in asking:
            if pod is not but and pod.uid not in begun and pod.uid not in lately and self._may_be_admitted(pod):
                yield Requester(pod, container)

    def interrupted(self) -> bool:
        """Whether a pod holds something and lacks this: the agent has restarted during its admission."""
        served, lately = self.snap.served, self.tracker.recent.pod_uids
        return any(
            pod.uid in served
            and pod.uid not in lately
            and not pod.container_ids
            and self._may_be_admitted(pod)
            and self._next(pod, self._recorded(pod), certain=False)
            for pod in self.snap.living_pods.values()
        )

    def alike(self, own: Sequence[Requester]) -> bool:
        """Whether all of them are treated alike."""
        return len(own) < 2 or len({self.constraints(one) for one in own}) == 1

    def to_query(self, own: Collection[Requester]) -> Iterator[list[Pod]]:
        """Pods that kubelet may be at, deleted ones first: with the likely living ones, then with all."""
        deleted, likely = self.deleted(), {one.pod.uid for one in own if one.pod}
        yield [*deleted, *(pod for pod in self.snap.living_pods.values() if pod.uid in likely)]
        yield [*deleted, *self._asking(self.snap.living_pods.values())]

    def deleted(self) -> list[Pod]:
        """Pods that kubelet may still ask for, although the agent has seen that they were deleted."""
        return self._asking(self.tracker.gone(self.now))

    def _asking(self, pods: Iterable[Pod]) -> list[Pod]:
        """Those with a container that asks for as much, which kubelet may still admit."""
        resource, size = self.request.resource, self.request.size
        return [
            pod
            for pod in pods
            if any(c.may_want(resource, size) for c in pod.containers) and self._may_be_admitted(pod)
        ]

    def by_kubelet(self, pods: Collection[Pod], listed: Listed) -> Requester | Unknown | None:
        """The container that kubelet is at, by what it lists. `pods` are in the order in which the agent saw them."""
        current = self._current
        fits: list[Requester] = []
        going_on: list[Requester] = []
        for pod in pods:
            holdings = listed[pod.name]
            if holdings is None or self._was_given_up(pod, holdings):
                continue
            init = pod.init_names
            own = [one for one in current if one.owner and one.pod_uid == pod.uid and one.owner.container in init]
            held = {(h.owner.container, h.resource) for h in holdings if h.resource in self.snap.sold}
            if found := self._next(pod, held | _pairs(own), certain=True, holdings=holdings):
                (going_on if own or held else fits).append(found)
        if not (fitting := going_on or fits):
            return None
        # Under the name of a pod that was deleted a moment ago kubelet may list that pod.
        reused = {pod.name for pod in self.tracker.gone(self.now)}
        # Kubelet hears of pods in the agent's order: rejected ones may linger, and the last one asks.
        if clear := [one for one in fitting if one.pod_name not in reused]:
            return replace(clear[-1], certain=len(fitting) == 1)
        living = [one for one in fitting if one.pod and self._pod(one.pod.uid)]
        if len(living) == len(fitting):  # those that come later may be deleted ones of their names
            return replace(fitting[0], certain=len(fitting) == 1)
        deleted = next(one.pod for one in fitting if one not in living)
        why = f"pod {deleted.name if deleted else None} was deleted a moment ago, and kubelet lists no UIDs"
        return self._unknown(why, living, deleted) if living else self.unseen(deleted)

    def _was_given_up(self, pod: Pod, holdings: Sequence[Holding]) -> bool:
        """Kubelet does not list what the pod was given: it rejected the pod, or this is a newer one of the name."""
        init, recent = pod.init_names, self.tracker.recent
        given = [one for one in recent.all if one.pod_uid == pod.uid and one.certain]
        if listed := frozenset[str]().union(*(h.ids for h in holdings)):
            holders = {one.pod_uid for one in recent.all if one.certain and not one.ids.isdisjoint(listed)} - {None}
            holders |= {one.pod_uid for one in self.snap.checkpoint if not one.ids.isdisjoint(listed - recent.ids)}
            if holders and pod.uid not in holders and not pod.static:
                return True  # that one's are listed
        if any(one.ids.isdisjoint(listed) for one in given if one.owner and one.owner.container not in init):
            return True
        current = [one for one in self._current if one.pod_uid == pod.uid]
        if holdings or (current and all(one.owner and one.owner.container in init for one in current)):
            return False  # in admission, and kubelet does not list its init containers
        return pod.uid in self.snap.served or bool(given)

    def unanswered(self, own: Sequence[Requester]) -> Requester | Unknown:
        """Kubelet did not answer: the oldest container that fits, where all that fit are treated alike."""
        decided = [one for one in own if one.pod and self._is_decided(one, one.pod)]
        if own and own[0].paired and not any(one is not own[0] for one in decided):
            return own[0]  # a pod without a decision is served on any GPU
        if own and self.alike(own) and not (decided and self.deleted()):
            return own[0]
        return self._unknown("kubelet's pod-resources API did not answer", own or self._may_lack())

    def _may_lack(self) -> list[Requester]:
        """Containers that ask for as much, of pods of which it is not certain that they have it."""
        resource, size, recent = self.request.resource, self.request.size, self.tracker.recent
        has = self.snap.served | {one.pod_uid for one in recent.all if one.certain}
        pods = [pod for pod in self._asking(self.snap.living_pods.values()) if pod.uid not in has]
        return [Requester(pod, c) for pod in pods for c in pod.containers if c.may_want(resource, size)]

    def _unknown(self, why: str, fitting: Sequence[Requester], deleted: Pod | None = None) -> Unknown:
        names = tuple(one.pod.name for one in fitting if one.pod and self._is_decided(one, one.pod))
        return Unknown(why, between=names, undecided=len(names) < len(fitting), pod=deleted)

    def _is_decided(self, one: Requester, pod: Pod) -> bool:
        if self.snap.mode is Mode.TOPOLOGY:
            return GROUP_ANNOTATION in pod.annotations
        return pod.gpu_count_label is not None or decided_gpus(one, self.request.resource, self.snap) is not None

    def unseen(self, gone: Pod | None = None) -> Requester | Unknown:
        """No container that fits: a pod that the agent has not seen, or the second resource of its container."""
        if paired := self._unseen_pair():
            return paired
        return Unknown("kubelet lists no pod that the agent has seen and that lacks this", unseen=True, pod=gone)

    def _unseen_pair(self) -> Requester | None:
        last = self._current[-1] if self._current else None
        if last is None or last.owner or last.resource == self.request.resource:
            return None
        return Requester(paired=last.uuids)

    def _may_be_admitted(self, pod: Pod) -> bool:
        return not pod.ended and pod.uid not in self.tracker.refused

    def _pod(self, uid: str | None) -> Pod | None:
        return self.snap.pod_by_uid.get(uid) if uid else None

    def _next(
        self, pod: Pod, given: Collection[_Pair], *, certain: bool, holdings: Sequence[Holding] = ()
    ) -> Requester | None:
        """The pod's first container that lacks something, if it lacks what the request is for."""
        container = next_container(pod, given, self.snap.sold)
        resource = self.request.resource
        if container is None or (container.name, resource) in given:
            return None
        if not container.may_want(resource, self.request.size):
            return None
        current = [one for one in self._current if one.pod_uid == pod.uid and one.owner]
        init = pod.init_names
        paired = [one.uuids for one in current if one.owner and one.owner.container == container.name]
        held = [h.ids for h in holdings if h.owner.container == container.name and h.resource in self.snap.sold]
        paired += [frozenset(uuid for i in ids if (uuid := self.snap.units.get(i))) for ids in held]
        handed_on = frozenset[str]().union(*(one.uuids for one in current if one.owner and one.owner.container in init))
        return Requester(pod, container, frozenset[str]().union(*paired), handed_on, certain)


def next_container(pod: Pod, given: Collection[_Pair], sold: Collection[str]) -> ContainerSpec | None:
    """The first container that lacks a resource; kubelet does not list what ordinary init containers hold."""
    names = {name for name, _ in given}
    last = max([n for n, container in enumerate(pod.containers) if container.name in names], default=0)
    for n, container in enumerate(pod.containers):
        if container.init and n < last:
            continue  # a later one holds something
        for name in sold:
            if (container.name, name) not in given and container.asks(name):
                return container
    return None


def decided_gpus(one: Requester, resource: str, snap: Snapshot) -> frozenset[str] | str | None:
    """GPUs that a scheduler chose for the container, or why it can get none; None where it chose none."""
    decision = snap.decisions.get(one.pod.name) if one.pod else None
    if not isinstance(decision, Decision) or one.container is None:
        return None
    if decision.unmet:
        return decision.unmet
    name = decision.follows.get((one.container.name, resource), one.container.name)
    gpus = decision.units.get((name, resource))
    return None if gpus is None else frozenset(gpus)


def _pairs(given: Collection[RecentAllocation]) -> set[_Pair]:
    return {(one.owner.container, one.resource) for one in given if one.owner}
