"""GetPreferredAllocation: choose devices, after a query to kubelet if the requesting container matters."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from gpuagent.allocator.allocator_state import AllocatorState
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.allocator.old_kubelets import OldKubelets
from gpuagent.domain.announcement import Announcement, EventSink
from gpuagent.domain.deviceplugin.assignment import choose, in_doubt, notice
from gpuagent.domain.deviceplugin.identity import (
    AllocationRequest,
    HiddenPod,
    Listed,
    Requester,
    Unknown,
    UnseenPod,
    identify,
)
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.snapshot import Snapshot

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""How long a call waits for a pod that kubelet sees before the agent does."""

REST_S = 5.0
"""If no scheduler decides, wait this long after an unsuccessful search before the next one."""

NAMING_S = 1.0
"""How long to wait for kubelet's allocations, which name the containers."""

MOST_FETCHED = 8
"""Pods that are read one by one from the API server for one call; where more are missing, all are read at once."""

Fetch = Callable[[Collection[PodName] | None, float], frozenset[str] | None]
"""Reads pods of this node, which the watch may not have shown yet, within a timeout in seconds; None: all of them.

Returns the UIDs of the pods that exist; None if no answer comes in time.
"""


class PreferredAllocation:
    """Answers GetPreferredAllocation; `old` chooses for kubelets before 1.19, which do not send that call."""

    def __init__(self, state: AllocatorState, kubelet: KubeletAllocations, send_event: EventSink, fetch: Fetch) -> None:
        self._state, self._kubelet, self._send_event, self._fetch = state, kubelet, send_event, fetch
        self._rest_until = float("-inf")
        self.old = OldKubelets(state, self.choose)

    def prefer(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Which of `available` a container should get.

        Raises:
            Refusal: the total may be enough, but no GPU is; or the request makes no sense.
        """
        request = AllocationRequest(resource, size, frozenset(available), frozenset(must_include))
        if not available or size < max(1, len(must_include)):
            text = f"{resource}: {size} devices are asked for, {len(must_include)} must be included"
            raise Refusal(Reason.EMPTY_REQUEST, f"{text}, and {len(available)} are available")
        if not request.must_include <= request.offered:
            raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: a device that must be included is not available")
        self._state.wait_for_pods()
        occupancy = self._state.occupancy()
        if self.old.active and self.old.counts_although_asked(occupancy):
            return (*request.must_include, *sorted(request.offered - request.must_include))[:size]
        requester = self._identify(request, self._with_named_containers(request, occupancy))
        _log_identified(request, requester)
        if requester.container_gpus and not requester.certain:
            try:
                return self.choose(request, requester)
            except Refusal:
                # The agent assumed a container's second resource. Kubelet may have rejected that container's pod.
                requester = self._identify(request, self._state.occupancy(), certainly=True)
                _log_identified(request, requester)
        if isinstance(requester, Unknown) and requester.deleted:
            self._state.refused(requester.deleted)
        try:
            return self.choose(request, requester)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            # Bar only a certain pod: kubelet may still admit another one.
            self._state.refused(requester.pod if requester.certain else None)
            raise

    def choose(self, request: AllocationRequest, requester: Requester) -> tuple[str, ...]:
        """The ids for this container. Raises Refusal."""
        occupancy = self._state.occupancy().seen_with(request.offered)
        if isinstance(requester, Unknown) and requester.maybe_decided:
            raise in_doubt(request.resource, requester)
        chosen = choose(request, requester, occupancy)
        if suspect := occupancy.suspect_ids.intersection(chosen) - request.must_include:
            self._check_suspect(request, suspect, occupancy)
        self._state.answered((request.resource, frozenset(chosen)), requester)
        if found := notice(requester, occupancy.snapshot):
            self._send_event(found)
        return chosen

    def _identify(self, request: AllocationRequest, occupancy: Occupancy, *, certainly: bool = False) -> Requester:
        """The requesting container, by a query to kubelet if it matters. Waits for a pod not seen yet."""
        snap, must_include = occupancy.snapshot, request.must_include
        # Kubelet has only reserved the ids of a first request, and a list query would make kubelet lose them.
        may_list = not must_include or occupancy.given(request.resource, must_include) is not None
        silent = False

        def query(pods: Collection[PodName]) -> Listed | None:
            nonlocal silent
            found = self._kubelet.query(pods, listing=may_list)
            silent = found is None
            self._state.begun(_bare(found or (), snap))
            return found

        found = identify(request, occupancy.tracker, snap, query, certainly=certainly)
        unseen: Collection[PodName] | None = None if silent and snap.may_be_decided else ()
        if snap.unread_pods or isinstance(found, UnseenPod | HiddenPod):
            unseen = self._unseen(occupancy, listing=may_list)
        if unseen is not None and not unseen:
            return found if snap.schedulers else _no_decided_pod(found)
        until = self._state.clock() + WAIT_S
        uids = self._fetch(unseen, WAIT_S)
        left_s = until - self._state.clock()
        shown = uids is not None and self._state.wait(lambda snap: uids <= {pod.uid for pod in snap.pods}, left_s)
        if shown and uids:
            occupancy = self._state.occupancy()
            asked = (lambda _pods: None) if silent else query  # kubelet has just not answered
            found = identify(request, occupancy.tracker, occupancy.snapshot, asked, certainly=certainly)
            return _no_decided_pod(found) if unseen else found
        self._rest_until = self._state.clock() + REST_S
        if not shown and snap.may_be_decided:
            why = "the API server did not show the node's pods in time"
            # Most pods that were not read yet ask for no GPU: naming these would mislead.
            between = () if snap.unread_pods else tuple(unseen or snap.decided)
            return UnseenPod(why=why, maybe_decided=True, candidates=between)
        return _no_decided_pod(found)

    def _unseen(self, occupancy: Occupancy, *, listing: bool) -> list[PodName] | None:
        """Pods that kubelet lists without devices and that the agent has not seen. The request is for one of them.

        None if kubelet cannot be queried, or lists many: each pod of the node may be one.

        Before the first list of pods, these are all pods that the agent has not read: one of them may have devices from
        before the agent's restart, and lack others. A pod that lacks all is read again, because no watch would show
        that another pod has its name now.

        If no scheduler decides, the agent limits these queries: it never sees a static pod in time. A newer pod of
        the same name may have replaced a pod that held devices or was rejected. Kubelet does not list the devices of
        ordinary init containers.
        """
        snap, tracker = occupancy.snapshot, occupancy.tracker
        resting = not snap.pods_known or self._state.clock() < self._rest_until
        if resting and not snap.may_be_decided:
            return []
        ours, past = snap.resource_kinds, {*snap.with_devices, *tracker.by_pod, *tracker.refused}
        seen = set()
        for pod in snap.living_pods.values():
            only_init = all(c.init or not any(map(c.asks, ours)) for c in pod.containers)
            if only_init or pod.uid not in past:
                seen.add(pod.name)
        listed = self._kubelet.query(None, listing=listing)
        if listed is None:
            return None
        known = {pod.name for pod in snap.pods}
        bare = _bare(listed, snap)
        self._state.begun(bare)
        if not snap.pods_known:
            asking = {pod.name for pod in snap.living_pods.values() if any(map(pod.asks, ours))}
            return [pod for pod, _ in listed if pod not in known or pod in bare & asking]
        names = sorted(bare - seen, key=known.__contains__)
        return names if len(names) <= MOST_FETCHED else None

    def _with_named_containers(self, request: AllocationRequest, occupancy: Occupancy) -> Occupancy:
        """The devices in use, with containers named by kubelet if a GPU seems full: two without a name may be one."""
        unnamed = [one for one in occupancy.tracker.by_pod.get(None, ()) if one.owner is None]
        if unnamed and not request.must_include and occupancy.seen_with(request.offered).full_gpus(None):
            began = self._state.clock()
            if self._kubelet.read(timeout_s=NAMING_S):
                self._state.wait(lambda snap: snap.holdings_at >= began, NAMING_S)
            return self._state.occupancy()
        return occupancy

    def _check_suspect(self, request: AllocationRequest, ids: Collection[str], occupancy: Occupancy) -> None:
        """Check recently allocated `ids` that kubelet calls free. Raises Refusal if a pod holds them."""
        owners = {owner for one in occupancy.suspect if (owner := one.owner) and not one.ids.isdisjoint(ids)}
        for pod in {owner.pod for owner in owners}:
            held = [h for _, holdings in self._kubelet.query([pod], listing=True) or () for h in holdings]
            if not all(h.ids.isdisjoint(ids) for h in held):
                text = f"{request.resource}: kubelet offers units that pod {pod} still holds"
                text = f"{text}, and no other units that kubelet offers fit; try again when a pod has ended"
                raise Refusal(Reason.STILL_HELD, text)
        log.warning("Allocated devices again soon after", extra={"resource": request.resource, "devices": len(ids)})
        names = ", ".join(sorted(map(str, owners))) or "a container"
        text = f"{request.resource}: kubelet offers {len(ids)} units again that {names} got a moment ago"
        text = f"{text}, and no other units that kubelet offers fit; if that container still runs, they are held twice"
        self._send_event(Announcement("DevicesReallocated", text, warning=True))


def _bare(listed: Listed, snap: Snapshot) -> set[PodName]:
    """Pods that kubelet lists without a device of ours."""
    ours = snap.resource_kinds
    return {pod for pod, holdings in listed if not any(held.resource in ours for held in holdings)}


def _log_identified(request: AllocationRequest, requester: Requester) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    why = "kubelet lists no other" if requester.certain else "the most likely of those that fit"
    if isinstance(requester, Unknown):
        why = requester.why
    extra = {"resource": request.resource, "units": request.size, "container": str(requester.owner), "reason": why}
    log.debug("Identified the requesting container", extra=extra)


def _no_decided_pod(found: Requester) -> Requester:
    """The requester, after a read of the pods that kubelet lists: one that was not among them has no decision."""
    if isinstance(found, UnseenPod):
        return replace(found, maybe_decided=False)
    return found
