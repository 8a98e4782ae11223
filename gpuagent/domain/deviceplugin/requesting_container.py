"""Finds the container of a call: kubelet's calls carry device ids and no pod.

Kubelet admits one pod at a time, and lists a pod as soon as its admission begins. It adds the pod's devices in order:
init containers first, then the others, and the resources of one container in any order. So the requesting container is
the one that kubelet lists and whose next missing resource and amount are those of the call. If all containers that fit
would get the same answer, and no scheduler may have decided on a pod, the agent does not query kubelet. If the answers
differ and kubelet does not answer, the container is unknown, unless it is known by its other resource.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuagent.domain.deviceplugin.occupancy import AdmissionTracker, all_ids
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
        container_gpus: UUIDs of the GPUs that this container already has for the mode's other resource.
        init_gpus: UUIDs of the GPUs of the pod's init containers, whose units kubelet reuses for later ones.
        certain: kubelet's list confirms the pod, or it is the only one that fits.
        sidecar_gpus: UUIDs of the GPUs of the pod's sidecars.
    """

    pod: Pod | None = None
    container: ContainerSpec | None = None
    container_gpus: frozenset[str] = frozenset()
    init_gpus: frozenset[str] = frozenset()
    certain: bool = False
    sidecar_gpus: frozenset[str] = frozenset()

    @property
    def owner(self) -> ContainerRef | None:
        if self.pod is None or self.container is None:
            return None
        return ContainerRef(self.pod.name, self.container.name)

    @property
    def pod_name(self) -> PodName | None:
        return self.pod.name if self.pod else None

    def units_for_later_containers(self, resource: str) -> int:
        """Units of the pod's largest container; 0 unless this is an init container.

        Kubelet reuses the units of an init container for the later ones, so its GPU should have room for each of them.
        """
        if self.pod is None or self.container is None:
            return 0
        if not self.container.init:
            return 0
        return max([container.limits.get(resource, 0) for container in self.pod.containers])

    def groups_beside_sidecar(self) -> Sequence[Sequence[ContainerSpec]]:
        """Containers to have on one GPU, the best group first: this sidecar with all later ones, or with the largest.

        Empty for a container that is no sidecar. Kubelet asks for sidecars first.
        """
        if self.pod is None or self.container is None:
            return ()
        if not self.container.sidecar:
            return ()
        place = self.pod.containers.index(self.container)
        after = self.pod.containers[place + 1 :]
        apps_and_sidecars = [container for container in after if not container.init]
        later = [container for container in apps_and_sidecars if container.limits]
        if not later:
            return ()
        largest = max(later, key=_total_units)
        return [self.container, *later], [self.container, largest]

    def _amounts_beside(self) -> tuple[object, ...]:
        """The amounts of `groups_beside_sidecar`, to compare."""
        if self.container is None or not self.container.sidecar:
            return ()
        amounts = [_amounts(containers) for containers in self.groups_beside_sidecar()]
        return tuple(amounts)

    def units_of_other_resource(self, resource: str, resource_kinds: Collection[str]) -> int:
        """Units of the mode's other resource for this container, or for the largest one that may reuse its GPU."""
        if self.pod is None or self.container is None:
            return 0
        others = [name for name in resource_kinds if name != resource]
        asking = self.pod.containers if self.container.init else (self.container,)
        most = 0
        for container in asking:
            units = sum([container.limits.get(name, 0) for name in others])
            most = max(most, units)
        return most

    def constraints(self, resource: str, resource_kinds: Mapping[str, Kind]) -> tuple[object, ...]:
        """Everything that the choice of GPUs depends on, except the amount and a scheduler's decision."""
        if self.pod is None:
            return (self.container_gpus,)
        own = (
            self.container_gpus,
            self.init_gpus,
            self.sidecar_gpus,
            self._amounts_beside(),
            self.units_for_later_containers(resource),
            self.units_of_other_resource(resource, resource_kinds),
            self.pod.gpu_count_label,
        )
        kind = resource_kinds.get(resource)
        if kind is None or not kind.is_whole:
            return own
        return (
            *own,
            decided_text(self.pod, GROUP_ANNOTATION),
            decided_text(self.pod, VISIBLE_ANNOTATION),
            _job_key(self.pod),
            asked(self.pod, resource),
        )

    def decision(self, snap: Snapshot) -> Decision | Ignored | None:
        """The scheduler's decision for the pod, if there is one; not that of a newer pod of its name."""
        if self.pod is None or self.pod.uid not in snap.pod_index.by_uid:
            return None
        return snap.schedulers.decisions.get(self.pod.name)

    def decided_gpus(self, resource: str, snap: Snapshot) -> frozenset[str] | str | None:
        """GPUs that a scheduler chose for the container, or why it can get none; None where it chose none."""
        decision = self.decision(snap)
        if self.container is None or not isinstance(decision, Decision):
            return None
        if decision.unmet:
            return decision.unmet
        own_name = self.container.name
        # Decisions name no init containers. One whose units are reused gets the GPUs of the container that reuses them.
        name = decision.follows.get((own_name, resource), own_name)
        gpus = decision.units.get((name, resource))
        return None if gpus is None else frozenset(gpus)


