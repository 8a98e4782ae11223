"""Finds the container that a call of GetPreferredAllocation is for, with queries to kubelet and the API server."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from gpuagent.allocator.allocator_state import AllocatorState
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.deviceplugin.admission.requester import (
    AllocationRequest,
    HiddenPod,
    Requester,
    Unknown,
    UnorderedPods,
    UnseenPod,
)
from gpuagent.domain.deviceplugin.admission.requesting_container import identify
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.holdings import lists_ended
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.snapshot import Snapshot

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""How long a call waits for a pod that kubelet sees before the agent does."""

REST_S = 5.0
"""If no scheduler decides, wait this long after an unsuccessful search before the next one."""

MOST_FETCHED = 8
"""Pods that are read one by one from the API server for one call; where more are missing, all are read at once."""

_NOT_SHOWN = "the API server did not show the node's pods in time"

Fetch = Callable[[Collection[PodName] | None, float], frozenset[str] | None]
"""Reads pods of this node, which the watch may not have shown yet, within a timeout in seconds; None: all of them.

Returns the UIDs of the pods that exist; None if no answer comes in time.
"""


class KubeletQuery:
    """Queries kubelet for one call, and records which pods kubelet lists without devices.

    Attributes:
        snap: the snapshot with which the call began.
        unanswered: kubelet has not answered the last query.
        all_listed: its last answer about all of its pods; None without one.
    """

    def __init__(
        self,
        kubelet: KubeletAllocations,
        state: AllocatorState,
        snap: Snapshot,
        *,
        listing: bool,
    ) -> None:
        self._kubelet = kubelet
        self._state = state
        self.snap = snap
        self._listing = listing
        self.unanswered = False
        self.all_listed: Listed | None = None

    def __call__(self, pods: Collection[PodName] | None) -> Listed | None:
        listed = self._kubelet.query(pods, listing=self._listing)
        self.unanswered = listed is None
        if pods is None:
            self.all_listed = listed
        if listed:
            # If this call is refused, kubelet is done with all of them: it never admits them again.
            self._state.begun(_without_devices(listed, self.snap))
        return listed


