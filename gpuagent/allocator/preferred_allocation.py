"""GetPreferredAllocation: choose devices for the container that asks."""

import logging
from collections.abc import Collection
from dataclasses import replace

from gpuagent.allocator.allocator_state import AllocatorState
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.allocator.old_kubelets import OldKubelets
from gpuagent.allocator.requester_queries import ContainerSearch, Fetch
from gpuagent.domain.announcement import Announcement, EventSink
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester, Unknown
from gpuagent.domain.deviceplugin.assignment import choose, notice
from gpuagent.domain.deviceplugin.decided_gpus import in_doubt
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Reason, Refusal

log = logging.getLogger(__name__)

NAMING_S = 5.0
"""How long to wait for kubelet's allocations, which name the containers.

Longer than other waits: without them the pod is refused, and kubelet never admits it again.
"""


class PreferredAllocation:
    """Answers GetPreferredAllocation; `old` chooses for kubelets before 1.19, which do not send that call."""

    def __init__(
        self,
        state: AllocatorState,
        kubelet: KubeletAllocations,
        send_event: EventSink,
        fetch: Fetch,
    ) -> None:
        self._state = state
        self._kubelet = kubelet
        self._send_event = send_event
        self._containers = ContainerSearch(state, kubelet, fetch)
        self.old = OldKubelets(state, self.choose)

    def prefer(
        self,
        resource: str,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
    ) -> tuple[str, ...]:
        """Which of `available` a container should get.

        Raises:
            Refusal: the total may be enough, but no GPU is; or the request makes no sense.
        """
        request = AllocationRequest(
            resource,
            size,
            offered=frozenset(available),
            must_include=frozenset(must_include),
        )
        if not available or size < max(1, len(must_include)):
            text = f"{resource}: {size} devices are asked for, {len(must_include)} must be included"
            raise Refusal(Reason.EMPTY_REQUEST, f"{text}, and {len(available)} are available")
        if not request.must_include <= request.offered:
            text = f"{resource}: a device that must be included is not available"
            raise Refusal(Reason.UNKNOWN_DEVICE, text)
        self._state.wait_for_pods()
        occupancy = self._state.occupancy()
        request = _without_withheld(request, occupancy)
        if self.old.active and self.old.counts_although_asked(occupancy):
            # The ids are only counts, so any will do: Allocate exchanges them for units.
            others = request.offered - request.must_include
            return (*request.must_include, *sorted(others))[:size]
        occupancy = self._with_named_containers(request, occupancy)
        requester = self._containers.requesting(request, occupancy)
        if requester.container_gpus and not requester.certain:
            try:
                return self.choose(request, requester)
            except Refusal:
                # The agent assumed a container's second resource. Kubelet may have rejected that container's pod.
                requester = self._containers.requesting(request, self._state.occupancy(), certainly=True)
        if isinstance(requester, Unknown) and requester.deleted:
            # Otherwise each later call could be for this pod again.
            self._state.refused(requester.deleted)
        return self._choose_or_bar(request, requester)

    def _choose_or_bar(self, request: AllocationRequest, requester: Requester) -> tuple[str, ...]:
        """The ids for this container. After a refusal, kubelet rejects the pod, so later calls are for others."""
        try:
            return self.choose(request, requester)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            # Bar only a certain pod: kubelet may still admit another one.
            rejected = requester.pod if requester.certain else None
            self._state.refused(rejected)
            raise

    def choose(self, request: AllocationRequest, requester: Requester) -> tuple[str, ...]:
        """The ids for this container. Raises Refusal."""
        resource = request.resource
        if isinstance(requester, Unknown) and requester.maybe_decided:
            raise in_doubt(resource, requester)
        occupancy = self._state.occupancy().seen_with(request.offered)
        chosen = choose(request, requester, occupancy)
        suspect = occupancy.suspect_ids.intersection(chosen)
        # Kubelet itself has assigned those that must be included.
        suspect -= request.must_include
        if suspect:
            self._check_suspect(request, suspect, occupancy)
        allocation = resource, frozenset(chosen)
        self._state.answered(allocation, requester)
        warning = notice(requester, occupancy.snapshot)
        if warning:
            self._send_event(warning)
        return chosen

    def _with_named_containers(self, request: AllocationRequest, occupancy: Occupancy) -> Occupancy:
        """The devices in use, with containers named by kubelet if a GPU seems full: two without a name may be one."""
        if request.must_include:
            return occupancy
        unidentified = occupancy.tracker.by_pod.get(None, ())
        unnamed = [allocation for allocation in unidentified if allocation.owner is None]
        if not unnamed:
            return occupancy
        if not occupancy.seen_with(request.offered).full_gpus(None):
            return occupancy
        began = self._state.clock()
        if self._kubelet.read(timeout_s=NAMING_S):
            remaining_s = began + NAMING_S - self._state.clock()
            self._state.wait(lambda snap: snap.allocations.read_at >= began, remaining_s)
        return self._state.occupancy()

    def _check_suspect(
        self,
        request: AllocationRequest,
        ids: Collection[str],
        occupancy: Occupancy,
    ) -> None:
        """Check recently allocated `ids` that kubelet calls free. Raises Refusal if a pod holds them."""
        owners = set()
        for allocation in occupancy.suspect:
            if allocation.owner and not allocation.ids.isdisjoint(ids):
                owners.add(allocation.owner)
        for pod in {owner.pod for owner in owners}:
            if self._holds(pod, ids):
                text = f"{request.resource}: kubelet offers units that pod {pod} still holds"
                advice = "no other units that kubelet offers fit; try again when a pod has ended"
                raise Refusal(Reason.STILL_HELD, f"{text}, and {advice}")
        extra = {"resource": request.resource, "devices": len(ids)}
        log.warning("Allocated devices again soon after", extra=extra)
        names = ", ".join(sorted(map(str, owners))) or "a container"
        text = f"{request.resource}: kubelet offers {len(ids)} units again that {names} got a moment ago"
        risk = "if that container still runs, they are held twice"
        text = f"{text}, and no other units that kubelet offers fit; {risk}"
        self._send_event(Announcement("DevicesReallocated", text, warning=True))

    def _holds(self, pod: PodName, ids: Collection[str]) -> bool:
        """Whether kubelet lists some of `ids` for the pod."""
        listed = self._kubelet.query([pod], listing=True) or ()
        for _, holdings in listed:
            for holding in holdings:
                if not holding.ids.isdisjoint(ids):
                    return True
        return False


def _without_withheld(request: AllocationRequest, occupancy: Occupancy) -> AllocationRequest:
    """The request without units that a resized pod has: kubelet has yet to hear that they leave the list."""
    withheld = occupancy.snapshot.resizes.closed - request.must_include
    if not withheld or withheld.isdisjoint(request.offered):
        return request
    return replace(request, offered=request.offered - withheld)