def _amounts(containers: Iterable[ContainerSpec]) -> tuple[object, ...]:
    return tuple([tuple(container.limits.items()) for container in containers])


def _total_units(container: ContainerSpec) -> int:
    return sum(container.limits.values())


def _job_key(pod: Pod) -> object:
    """What is equal for the pods of one job that are alike; the same for all pods without a job."""
    job = pod.labels.get(JOB_LABEL)
    if not job:
        return job
    return pod.name.namespace, job, pod.labels.get(REPLICAS_LABEL)


@dataclass(frozen=True, slots=True)
class Unknown(Requester):
    """A container that the agent cannot name. Each subclass says what is known of it.

    Attributes:
        why: completes the message "The agent cannot identify the requesting pod: ".
        maybe_decided: a scheduler may have decided on its pod. The container gets nothing then, because any GPU could
            break that decision.
        candidates: the decided pods, of those that the agent has seen, that may be the one that asks.
        deleted: a deleted pod that kubelet may still be admitting. This call ends its admission.
    """

    why: str = field(kw_only=True)
    maybe_decided: bool = field(kw_only=True)
    candidates: tuple[PodName, ...] = field(default=(), kw_only=True)
    deleted: Pod | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class UnseenPod(Unknown):
    """No pod that the agent has seen fits. The watch may show the pod soon."""


@dataclass(frozen=True, slots=True)
class HiddenPod(Unknown):
    """A decided pod may ask, but what kubelet lists under its name are the devices of a former pod."""