class ContainerSearch:
    """Names the container of each call of GetPreferredAllocation.

    Args:
        state: what the agent knows, and the record of kubelet's calls.
        kubelet: lists pods with their devices.
        fetch: reads pods from the API server that the watch may not have shown yet.
    """

    def __init__(self, state: AllocatorState, kubelet: KubeletAllocations, fetch: Fetch) -> None:
        self._state = state
        self._kubelet = kubelet
        self._fetch = fetch
        self._rest_until = float("-inf")
        self._watch_rests_until = float("-inf")

    def requesting(
        self,
        request: AllocationRequest,
        occupancy: Occupancy,
        *,
        certainly: bool = False,
    ) -> Requester:
        """The requesting container, by a query to kubelet if it matters.

        Waits for a pod that was not seen yet, and until the API server shows which of several pods kubelet rejected.
        """
        until = self._state.clock() + WAIT_S
        requester = self._search(request, occupancy, certainly=certainly)
        while isinstance(requester, UnorderedPods):
            if not self._some_failed(requester.pods, until - self._state.clock()):
                break
            requester = self._search(request, self._state.occupancy(), certainly=certainly)
        _log_identified(request, requester)
        return requester

    def _some_failed(self, pods: Collection[str], timeout_s: float) -> bool:
        """Wait until the API server shows that some of these pods (UIDs) do not live any more; whether it does."""
        return self._state.wait(lambda snap: any(uid not in snap.pod_index.by_uid for uid in pods), timeout_s)

    def _search(
        self,
        request: AllocationRequest,
        occupancy: Occupancy,
        *,
        certainly: bool,
    ) -> Requester:
        """The requesting container, by a query to kubelet if it matters. Waits for a pod not seen yet."""
        snap = occupancy.snapshot
        must_include = request.must_include
        # Kubelet has only reserved the ids of a first request, and a list query would make kubelet lose them.
        may_list = not must_include or occupancy.allocation_with(request.resource, must_include) is not None
        query = KubeletQuery(self._kubelet, self._state, snap, listing=may_list)
        requester = identify(request, occupancy.tracker, snap, query, certainly=certainly)
        was_silent = query.unanswered
        unread = self._pods_to_read(requester, query, occupancy)
        if unread is not None and not unread:
            settled = requester if snap.schedulers.assumed else _without_decision(requester)
            others = self._others_to_read(requester, query, snap) if may_list else set()
            return self._after_others(request, settled, query, others, certainly=certainly)
        shown = self._read_pods(unread, snap)
        if shown is None and not was_silent:
            # The watch may have shown the pod while an overloaded API server let the read wait.
            occupancy = self._state.occupancy()
            snap = occupancy.snapshot
            requester = identify(request, occupancy.tracker, snap, query, certainly=certainly)
            unread = self._pods_to_read(requester, query, occupancy)
            is_all_read = unread is not None and not unread
            # One that is still unseen may have the name of a pod that the watch shows.
            if is_all_read and not isinstance(requester, UnseenPod):
                return requester
        if shown:
            occupancy = self._state.occupancy()
            snap = occupancy.snapshot
            # A kubelet that has just not answered would make this call wait a second time.
            again = _no_answer if was_silent else query
            requester = identify(request, occupancy.tracker, snap, again, certainly=certainly)
        else:
            self._rest_until = self._state.clock() + REST_S
            if shown is None and snap.schedulers.may_have_decided:
                # Most pods that were not read yet ask for no GPU: naming these would mislead.
                candidates = () if snap.unread_pods else tuple(unread or snap.schedulers.decided)
                return UnseenPod(why=_NOT_SHOWN, maybe_decided=True, candidates=candidates)
        if unread is None:
            return requester if shown else _without_decision(requester)
        settled = _without_decision(requester)
        may_look_again = may_list and not was_silent and isinstance(requester, UnseenPod)
        others = self._others_to_read(requester, query, snap) - set(unread) if may_look_again else set()
        return self._after_others(request, settled, query, others, certainly=certainly)

    def _others_to_read(self, requester: Requester, query: KubeletQuery, snap: Snapshot) -> set[PodName]:
        """Names without devices in kubelet's list, if an unseen pod may have one of them and be the requester's.

        If no known pod asks for this, another one has taken the name of one of them: the watch does not show yet that
        the former one is gone. Before 1.34, kubelet also lists pods that it has rejected. So a pod that the agent knows
        need not be the one that asks. A pod that has devices and lacks others is.
        """
        if not snap.schedulers.may_have_decided:
            return set()
        if isinstance(requester, UnseenPod):
            return _without_devices(query.all_listed or (), snap)
        has_devices = bool(requester.container_gpus or requester.init_gpus or requester.sidecar_gpus)
        if isinstance(requester, Unknown) or has_devices or not lists_ended(snap.allocations.kubelet):
            return set()
        return _without_devices(query(None) or (), snap) - {pod.name for pod in snap.pods}

    def _after_others(
        self,
        request: AllocationRequest,
        requester: Requester,
        query: KubeletQuery,
        others: Collection[PodName],
        *,
        certainly: bool,
    ) -> Requester:
        """The requester after these pods were read. A static one is not at the API server, and has no decision."""
        if not others:
            return requester
        shown = self._read_pods(others if len(others) <= MOST_FETCHED else None, query.snap)
        occupancy = self._state.occupancy()
        if shown is None:
            # The watch may have shown them while an overloaded API server let the read wait.
            missing = set(others) - {pod.name for pod in occupancy.snapshot.pods}
            if missing:
                return UnseenPod(why=_NOT_SHOWN, maybe_decided=True, candidates=tuple(missing))
        elif not shown:
            return requester
        identified = identify(request, occupancy.tracker, occupancy.snapshot, query, certainly=certainly)
        is_still_unseen = isinstance(requester, UnseenPod) and isinstance(identified, UnseenPod)
        if not is_still_unseen:
            return identified
        if shown is None:
            return UnseenPod(why=_NOT_SHOWN, maybe_decided=True, candidates=tuple(others))
        # None of them asks for this either.
        return requester

    def _pods_to_read(
        self,
        requester: Requester,
        query: KubeletQuery,
        occupancy: Occupancy,
    ) -> Collection[PodName] | None:
        """Pods that must be read from the API server before the requesting container is known; None: all."""
        snap = occupancy.snapshot
        if snap.unread_pods or isinstance(requester, UnseenPod | HiddenPod):
            return self._unseen_pods(occupancy, query)
        if query.unanswered and snap.schedulers.may_have_decided:
            return None
        return ()

    def _read_pods(self, pods: Collection[PodName] | None, snap: Snapshot) -> frozenset[str] | None:
        """Read these pods, or all, and wait for the snapshot that has them. Returns the UIDs; None if it took long.

        `snap` is the snapshot that lacks them.
        """
        until = self._state.clock() + WAIT_S
        uids = self._fetch(pods, WAIT_S)
        if uids is None:
            # The read may have failed at once, or an earlier one waits for its answer. The watch may be quicker.
            self._wait_for_watch(pods, snap, until)
            return None
        remaining_s = until - self._state.clock()
        was_shown = self._state.wait(lambda snap: uids <= {pod.uid for pod in snap.pods}, remaining_s)
        return uids if was_shown else None

    def _wait_for_watch(self, pods: Collection[PodName] | None, snap: Snapshot, until: float) -> None:
        """Wait until the watch shows these pods, which `snap` lacks; None: any pod that `snap` lacks.

        Not for a watch that is known to be broken. One that has shown nothing is not waited for again for a while, so
        that an API server which does not answer delays few calls.
        """
        now = self._state.clock()
        is_resting = now < self._watch_rests_until
        # After a read that took all of this time, none is left, and whether the watch is late is not known.
        has_time = until - now >= WAIT_S / 2
        if is_resting or not has_time or not snap.pod_list.watched:
            return
        former = {pod.uid for pod in snap.pods}
        wanted = set(pods or ())

        def are_shown(newer: Snapshot) -> bool:
            shown = {pod.name for pod in newer.pods if pod.uid not in former}
            # Those whose names are known already may have been taken by others.
            are_known = wanted <= {pod.name for pod in newer.pods}
            return are_known and bool(shown & wanted if wanted else shown)

        if not self._state.wait(are_shown, until - now):
            self._watch_rests_until = self._state.clock() + REST_S

    def _unseen_pods(self, occupancy: Occupancy, query: KubeletQuery) -> list[PodName] | None:
        """Pods that kubelet lists without devices and that the agent has not seen. The request is for one of them.

        None if kubelet cannot be queried, or lists many: each pod of the node may be one.

        Before the first list of pods, these are all pods that the agent has not read: one of them may have devices from
        before the agent's restart, and lack others. A pod that lacks all is read again, because no watch would show
        that another pod has its name now.
        """
        snap = occupancy.snapshot
        is_resting = self._state.clock() < self._rest_until
        if is_resting and not snap.schedulers.may_have_decided:
            # The agent never sees a static pod in time, so each of its calls would wait.
            return []
        resources = snap.resource_kinds
        listed = query(None)
        if listed is None:
            return None
        bare = _without_devices(listed, snap)
        known = {pod.name for pod in snap.pods}
        if not snap.pod_list.known:
            asking = {pod.name for pod in snap.living_pods.values() if any(map(pod.asks, resources))}
            need_no_read = known - (bare & asking)
            names = [pod_name for pod_name, _ in listed]
            return [name for name in names if name not in need_no_read]
        unseen = bare - _seen_without_devices(occupancy)
        # New names first: a known name may only have been taken by another pod.
        by_novelty = sorted(unseen, key=known.__contains__)
        return by_novelty if len(by_novelty) <= MOST_FETCHED else None


