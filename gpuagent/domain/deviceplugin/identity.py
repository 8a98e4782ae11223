"""Finds the container of a call: kubelet's calls carry device ids and no pod.

Kubelet admits one pod at a time, and lists a pod as soon as its admission begins. It adds the pod's devices in order:
init containers first, then the others, and the resources of one container in any order. So the requesting container is
the one that kubelet lists and that lacks exactly the devices of the call. If all containers that fit would get the
same answer, the agent does not query kubelet. Where it matters and kubelet does not answer, the container is unknown.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuagent.domain.deviceplugin.occupancy import AdmissionTracker
from gpuagent.domain.pods.holdings import lists_ended, of_another_pod
from gpuagent.domain.pods.pod import ContainerRef, ContainerSpec, Holding, Pod, PodName, asked
from gpuagent.domain.scheduling.decision import Decision, Ignored, decided_text
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION, Kind, Mode
from gpuagent.domain.snapshot import Snapshot

Listed = Sequence[tuple[PodName, Sequence[Holding]]]
"""Pods that kubelet lists, with the devices that they hold now. A terminating pod and a new one may share a name."""

Query = Callable[[Collection[PodName]], Listed | None]
"""Queries kubelet about pods; returns None if kubelet does not answer."""

_Held = tuple[str, str, frozenset[str]]
"""Container's name, resource, and UUIDs of the GPUs."""


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """`size` device ids of `resource` for one container.

    Attributes:
        offered: ids that are free by kubelet's account.
        must_include: ids among them that the answer must include.
    """

    resource: str
    size: int
    offered: frozenset[str] = frozenset()
    must_include: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Requester:
    """The container that a call is for.

    Attributes:
        pod: its pod; None where the agent has not seen it.
        container: None with `pod`.
        container_gpus: UUIDs of the GPUs of the container's other resource, if it has that already.
        init_gpus: UUIDs of the GPUs of the pod's init containers, whose units kubelet reuses for later ones.
        sidecar_gpus: UUIDs of the GPUs of the pod's sidecars.
        certain: kubelet's allocations name the pod, or no other could be meant.
    """

    pod: Pod | None = None
    container: ContainerSpec | None = None
    container_gpus: frozenset[str] = frozenset()
    init_gpus: frozenset[str] = frozenset()
    certain: bool = False
    sidecar_gpus: frozenset[str] = frozenset()

    @property
    def owner(self) -> ContainerRef | None:
        return ContainerRef(self.pod.name, self.container.name) if self.pod and self.container else None

    @property
    def pod_name(self) -> PodName | None:
        return self.pod.name if self.pod else None

    def room(self, resource: str) -> int:
        """Units of the pod's largest container, which may reuse this GPU; 0 unless this is an init container."""
        if self.pod is None or self.container is None or not self.container.init:
            return 0
        return max(container.limits.get(resource, 0) for container in self.pod.containers)

    def beside(self) -> tuple[Sequence[ContainerSpec], ...]:
        """What should fit on one GPU with this sidecar: all containers that come after it, or at least the largest.

        Empty for a container that is no sidecar. Kubelet asks for sidecars first.
        """
        if self.pod is None or self.container is None or not self.container.sidecar:
            return ()
        place = self.pod.containers.index(self.container)
        later = [one for one in self.pod.containers[place + 1 :] if one.limits and not one.init]
        if not later:
            return ()
        largest = max(later, key=lambda one: sum(one.limits.values()))
        return [self.container, *later], [self.container, largest]

    def _amounts_beside(self) -> tuple[object, ...]:
        """The amounts of `beside`, to compare."""
        if self.container is None or not self.container.sidecar:
            return ()
        return tuple([tuple(one.limits.items()) for containers in self.beside() for one in containers])

    def other(self, resource: str, resource_kinds: Collection[str]) -> int:
        """Units of the mode's other resource for this container, or for the largest one that may reuse its GPU."""
        if self.pod is None or self.container is None:
            return 0
        asking = self.pod.containers if self.container.init else (self.container,)
        return max(sum(c.limits.get(name, 0) for name in resource_kinds if name != resource) for c in asking)

    def constraints(self, resource: str, resource_kinds: Mapping[str, Kind]) -> tuple[object, ...]:
        """Everything that the choice of GPUs depends on, except the amount and a scheduler's decision."""
        if self.pod is None:
            return (self.container_gpus,)
        needs = self.room(resource), self.other(resource, resource_kinds)
        gpus = self.container_gpus, self.init_gpus, self.sidecar_gpus
        own = *gpus, self._amounts_beside(), *needs, self.pod.gpu_count_label
        if resource not in resource_kinds or not resource_kinds[resource].is_whole:
            return own
        named = (decided_text(self.pod, key) for key in (GROUP_ANNOTATION, VISIBLE_ANNOTATION))
        job = self.pod.labels.get(JOB_LABEL)
        job_key = job and (self.pod.name.namespace, job, self.pod.labels.get(REPLICAS_LABEL))
        return *own, *named, job_key, asked(self.pod, resource)

    def decision(self, snap: Snapshot) -> Decision | Ignored | None:
        """The scheduler's decision for the pod, if there is one; not that of a newer pod of its name."""
        return snap.decisions.get(self.pod.name) if self.pod and self.pod.uid in snap.pod_by_uid else None

    def decided_gpus(self, resource: str, snap: Snapshot) -> frozenset[str] | str | None:
        """GPUs that a scheduler chose for the container, or why it can get none; None where it chose none."""
        decision = self.decision(snap)
        if not isinstance(decision, Decision) or self.container is None:
            return None
        name = decision.follows.get((self.container.name, resource), self.container.name)
        gpus = decision.units.get((name, resource))
        return decision.unmet or (None if gpus is None else frozenset(gpus))


