"""Stands between kubelets before 1.19 and the rest of the agent, which has units alone.

Such a kubelet does not ask which ids to take. So each id that it picks is a count, exchanged for a unit that the agent
chooses in Allocate (`domain/deviceplugin/counts`). Kubelet keeps the exchange in its checkpoint.
"""

from collections.abc import Callable

from gpuagent.allocator.allocator_state import AllocatorState
from gpuagent.domain.deviceplugin import counts
from gpuagent.domain.deviceplugin.allocate import locate
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, Search, UnseenPod
from gpuagent.domain.deviceplugin.mode_rules import not_offered
from gpuagent.domain.deviceplugin.occupancy import AdmissionTracker, Occupancy
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
        self._state, self._choose = state, choose
        self._latest: Exchanged = {}  # of recent allocations
        self._asked = False  # some builds of version 1.19 do not ask
        self.active = False

    def publish(self, snap: Snapshot, tracker: AdmissionTracker) -> None:
        """Look at kubelet's version and allocations as they are now."""
        recent = any(one.exchanged for one in tracker.recent)
        self.active = bool(snap.exchanged) or recent or picks_itself(snap.kubelet, asked=self._asked)

    def counts_although_asked(self, occupancy: Occupancy) -> bool:
        """Kubelet asks which ids to take; whether they still are counts, as it holds ids that it picked before."""
        self._asked = True
        self.publish(occupancy.snapshot, occupancy.tracker)
        return self.active

    def units(self, resource: str, ids: frozenset[str]) -> frozenset[str]:
        """The units that these ids stand for. Raises Refusal: kubelet's allocations were not read yet."""
        exchanged = self._exchanged(resource, self._state.occupancy().snapshot)
        return frozenset(exchanged.get(device_id, device_id) for device_id in ids)

    def _exchanged(self, resource: str, snap: Snapshot) -> Exchanged:
        if not snap.holdings_known:
            text = f"{resource}: the GPU agent is starting and has not read yet what kubelet gave out; try again"
            raise Refusal(Reason.NOT_READY, text)
        return joined(snap.exchanged, self._latest)

    def exchange(self, resource: str, picked: frozenset[str]) -> Exchanged:
        """Units in exchange for the ids that kubelet picked for a container; empty where they stand for themselves.

        Raises:
            Refusal: no GPU can serve the container.
        """
        if stale := counts.lapsed(self._state.occupancy()):
            self._state.freed(stale)
        occupancy = self._state.occupancy()
        snap, tracker = occupancy.snapshot, occupancy.tracker
        # A unit of an older exchange may be in use by now without one: kubelet was upgraded.
        recent = frozenset[str]().union(*[one.ids for one in tracker.recent if one.exchanged])
        self._latest = {device_id: unit for device_id, unit in self._latest.items() if unit in recent}
        exchanged = self._exchanged(resource, snap)
        current = frozenset[str]().union(*(one.ids for one in tracker.admission))
        must_include = current.intersection(filter(None, map(exchanged.get, picked)))
        # An older pod of the same size may have taken a pod's turn, and that pod then gets what is chosen for this one.
        with_devices = frozenset([one.pod_uid for one in snap.checkpoint if one.ids.isdisjoint(tracker.record.ids)])
        request = AllocationRequest(resource, len(picked), must_include=must_include)
        fitting = Search(request, tracker, snap).fitting(with_devices)
        requester = counts.oldest(fitting, tracker.last)
        half = self._state.half() if snap.policy.core_mem_both else None
        if half and half.resource in snap.resource_kinds and half.resource != resource:
            requester = counts.beside(requester, half)
        goes_on = requester.init_gpus or requester.container_gpus
        found = counts.pick(resource, picked, must_include if goes_on else frozenset(), exchanged, occupancy)
        if len(found.exchanged) == len(picked):
            return found.exchanged
        if not locate(resource, picked, snap).listed:
            if picked.isdisjoint(exchanged.values()):
                return {}  # from before a downgrade of kubelet
            raise not_offered(resource, snap)  # another pod has a unit with the id of a count
        if requester.pod is None and snap.unread_pods:
            requester = UnseenPod(why="the API server has not shown the node's pods yet", maybe_decided=True)
        try:
            chosen = self._choose(found.request, requester)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            self._state.refused(requester.pod)
            raise
        self._state.freed(found.freed)
        given = counts.mapped(picked, chosen, found.exchanged)
        self._latest = joined(self._latest, given)
        return given