def _without_devices(listed: Listed, snap: Snapshot) -> set[PodName]:
    """Pods that kubelet lists without a device of this agent."""
    resources = snap.resource_kinds
    names = set()
    for name, holdings in listed:
        held = {holding.resource for holding in holdings}
        if held.isdisjoint(resources):
            names.add(name)
    return names


def _no_answer(_pods: Collection[PodName]) -> Listed | None:
    return None


def _seen_without_devices(occupancy: Occupancy) -> set[PodName]:
    """Names of living pods that the agent has seen and that kubelet rightly lists without devices.

    A newer pod of the same name may have replaced a pod that held devices or was rejected, so these are left out.
    """
    snap = occupancy.snapshot
    tracker = occupancy.tracker
    resources = snap.resource_kinds
    had_devices = {*snap.allocation_index.with_devices, *tracker.by_pod, *tracker.refused}
    seen = set()
    for pod in snap.living_pods.values():
        # Kubelet does not list the devices of ordinary init containers.
        later = [container for container in pod.containers if not container.init]
        lists_none = not any(any(map(container.asks, resources)) for container in later)
        if lists_none or pod.uid not in had_devices:
            seen.add(pod.name)
    return seen


def _log_identified(request: AllocationRequest, requester: Requester) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    if isinstance(requester, Unknown):
        why = requester.why
    elif requester.certain:
        why = "kubelet lists no other"
    else:
        why = "the most likely of those that fit"
    extra = {
        "resource": request.resource,
        "units": request.size,
        "container": str(requester.owner),
        "reason": why,
    }
    log.debug("Identified the requesting container", extra=extra)


def _without_decision(requester: Requester) -> Requester:
    """The requester, after a read of the pods that kubelet lists: one that was not among them has no decision."""
    if isinstance(requester, UnseenPod):
        return replace(requester, maybe_decided=False)
    return requester