@dataclass(frozen=True, slots=True)
class Unknown(Requester):
    """A container that the agent cannot name.

    Attributes:
        why: for messages, reads on after "The agent cannot identify the requesting pod: ".
        unseen: a pod that the agent may see soon.
        maybe_decided: it may be a pod for which a scheduler decided, and gets nothing.
        between: such pods, if the agent has seen some.
        maybe_undecided: it may be a pod for which none decided.
        deleted: a deleted pod that may be in admission; after this call, it no longer is.
    """

    why: str = ""
    unseen: bool = False
    maybe_decided: bool = False
    between: tuple[PodName, ...] = ()
    maybe_undecided: bool = False
    deleted: Pod | None = None


def identify(
    request: AllocationRequest,
    tracker: AdmissionTracker,
    snap: Snapshot,
    query: Query | None = None,
    *,
    certainly: bool = False,
) -> Requester:
    """The container that `request` is for.

    Args:
        request: kubelet's.
        tracker: the agent's record of kubelet's calls.
        snap: the current snapshot.
        query: queries kubelet; None if kubelet has picked the devices, which the agent then checks.
        certainly: query kubelet in any case.
    """
    search = Search(request, tracker, snap)
    fitting = search.fitting(snap.with_devices)
    reused = [one for one in tracker.admission if not one.ids.isdisjoint(request.must_include)]
    if reused and fitting and fitting[0].pod and fitting[0].pod.uid == reused[-1].pod_uid:
        return replace(fitting[0], certain=reused[-1].certain)
    if query is None and snap.schedulers and not snap.pods_known:
        return search.unseen(maybe_decided=True)  # the pods that were read may not be all that wait
    matters = snap.may_be_decided or certainly
    if search.alike(fitting) and (not matters or (query is None and fitting)):
        return fitting[0] if fitting else search.unseen()
    queried = set[PodName]()
    listed: dict[PodName, list[Sequence[Holding]]] = {}
    for pods in search.to_query(fitting):
        if missing := {pod.name for pod in pods} - queried:
            answer = query(missing) if query else None
            if answer is None:
                return search.unanswered(fitting)
            queried |= missing
            for name, holdings in answer:
                listed.setdefault(name, []).append(holdings)
        if requester := search.by_kubelet(pods, listed):
            return requester
    return search.hidden(listed) or search.unseen(maybe_decided=query is not None and snap.unread_pods)