@dataclass(frozen=True, slots=True)
class UnconfirmedPod(Unknown):
    """Pods fit by the agent's record, but kubelet does not say which of them it admits.

    Attributes:
        maybe_undecided: it may be a pod that no scheduler decided on.
    """

    maybe_undecided: bool = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class UnorderedPods(Unknown):
    """Kubelet lists several pods that fit. It admits the one that came to it last, and has rejected the others.

    The agent saw them in one list, so it does not know which came last. The API server soon shows the others as failed.

    Attributes:
        pods: UIDs of the listed pods.
    """

    pods: frozenset[str] = field(kw_only=True)


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
        certainly: query kubelet also where all that fit would get the same answer.
    """
    search = Search(request, tracker, snap)
    fitting = search.fitting(snap.allocation_index.with_devices)
    reusing = search.reusing(fitting)
    if reusing is not None:
        return reusing
    is_only_checked = query is None
    decisions_unread = snap.schedulers.assumed and not snap.pod_list.known
    if is_only_checked and decisions_unread:
        # Not all pods of the node were read, so a decided one may be missing.
        return search.unseen(maybe_decided=True)
    # A query to kubelet takes longer than the rest of the call. So ask only if the answer depends on the container.
    if search.alike(fitting):
        matters = snap.schedulers.may_have_decided or certainly
        if not matters:
            return fitting[0] if fitting else search.unseen()
        if is_only_checked and fitting:
            return fitting[0]
    return _identify_by_kubelet(search, fitting, query)


def _identify_by_kubelet(
    search: "Search",
    fitting: Sequence[Requester],
    query: Query | None,
) -> Requester:
    """The container that kubelet admits, by its list of pods and their devices."""
    listing = KubeletListing(search)
    # Ask for few pods first: usually the likely ones suffice, and a node may have hundreds.
    queried = set[PodName]()
    for pods in search.to_query(fitting):
        missing = {pod.name for pod in pods} - queried
        if missing:
            answer = query(missing) if query else None
            if answer is None:
                return search.unanswered(fitting)
            queried |= missing
            listing.add(answer)
        requester = listing.requester_among(pods)
        if requester is not None:
            return requester
    hidden = listing.hidden()
    if hidden is not None:
        return hidden
    maybe_decided = query is not None and search.snap.unread_pods
    return search.unseen(maybe_decided=maybe_decided)


@dataclass(frozen=True)
class Search:
    """The search for the container of one request, by the agent's record of kubelet's calls."""

    request: AllocationRequest
    tracker: AdmissionTracker
    snap: Snapshot

    def fitting(self, with_devices: Collection[str]) -> list[Requester]:
        """Containers that fit, the most likely first. Pods `with_devices` (UIDs) have begun already."""
        snap = self.snap
        begun = self.tracker.by_pod
        refused = self.tracker.refused
        fitting = []
        next_container = self._next_in_admission()
        if next_container:
            fitting.append(next_container)
        # The agent may have restarted during the admission of a pod that holds something.
        for pod in snap.allocation_index.unstarted:
            if pod.uid in begun or pod.uid in refused:
                continue
            requester = self.lacking(pod, self._recorded(pod))
            if requester:
                fitting.append(requester)
        resource = self.request.resource
        # A pod whose amount could not be read may request any number.
        for size in (self.request.size, None):
            for pod, container in snap.pod_index.first_asks.get((resource, size), ()):
                uid = pod.uid
                if uid in begun or uid in refused:
                    continue
                if uid in with_devices:
                    continue
                requester = Requester(pod, container)
                fitting.append(requester)
        return fitting

    def reusing(self, fitting: Sequence[Requester]) -> Requester | None:
        """The next container of the pod in admission, if the request reuses ids of it: no other pod gets those."""
        must_include = self.request.must_include
        reused = [allocation for allocation in self.tracker.admission if not allocation.ids.isdisjoint(must_include)]
        if not reused or not fitting:
            return None
        likely = fitting[0]
        last = reused[-1]
        if likely.pod is None or likely.pod.uid != last.pod_uid:
            return None
        return replace(likely, certain=last.certain)

    def _next_in_admission(self) -> Requester | None:
        """The next container of the pod in admission."""
        pair = self._unseen_pair()
        if pair:
            return pair
        last = self.tracker.last
        if last is None or not last.pod_uid:
            return None
        pod = self.snap.pod_index.by_uid.get(last.pod_uid)
        if pod is None or self._leaves_spare_units(pod):
            return None
        held = [*self.given_in_admission(), *self._recorded(pod)]
        return self.lacking(pod, held)

    def _unseen_pair(self) -> Requester | None:
        """The second resource of a container of a pod that the agent has not seen."""
        last = self.tracker.last
        # If the container is known, its pod says which resource comes next.
        if last is None or last.owner:
            return None
        if last.resource == self.request.resource:
            return None
        return Requester(container_gpus=last.uuids)

    def _leaves_spare_units(self, pod: Pod) -> bool:
        """Whether the pod's init containers have units to reuse, and the request includes none of them.

        Kubelet reuses such units first, so the request is for another pod.
        """
        init_names = pod.init_names
        if not init_names:
            return False
        spare = frozenset[str]()
        for allocation in self.tracker.admission:
            owner = allocation.owner
            if owner is None or allocation.resource != self.request.resource:
                continue
            if owner.container in init_names:
                spare |= allocation.ids
            else:
                spare -= allocation.ids
        return bool(spare) and spare.isdisjoint(self.request.must_include)

    def given_in_admission(self) -> list[_Held]:
        """Allocations of the pod in admission."""
        given = []
        for allocation in self.tracker.admission:
            owner = allocation.owner
            if owner:
                given.append((owner.container, allocation.resource, allocation.uuids))
        return given

    def _recorded(self, pod: Pod) -> list[_Held]:
        """Devices that kubelet has recorded for the pod, also from before the agent started."""
        if pod.uid not in self.snap.allocation_index.with_devices:
            return []
        holdings = [holding for holding in self.snap.holdings if holding.owner.pod == pod.name]
        if not self.snap.allocations.checkpoint:
            # Without the checkpoint, which has UIDs, the devices may be those of a former pod of this name.
            resources = self.snap.policy.resources.names
            if of_another_pod(pod, holdings, resources):
                return []
        return self.held(holdings)

    def held(self, holdings: Iterable[Holding]) -> list[_Held]:
        """Holdings of this agent's resources, with the GPUs of their advertised units."""
        # Not only resources of the mode in force: the mode may change during an admission.
        resources = self.snap.policy.resources.names
        gpu_of = self.snap.units.get
        held = []
        for holding in holdings:
            if holding.resource in resources:
                uuids = filter(None, map(gpu_of, holding.ids))
                held.append((holding.owner.container, holding.resource, frozenset(uuids)))
        return held

    def lacking(
        self,
        pod: Pod,
        held: Sequence[_Held],
        *,
        certain: bool = False,
    ) -> Requester | None:
        """The pod's first container with a missing resource, if the request fits that container."""
        resource = self.request.resource
        served = {(name, served_resource) for name, served_resource, _ in held}
        container = _next_container(pod, served, self.snap.resource_kinds)
        if container is None or (container.name, resource) in served:
            return None
        if not container.may_want(resource, self.request.size):
            return None
        # Most pods have one container, which has no devices yet.
        if not held:
            return Requester(pod, container, certain=certain)
        sidecars = {sibling.name for sibling in pod.containers if sibling.sidecar}
        return Requester(
            pod,
            container,
            container_gpus=_gpus_of({container.name}, held),
            init_gpus=_gpus_of(pod.init_names, held),
            certain=certain,
            sidecar_gpus=_gpus_of(sidecars, held),
        )

    def alike(self, fitting: Collection[Requester]) -> bool:
        """Whether all of them get the same answer."""
        if len(fitting) < 2:
            return True
        resource = self.request.resource
        kinds = self.snap.resource_kinds
        # Equal constraints and an equal decision lead to equal devices, whichever container it is.
        answers = set()
        for requester in fitting:
            constraints = requester.constraints(resource, kinds)
            answers.add((constraints, requester.decided_gpus(resource, self.snap)))
        return len(answers) == 1

    def to_query(self, fitting: Collection[Requester]) -> Iterator[list[Pod]]:
        """Pods that may be in admission, deleted ones first: with the likely living pods, then all, then refused."""
        # Kubelet may still admit a pod whose deletion the agent has seen.
        deleted = self.asking(entry.pod for entry in self.tracker.deleted)
        likely = {requester.pod.name: requester.pod for requester in fitting if requester.pod}
        by_arrival = sorted(likely, key=self.snap.pod_index.arrival.__getitem__)
        yield [*deleted, *[likely[name] for name in by_arrival]]
        living = self.snap.living_pods.values()
        yield [*deleted, *self.asking(living)]
        if not lists_ended(self.snap.allocations.kubelet):
            # A kubelet that was restarted admits refused pods again. This one lists a pod only while it does.
            yield self.asking(living, refused=True)

    def asking(self, pods: Iterable[Pod], *, refused: bool = False) -> list[Pod]:
        """Pods with a container that requests this size, and that kubelet may still admit; or those `refused`."""
        resource = self.request.resource
        size = self.request.size
        asking = []
        for pod in pods:
            was_refused = pod.uid in self.tracker.refused
            if was_refused is not refused:
                continue
            if any(container.may_want(resource, size) for container in pod.containers):
                asking.append(pod)
        return asking

    def is_decided(self, requester: Requester) -> bool:
        """Whether a scheduler decided on its pod, or its label says how to spread it."""
        pod = requester.pod
        if pod is None:
            return False
        if self.snap.mode is Mode.TOPOLOGY:
            return decided_text(pod, GROUP_ANNOTATION) is not None
        return pod.gpu_count_label is not None or isinstance(requester.decision(self.snap), Decision)

    def unanswered(self, fitting: Sequence[Requester]) -> Requester:
        """Kubelet did not answer. Only the second resource of a container can be certain then."""
        # Kubelet asks for both resources of a container one after the other. Another pod comes between them only if
        # kubelet has rejected the first one, and then a decided pod must not get that pod's GPU.
        is_second_resource = bool(fitting) and bool(fitting[0].container_gpus)
        if is_second_resource:
            others_decided = [requester for requester in fitting[1:] if self.is_decided(requester)]
            if not others_decided:
                return fitting[0]
        return self.unconfirmed("kubelet's pod-resources API did not answer", fitting)

    def unconfirmed(
        self,
        why: str,
        fitting: Sequence[Requester],
        deleted: Pod | None = None,
    ) -> UnconfirmedPod:
        """One of the fitting containers, or of the pods that the agent may not have seen."""
        pods = [requester.pod for requester in fitting if self.is_decided(requester)]
        decided = [pod.name for pod in pods if pod]
        # The pod may also be one that the agent has not seen: a scheduler may have decided on that one.
        maybe_unseen = self.snap.unread_pods
        if not fitting:
            maybe_unseen = maybe_unseen or self.snap.schedulers.assumed
        return UnconfirmedPod(
            why=why,
            maybe_decided=bool(decided) or maybe_unseen,
            candidates=tuple(decided),
            deleted=deleted,
            maybe_undecided=not fitting or len(decided) < len(fitting),
        )

    def unseen(self, deleted: Pod | None = None, *, maybe_decided: bool = False) -> Requester:
        """The requester where no known container fits: an unseen pod, or the second resource of its container."""
        pair = self._unseen_pair()
        if pair:
            return pair
        why = "kubelet lists no pod that the agent has seen and that lacks this"
        if maybe_decided:
            why = "the API server has not shown the node's pods yet"
        return UnseenPod(why=why, maybe_decided=maybe_decided, deleted=deleted)


