"""The containers that fit a call by the agent's own record: the pods that it has seen, and kubelet's calls so far."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester, UnconfirmedPod, UnseenPod
from gpuagent.domain.pods.holdings import lists_ended, of_another_pod
from gpuagent.domain.pods.pod import ContainerSpec, Holding, Pod
from gpuagent.domain.scheduling.decision import Decision, decided_text
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, Mode
from gpuagent.domain.snapshot import Snapshot

HeldDevices = tuple[str, str, frozenset[str]]
"""What a container has of one resource: the container's name, the resource, and UUIDs of the GPUs.

A plain tuple, because a call makes one for each device that its pod has already.
"""


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

    def given_in_admission(self) -> list[HeldDevices]:
        """Allocations of the pod in admission."""
        given = []
        for allocation in self.tracker.admission:
            owner = allocation.owner
            if owner:
                given.append((owner.container, allocation.resource, allocation.uuids))
        return given

    def _recorded(self, pod: Pod) -> list[HeldDevices]:
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

    def held(self, holdings: Iterable[Holding]) -> list[HeldDevices]:
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
        held: Sequence[HeldDevices],
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
        likely_pods = [likely[name] for name in by_arrival]
        yield [*deleted, *likely_pods]
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


def _gpus_of(names: Collection[str], held: Sequence[HeldDevices]) -> frozenset[str]:
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
