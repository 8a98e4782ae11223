"""Answers kubelet's calls. Thread-safe; touches no API server, no NVML and no disk."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpuagent.allocator.allocator_state import AllocatorState, View
from gpuagent.allocator.in_flight import InFlight
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.allocator.pre_start import PreStart
from gpuagent.allocator.preferred_allocation import Fetch, PreferredAllocation
from gpuagent.allocator.refusal_events import RefusalEvents
from gpuagent.domain.announcement import Announcement, EventSink
from gpuagent.domain.deviceplugin import counts
from gpuagent.domain.deviceplugin.allocate_checks import check_allocated, check_claimed
from gpuagent.domain.deviceplugin.device_ids import Located, granted, locate
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, fitting_containers, identify
from gpuagent.domain.deviceplugin.job import differences, visible_gpus_of
from gpuagent.domain.deviceplugin.occupancy import InUse, Occupancy, RecentAllocation
from gpuagent.domain.pods.exchange import Exchanged, key, written
from gpuagent.domain.pods.pod import ContainerRef, Holding
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.snapshot import Snapshot
from gpuagent.isolation.interface import Isolation, IsolationError
from gpuagent.isolation.serving import serving_layer

log = logging.getLogger(__name__)


class Allocator:
    """One allocator serves all resources: the two resources of a container must be on one GPU."""

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        clock: Callable[[], float],
        kubelet: KubeletAllocations,
        isolation: Mapping[str, Isolation],
        strategy: DeviceStrategy,
        send_event: EventSink,
        allocated: Callable[[], None] = lambda: None,
        fetch: Fetch = lambda _pods, _timeout_s: None,
    ) -> None:
        self.in_flight = InFlight(clock, allocated)
        self._state = AllocatorState(clock)
        self._preferred = PreferredAllocation(self._state, kubelet, send_event, fetch)
        self._pre_start = PreStart(self._state, kubelet, isolation, strategy)
        self._refusals = RefusalEvents(clock, send_event)
        self._isolation, self._strategy, self._send_event = isolation, strategy, send_event

    def expect_pods(self, within_s: float) -> None:
        """Have calls wait up to `within_s` seconds from now for the first list of the node's pods."""
        self._state.first_pods_by = self._state.clock() + within_s

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        self._state.publish(snapshot)
        self._refusals.publish(snapshot.pods)

    def view(self) -> View:
        """The current snapshot and record of calls."""
        return self._state.view()

    def report(self, refusal: Refusal) -> None:
        """Send an Event for a refusal; never blocks."""
        self._refusals.add(refusal.message, refusal.pod)

    def prefer(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int
    ) -> tuple[str, ...]:
        """Which of `available` a container should get.

        Raises:
            Refusal: the total may be enough, but no GPU is; or the request makes no sense.
        """
        request = AllocationRequest(resource, size, frozenset(available), frozenset(must_include))
        if size < 1 or not available:
            raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: {size} of {len(available)} devices is no request")
        if len(request.fixed) > size:
            text = f"{resource}: {len(request.fixed)} devices must be included, but {size} are asked for"
            raise Refusal(Reason.EMPTY_REQUEST, text)
        if not request.fixed <= request.offered:
            raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: a device that must be included is not available")
        if self._state.view(asked=True).counts_only:
            return (*request.fixed, *sorted(request.offered - request.fixed))[:size]
        return self._preferred.prefer(request)

    def prestart(self, resource: str, ids: Collection[str]) -> ContainerRef | None:
        """As `PreStart.prestart`."""
        return self._pre_start.prestart(resource, ids)

    def allocate(self, resource: str, ids: Collection[str]) -> Grant:
        """The container's grant for `ids`. The same ids always give the same answer.

        Raises:
            Refusal: the ids break a rule, or isolation is not ready.
        """
        picked = frozenset(ids)
        with self.in_flight.one():
            view = self._state.view()
            exchanged = self._exchanged(resource, picked, view) if view.counts_only else {}
            share = self._allocate(resource, frozenset(exchanged.values()) or picked, exchanged)
        if not exchanged:
            return share
        return replace(share, annotations={**share.annotations, key(resource): written(exchanged)})

    def _allocate(self, resource: str, ids: frozenset[str], exchanged: Exchanged) -> Grant:
        view = self._state.view()
        occupancy, answered, at = view.occupancy, view.answered, locate(resource, ids, view.snap)
        # Kubelet's device list from before a mode switch may still have units of mode core_mem, which never span GPUs.
        listed = at.listed and (len(at.counts) == 1 or at.kind.mode is not Mode.CORE_MEM)
        chosen = answered is not None and answered[0] == (resource, ids) and listed
        before = None if chosen else occupancy.given(resource, ids)
        request = AllocationRequest(resource, len(ids), fixed=ids)
        requester = answered[1] if answered and chosen else identify(request, view.tracker, view.snap)
        try:
            if not before:
                check_claimed(resource, at, view.snap)
            if not chosen:
                check_allocated(request, requester, before, at, occupancy)
            visible_gpus = self._visible(ids, at, before, requester, occupancy)
            share = self._isolated(granted(resource, at, view.snap, self._strategy, visible_gpus), view.snap)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            self._state.refused(None)
            raise
        uid, guessed = requester.pod.uid if requester.pod else None, requester.guessed
        owner, certain = requester.owner, requester.certain
        if before and not requester.handed_on:  # kubelet requests the ids again
            owner, certain = before.owner, False
            recent = before if isinstance(before, RecentAllocation) else None
            uid, guessed = (recent.pod_uid, recent.guessed) if recent else (None, False)
        uuids = frozenset(gpu.uuid for gpu in share.gpus)
        new = RecentAllocation(resource, ids, uuids, view.now, owner, uid, certain, guessed, exchanged)
        self._state.allocated(new, share)
        log.debug("Allocated devices", extra={"resource": resource, "units": len(ids), "gpus": list(at.counts)})
        return share

    def _visible(
        self, ids: frozenset[str], at: Located, before: InUse | None, requester: Requester, occupancy: Occupancy
    ) -> tuple[str, ...]:
        """UUIDs of other GPUs that the container sees, the same for the same ids. Empty unless the pod is certain."""
        if before and (share := self._state.granted(before.resource, ids)):
            return tuple(gpu.uuid for gpu in share.visible_gpus)
        snap, pod, certain = occupancy.snapshot, requester.pod, requester.certain
        if before and before.owner:
            pod, certain = snap.living_pods.get(before.owner.pod), isinstance(before, Holding) or before.certain
        if pod is None or at.kind is not Kind.WHOLE_TOPOLOGY:
            return ()
        visible_gpus = visible_gpus_of(pod, at, occupancy) if certain and snap.pods_watched else ()
        for text in differences(pod, at, visible_gpus, snap):
            self._send_event(Announcement("GPUGroupDiffers", text, warning=True, pods=(pod.name,)))
        return visible_gpus

    def _isolated(self, share: Grant, snap: Snapshot) -> Grant:
        try:
            return self._isolation[serving_layer(share, snap).driver].prepare(share)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{share.resource}: {err}") from err

    def _exchanged(self, resource: str, picked: frozenset[str], view: View) -> Exchanged:
        """Units in exchange for ids that kubelet picked without GetPreferredAllocation."""
        view.check_units_known(resource)
        occupancy = view.occupancy
        admission = view.tracker.admission
        current = frozenset[str]().union(*(one.ids for one in admission))
        fixed = current.intersection(filter(None, map(occupancy.exchanged.get, picked)))
        request = AllocationRequest(resource, len(picked), fixed=fixed)
        fitting = fitting_containers(request, view.tracker, view.snap)
        requester = counts.oldest(fitting, admission[-1] if admission else None)
        goes_on = requester.handed_on or requester.paired
        found = counts.pick(resource, picked, fixed if goes_on else frozenset(), occupancy)
        if len(found.exchanged) == len(picked):
            return found.exchanged
        if not locate(resource, picked, view.snap).listed:
            counts.check_unlisted(resource, picked, occupancy)
            return {}
        try:
            chosen = self._preferred.choose(found.request, requester)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            self._state.refused(requester.pod)
            raise
        return counts.paired(picked, chosen, found.exchanged)