@dataclass(frozen=True)
class KubeletListing:
    """Kubelet's list of pods in answer to one search.

    Attributes:
        entries: pod name to the devices of each listed pod of that name.
    """

    search: Search
    entries: dict[PodName, list[Sequence[Holding]]] = field(default_factory=dict)

    def add(self, listed: Listed) -> None:
        for name, holdings in listed:
            self.entries.setdefault(name, []).append(holdings)

    def requester_among(self, pods: Collection[Pod]) -> Requester | None:
        """The container in admission. `pods` are in the order in which the agent saw them."""
        without_devices: list[Requester] = []
        with_devices: list[Requester] = []
        for pod in pods:
            entries = self.entries.get(pod.name)
            if entries is None:
                continue
            init_held = self._held_by_init(pod)
            for holdings in entries:
                if self._was_given_up(pod, holdings):
                    continue
                held = [*init_held, *self.search.held(holdings)]
                requester = self.search.lacking(pod, held, certain=True)
                if requester is None:
                    continue
                if held:
                    with_devices.append(requester)
                else:
                    without_devices.append(requester)
        if not (with_devices or without_devices):
            return None
        return self._in_admission(with_devices, without_devices)

    def _held_by_init(self, pod: Pod) -> list[_Held]:
        """Allocations of the pod's ordinary init containers, whose devices kubelet does not list."""
        last = self.search.tracker.last
        if last is None or last.pod_uid != pod.uid:
            return []
        init_names = pod.init_names
        return [held for held in self.search.given_in_admission() if held[0] in init_names]

    def _in_admission(self, with_devices: Sequence[Requester], without_devices: Sequence[Requester]) -> Requester:
        """The container in admission, of pods that have devices by kubelet's list, and of pods that have none yet."""
        # A pod that has devices and lacks others is in admission. One without any may only be rejected.
        fitting = with_devices or without_devices
        is_only_one = len(fitting) == 1
        # Kubelet's list has no UIDs: under a reused name it may show the deleted pod.
        reused_names = {entry.pod.name for entry in self.search.tracker.deleted}
        clear = [requester for requester in fitting if requester.pod_name not in reused_names]
        if clear:
            return self._last_of(clear, is_only_one=is_only_one)
        deleted: list[Pod] = []
        living: list[Requester] = []
        for requester in (*with_devices, *without_devices):
            if requester.pod and requester.pod.uid not in self.search.snap.pod_index.by_uid:
                deleted.append(requester.pod)
            else:
                living.append(requester)
        if not deleted:
            # The later ones may be deleted pods of the same names.
            return replace(fitting[0], certain=is_only_one)
        gone = deleted[0]
        if not living:
            return self.search.unseen(gone)
        why = f"pod {gone.name} was deleted a moment ago, and kubelet lists no UIDs"
        return self.search.unconfirmed(why, living, gone)

    def _last_of(self, listed: Sequence[Requester], *, is_only_one: bool) -> Requester:
        """The container of the pod that kubelet got last. Rejected pods may linger in its list."""
        search = self.search
        last = listed[-1]
        decided = [requester.pod.name for requester in listed if requester.pod and search.is_decided(requester)]
        if not decided or search.alike(listed) or self._came_last(last, listed):
            return replace(last, certain=is_only_one)
        return UnorderedPods(
            why="kubelet lists several pods without devices, and the API server does not show yet which ones failed",
            maybe_decided=True,
            candidates=tuple(decided),
            pods=frozenset([requester.pod.uid for requester in listed if requester.pod]),
        )

    def _came_last(self, last: Requester, listed: Iterable[Requester]) -> bool:
        """Whether kubelet certainly got the pod of `last` after all others that are `listed`."""
        for requester in listed:
            if requester.pod is None or last.pod is None or requester.pod is last.pod:
                continue
            if not self.search.tracker.came_before(requester.pod, last.pod, self.search.snap):
                return False
        return True

    def hidden(self) -> HiddenPod | None:
        """Decided pods under whose names kubelet lists devices of other pods."""
        names = []
        for pod in self.search.asking(self.search.snap.living_pods.values()):
            entries = self.entries.get(pod.name, ())
            if not any(entries) or pod.uid in self.search.tracker.by_pod:
                continue
            # As if the pod had no devices: those that kubelet lists may be the other pod's.
            requester = self.search.lacking(pod, [])
            if requester is None or not self.search.is_decided(requester):
                continue
            if all(self._was_given_up(pod, holdings) for holdings in entries):
                names.append(pod.name)
        if not names:
            return None
        why = "kubelet lists devices of another pod under that name"
        return HiddenPod(why=why, maybe_decided=True, candidates=tuple(names))

    def _was_given_up(self, pod: Pod, holdings: Sequence[Holding]) -> bool:
        """Whether kubelet does not list the pod's allocations: it rejected it, or lists another pod of the name."""
        snap = self.search.snap
        if of_another_pod(pod, holdings, snap.policy.resources.names):
            return True
        tracker = self.search.tracker
        allocations = tracker.by_pod.get(pod.uid, ())
        listed = all_ids(holdings)
        init_names = pod.init_names
        has_certain = False
        for allocation in allocations:
            if not allocation.certain or allocation.owner is None:
                continue
            has_certain = True
            is_listable = allocation.owner.container not in init_names
            # Kubelet frees all devices of a pod at once. So one missing allocation shows that it has freed them all.
            if is_listable and allocation.ids.isdisjoint(listed):
                return True
        if not listed:
            # A pod has no devices before its admission, and none after kubelet has rejected it.
            is_in_admission = tracker.last is not None and tracker.last.pod_uid == pod.uid
            had_devices = has_certain or pod.uid in snap.allocation_index.with_devices
            return had_devices and not is_in_admission
        if listed <= all_ids(allocations):
            return False
        if pod.static:
            # The checkpoint has another UID for it than the API server.
            return False
        # If other pods have the listed devices, and this one has none of them, the list is of another pod.
        holders = self._holders(listed)
        return bool(holders) and pod.uid not in holders

    def _holders(self, ids: frozenset[str]) -> set[str]:
        """UIDs of the pods that have some of `ids`, by kubelet's allocations since and before the agent started."""
        record = self.search.tracker.record
        holders = record.holders(ids)
        old_ids = ids - record.ids
        if old_ids:
            for entry in self.search.snap.allocations.checkpoint:
                if not entry.ids.isdisjoint(old_ids):
                    holders.add(entry.pod_uid)
        return holders


def _gpus_of(names: Collection[str], held: Sequence[_Held]) -> frozenset[str]:
    """UUIDs of the GPUs of the containers with these names."""
    gpus = frozenset[str]()
    for name, _, uuids in held:
        if name in names:
            gpus |= uuids
    return gpus


def _next_container(
    pod: Pod,
    served: Collection[tuple[str, str]],
    resource_kinds: Collection[str],
) -> ContainerSpec | None:
    """The first container that lacks a resource, of the containers and resources that are not `served`."""
    names = {name for name, _ in served}
    last_served = 0
    for place, container in enumerate(pod.containers):
        if container.name in names:
            last_served = place
    for place, container in enumerate(pod.containers):
        if container.init and place < last_served:
            # Kubelet does not list its devices, but it has them: a later container holds something.
            continue
        for resource in resource_kinds:
            if (container.name, resource) not in served and container.asks(resource):
                return container
    return None