@dataclass(frozen=True)
class Search:
    """The search for the container of one request."""

    request: AllocationRequest
    tracker: AdmissionTracker
    snap: Snapshot

    def fitting(self, past: Collection[str]) -> list[Requester]:
        """Containers that fit by the agent's record, the most likely first. `past` are UIDs of pods to leave out."""
        snap, resource = self.snap, self.request.resource
        begun, refused = self.tracker.by_pod, self.tracker.refused
        found = [self._goes_on()]
        # The agent may have restarted during the admission of a pod that holds something.
        unstarted = [pod for pod in snap.unstarted if pod.uid not in begun and pod.uid not in refused]
        found += [self._lacking(pod, self._recorded(pod)) for pod in unstarted]
        for size in (self.request.size, None):
            for pod, container in snap.first_asks.get((resource, size), ()):
                if not (pod.uid in begun or pod.uid in refused or pod.uid in past):
                    found.append(Requester(pod, container))
        return [one for one in found if one]

    def _goes_on(self) -> Requester | None:
        """The next container of the pod in admission."""
        if pair := self._unseen_pair():
            return pair
        last = self.tracker.last
        pod = self.snap.pod_by_uid.get(last.pod_uid) if last and last.pod_uid else None
        if pod is None or self._spares(pod):
            return None
        return self._lacking(pod, [*self._given(), *self._recorded(pod)])

    def _unseen_pair(self) -> Requester | None:
        """The second resource of a container of a pod that the agent has not seen."""
        last = self.tracker.last
        if last is None or last.owner or last.resource == self.request.resource:
            return None
        return Requester(container_gpus=last.uuids)

    def _spares(self, pod: Pod) -> bool:
        """Whether the pod's init containers have units to reuse, and the request includes none of them.

        Kubelet reuses such units first, so the request is for another pod.
        """
        init, spare = pod.init_names, frozenset[str]()
        for one in self.tracker.admission if init else ():
            if one.resource == self.request.resource and one.owner:
                spare = spare | one.ids if one.owner.container in init else spare - one.ids
        return bool(spare) and spare.isdisjoint(self.request.must_include)

    def _given(self) -> list[_Held]:
        """Allocations of the pod in admission."""
        return [(one.owner.container, one.resource, one.uuids) for one in self.tracker.admission if one.owner]

    def _recorded(self, pod: Pod) -> list[_Held]:
        """Devices that kubelet has recorded for the pod, also from before the agent started."""
        if pod.uid not in self.snap.with_devices:
            return []
        held = [holding for holding in self.snap.holdings if holding.owner.pod == pod.name]
        # Without the checkpoint, which has UIDs, the devices may be those of a former pod of this name.
        if not self.snap.checkpoint and of_another_pod(pod, held, self.snap.policy.resources.names):
            return []
        return self._held(held)

    def _held(self, holdings: Iterable[Holding]) -> list[_Held]:
        # Not only resources of the mode in force: the mode may change during an admission.
        ours, units = self.snap.policy.resources.names, self.snap.units
        return [
            (h.owner.container, h.resource, frozenset(filter(None, map(units.get, h.ids))))
            for h in holdings
            if h.resource in ours
        ]

    def _lacking(self, pod: Pod, held: Sequence[_Held], *, certain: bool = False) -> Requester | None:
        """The pod's first container with a missing resource, if the request fits that container."""
        given = {(name, resource) for name, resource, _ in held}
        container = _next_container(pod, given, self.snap.resource_kinds)
        resource = self.request.resource
        if container is None or (container.name, resource) in given:
            return None
        if not container.may_want(resource, self.request.size):
            return None
        init = pod.init_names
        container_gpus = frozenset[str]().union(*[uuids for name, _, uuids in held if name == container.name])
        init_gpus = frozenset[str]().union(*[uuids for name, _, uuids in held if name in init])
        sidecars = {one.name for one in pod.containers if one.sidecar}
        sidecar_gpus = frozenset[str]().union(*[uuids for name, _, uuids in held if name in sidecars])
        return Requester(pod, container, container_gpus, init_gpus, certain, sidecar_gpus)

    def alike(self, fitting: Collection[Requester]) -> bool:
        """Whether all of them get the same answer."""
        if len(fitting) < 2:
            return True
        resource, snap = self.request.resource, self.snap
        kinds = {(*one.constraints(resource, snap.resource_kinds), one.decided_gpus(resource, snap)) for one in fitting}
        return len(kinds) < 2

    def to_query(self, fitting: Collection[Requester]) -> Iterator[list[Pod]]:
        """Pods that may be in admission, deleted ones first: with the likely living pods, then all, then refused."""
        # Kubelet may still admit a pod whose deletion the agent has seen.
        deleted = self._asking(pod for _, pod in self.tracker.deleted)
        likely = {one.pod.name: one.pod for one in fitting if one.pod}
        yield [*deleted, *[likely[name] for name in sorted(likely, key=self.snap.arrival.__getitem__)]]
        living = self.snap.living_pods.values()
        yield [*deleted, *self._asking(living)]
        if not lists_ended(self.snap.kubelet):
            # A kubelet that was restarted may admit a pod again, and lists it only then.
            yield self._asking(living, refused=True)

    def _asking(self, pods: Iterable[Pod], *, refused: bool = False) -> list[Pod]:
        """Pods with a container that requests this size, and that kubelet may still admit; or those `refused`."""
        resource, size, past = self.request.resource, self.request.size, self.tracker.refused
        found = [pod for pod in pods if (pod.uid in past) is refused]
        return [pod for pod in found if any(c.may_want(resource, size) for c in pod.containers)]

    def by_kubelet(
        self, pods: Collection[Pod], listed: Mapping[PodName, Sequence[Sequence[Holding]]]
    ) -> Requester | None:
        """The container in admission, by kubelet's list. `pods` are in the order in which the agent saw them."""
        begin: list[Requester] = []
        go_on: list[Requester] = []
        admitting = self.tracker.last.pod_uid if self.tracker.last else None
        for pod in pods:
            if pod.name not in listed:
                continue
            # Kubelet does not list devices of ordinary init containers.
            init = [one for one in self._given() if one[0] in pod.init_names] if pod.uid == admitting else []
            for holdings in listed[pod.name]:
                if self._was_given_up(pod, holdings):
                    continue
                held = [*init, *self._held(holdings)]
                if found := self._lacking(pod, held, certain=True):
                    (go_on if held else begin).append(found)
        fitting = go_on or begin
        if not fitting:
            return None
        # Kubelet's list has no UIDs: under a reused name it may show the deleted pod.
        reused = {pod.name for _, pod in self.tracker.deleted}
        # Kubelet sees pods in the agent's order. Rejected pods may linger, so the last one is in admission.
        if clear := [one for one in fitting if one.pod_name not in reused]:
            return replace(clear[-1], certain=len(fitting) == 1)
        both = [*go_on, *begin]
        deleted = [one.pod for one in both if one.pod and one.pod.uid not in self.snap.pod_by_uid]
        if not deleted:  # the later ones may be deleted pods of the same names
            return replace(fitting[0], certain=len(fitting) == 1)
        why = f"pod {deleted[0].name} was deleted a moment ago, and kubelet lists no UIDs"
        living = [one for one in both if one.pod not in deleted]
        return self._unknown(why, living, deleted[0]) if living else self.unseen(deleted[0])

    def hidden(self, listed: Mapping[PodName, Sequence[Sequence[Holding]]]) -> Unknown | None:
        """An unknown requester that may be a decided pod under whose name kubelet lists devices of another pod."""
        names = []
        for pod in self._asking(self.snap.living_pods.values()):
            entries = listed.get(pod.name, ())
            if pod.uid in self.tracker.by_pod or not any(entries):
                continue
            new = self._lacking(pod, [])
            if new and self._is_decided(new) and all(self._was_given_up(pod, entry) for entry in entries):
                names.append(pod.name)
        why = "kubelet lists devices of another pod under that name"
        return Unknown(why=why, unseen=True, maybe_decided=True, between=tuple(names)) if names else None

    def _was_given_up(self, pod: Pod, holdings: Sequence[Holding]) -> bool:
        """Whether kubelet does not list the pod's allocations: it rejected it, or lists another pod of the name."""
        if of_another_pod(pod, holdings, self.snap.policy.resources.names):
            return True
        tracker, init, ours = self.tracker, pod.init_names, self.tracker.by_pod.get(pod.uid, ())
        given = [one for one in ours if one.certain and one.owner]
        listed = frozenset[str]().union(*[h.ids for h in holdings])
        if any(one.ids.isdisjoint(listed) for one in given if one.owner and one.owner.container not in init):
            return True
        if not listed:
            admitting = tracker.last and tracker.last.pod_uid == pod.uid
            return not admitting and (pod.uid in self.snap.with_devices or bool(given))
        if listed <= frozenset[str]().union(*[one.ids for one in ours]):
            return False
        holders: set[str] = tracker.record.holders(listed)
        if old := listed - tracker.record.ids:
            holders |= {one.pod_uid for one in self.snap.checkpoint if not one.ids.isdisjoint(old)}
        return bool(holders) and pod.uid not in holders and not pod.static  # the list is of another pod

    def unanswered(self, fitting: Sequence[Requester]) -> Requester:
        """Kubelet did not answer. Only the second resource of a container can be certain then."""
        if fitting and fitting[0].container_gpus and not any(map(self._is_decided, fitting[1:])):
            return fitting[0]
        return self._unknown("kubelet's pod-resources API did not answer", fitting)

    def _unknown(self, why: str, fitting: Sequence[Requester], deleted: Pod | None = None) -> Unknown:
        names = tuple(one.pod.name for one in fitting if one.pod and self._is_decided(one))
        unseen = self.snap.unread_pods or (self.snap.schedulers and not fitting)  # the agent may not have seen it
        maybe_decided = bool(names) or unseen
        undecided = not fitting or len(names) < len(fitting)
        return Unknown(why=why, maybe_decided=maybe_decided, between=names, maybe_undecided=undecided, deleted=deleted)

    def _is_decided(self, one: Requester) -> bool:
        if one.pod is None or self.snap.mode is Mode.TOPOLOGY:
            return one.pod is not None and decided_text(one.pod, GROUP_ANNOTATION) is not None
        return one.pod.gpu_count_label is not None or isinstance(one.decision(self.snap), Decision)

    def unseen(self, deleted: Pod | None = None, *, maybe_decided: bool = False) -> Requester:
        """The requester where no known container fits: an unseen pod, or the second resource of its container."""
        if pair := self._unseen_pair():
            return pair
        why = "kubelet lists no pod that the agent has seen and that lacks this"
        if maybe_decided:
            why = "the API server has not shown the node's pods yet"
        return Unknown(why=why, unseen=True, maybe_decided=maybe_decided, deleted=deleted)


def _next_container(
    pod: Pod, given: Collection[tuple[str, str]], resource_kinds: Collection[str]
) -> ContainerSpec | None:
    """The first container that lacks a resource; kubelet does not list devices of ordinary init containers."""
    names = {name for name, _ in given}
    last = max([n for n, container in enumerate(pod.containers) if container.name in names], default=0)
    for n, container in enumerate(pod.containers):
        if container.init and n < last:
            continue  # a later one holds something
        for name in resource_kinds:
            if (container.name, name) not in given and container.asks(name):
                return container
    return None
