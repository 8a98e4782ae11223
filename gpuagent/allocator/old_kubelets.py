"""Stands between kubelets before 1.19 and the rest of the agent, which has units alone.

Such a kubelet does not ask which ids to take. So each id that it picks is a count, exchanged for a unit that the agent
chooses in Allocate (`domain/deviceplugin/counts`). Kubelet keeps the exchange in its checkpoint.
"""

from collections.abc import Callable

from gpuagent.allocator.allocator_state import AllocatorState
from gpuagent.domain.deviceplugin import counts
from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.fitting_containers import Search
from gpuagent.domain.deviceplugin.admission.recent_allocations import all_ids
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester, UnseenPod
from gpuagent.domain.deviceplugin.located import locate
from gpuagent.domain.deviceplugin.mode_rules import not_offered
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.exchange import Exchanged, joined, picks_itself
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.snapshot import Snapshot

Choose = Callable[[AllocationRequest, Requester], tuple[str, ...]]
"""Chooses units for a container. Raises Refusal."""


class OldKubelets:
    """Exchanges ids for units. Kubelet allocates one container at a time, so no lock is needed.

    Attributes:
        active: ids are counts. Kubelet picks them itself, or still holds ids that it picked so.
    """

    def __init__(self, state: AllocatorState, choose: Choose) -> None:
        self._state = state
        self._choose = choose
        # Kubelet's allocations as last read do not have the exchanges since.
        self._latest: Exchanged = {}
        # Some builds of version 1.19 do not ask, so the version alone does not tell.
        self._asked = False
        self.active = False

    def publish(self, snap: Snapshot, tracker: AdmissionTracker) -> None:
        """Look at kubelet's version and allocations as they are now."""
        has_recent = any(allocation.exchanged for allocation in tracker.recent)
        still_holds = bool(snap.allocations.exchanged) or has_recent
        self.active = still_holds or picks_itself(snap.allocations.kubelet, asked=self._asked)

    def counts_although_asked(self, occupancy: Occupancy) -> bool:
        """Kubelet asks which ids to take; whether they still are counts, as it holds ids that it picked before."""
        self._asked = True
        self.publish(occupancy.snapshot, occupancy.tracker)
        return self.active

    def units(self, resource: str, ids: frozenset[str]) -> frozenset[str]:
        """The units that these ids stand for. Raises Refusal: kubelet's allocations were not read yet."""
        snap = self._state.occupancy().snapshot
        exchanged = self._exchanged(resource, snap)
        return frozenset([exchanged.get(device_id, device_id) for device_id in ids])

    def _exchanged(self, resource: str, snap: Snapshot) -> Exchanged:
        """All ids that kubelet holds in exchange for units. Raises Refusal: kubelet's allocations were not read yet."""
        if not snap.holdings_known:
            text = f"{resource}: the GPU agent is starting and has not read yet what kubelet gave out; try again"
            raise Refusal(Reason.NOT_READY, text)
        return joined(snap.allocations.exchanged, self._latest)

    def exchange(self, resource: str, picked: frozenset[str]) -> Exchanged:
        """Units in exchange for the ids that kubelet picked for a container; empty where they stand for themselves.

        Raises:
            Refusal: no GPU can serve the container.
        """
        lapsed = counts.lapsed(self._state.occupancy())
        if lapsed:
            self._state.freed(lapsed)
        occupancy = self._state.occupancy()
        snap = occupancy.snapshot
        tracker = occupancy.tracker
        self._forget_old(tracker)
        exchanged = self._exchanged(resource, snap)
        picked_units = [exchanged[device_id] for device_id in picked if device_id in exchanged]
        reused = all_ids(tracker.admission).intersection(picked_units)
        request = AllocationRequest(resource, len(picked), must_include=reused)
        requester = self._requester(request, occupancy)
        goes_on = requester.init_gpus or requester.container_gpus
        in_admission = reused if goes_on else frozenset[str]()
        pick = counts.pick(resource, picked, in_admission, exchanged, occupancy)
        if len(pick.exchanged) == len(picked):
            return pick.exchanged
        if not locate(resource, picked, snap).listed:
            if picked.isdisjoint(exchanged.values()):
                # The ids are from before a downgrade of kubelet, so each stands for itself.
                return {}
            # Another pod has a unit with the id of a count.
            raise not_offered(resource, snap)
        if requester.pod is None and snap.unread_pods:
            why = "the API server has not shown the node's pods yet"
            requester = UnseenPod(why=why, maybe_decided=True)
        try:
            chosen = self._choose(pick.request, requester)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            self._state.refused(requester.pod)
            raise
        self._state.freed(pick.freed)
        given = counts.mapped(picked, chosen, pick.exchanged)
        self._latest = joined(self._latest, given)
        return given

    def _forget_old(self, tracker: AdmissionTracker) -> None:
        """Forget exchanges of allocations that are not recent any more.

        A unit of an older exchange may be in use by now without one: kubelet was upgraded.
        """
        recent = all_ids([allocation for allocation in tracker.recent if allocation.exchanged])
        self._latest = {device_id: unit for device_id, unit in self._latest.items() if unit in recent}

    def _requester(self, request: AllocationRequest, occupancy: Occupancy) -> Requester:
        """The container that kubelet is likely to ask for."""
        snap = occupancy.snapshot
        tracker = occupancy.tracker
        # An older pod of the same size may have taken a pod's turn, and that pod then gets what is chosen for this one.
        # So pods count as served by allocations from before the record of calls only.
        recent_ids = tracker.record.ids
        served = frozenset([entry.pod_uid for entry in snap.allocations.checkpoint if entry.ids.isdisjoint(recent_ids)])
        fitting = Search(request, tracker, snap).fitting(served)
        requester = counts.oldest(fitting, tracker.last)
        half = self._state.half() if snap.policy.core_mem_both else None
        if half is None or half.resource == request.resource:
            return requester
        if half.resource in snap.resource_kinds:
            return counts.beside(requester, half)
        return requester
