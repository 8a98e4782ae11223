"""Answers kubelet's calls. Thread-safe; touches no API server, no NVML and no disk."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpuagent.allocator.allocator_state import AllocatorState, InFlight, View
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.allocator.pre_start import PreStart
from gpuagent.allocator.preferred_allocation import Fetch, PreferredAllocation
from gpuagent.allocator.refusal_events import RefusalEvents
from gpuagent.domain.announcement import EventSink
from gpuagent.domain.deviceplugin.allocate_checks import check_allocated, claimed
from gpuagent.domain.deviceplugin.device_ids import Located, granted, locate
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, identify
from gpuagent.domain.deviceplugin.job import visible_gpus
from gpuagent.domain.deviceplugin.occupancy import InUse, RecentAllocation
from gpuagent.domain.pods.exchange import key, written
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.snapshot import Snapshot
from gpuagent.isolation.interface import Isolation, IsolationError

log = logging.getLogger(__name__)


class Allocator:
    """One allocator serves all resources: the two resources of a container must be on one GPU.

    Attributes:
        prefer: as `PreferredAllocation.prefer`.
        prestart: as `PreStart.prestart`.
        view: the current snapshot and record of calls.
    """

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
        preferred = PreferredAllocation(self._state, kubelet, send_event, fetch)
        self._old = preferred.old
        self.view, self.prefer = self._state.view, preferred.prefer
        self.prestart = PreStart(self._state, kubelet, isolation, strategy, self._old).prestart
        self._refusals = RefusalEvents(clock, send_event)
        self._isolation, self._strategy, self._send_event = isolation, strategy, send_event

    def expect_pods(self, within_s: float) -> None:
        """Have calls wait up to `within_s` seconds from now for the first list of the node's pods."""
        self._state.first_pods_by = self._state.clock() + within_s

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        self._old.publish(snapshot, self._state.publish(snapshot))
        self._refusals.publish(snapshot.pods)

    def report(self, refusal: Refusal) -> None:
        """Send an Event for a refusal; never blocks."""
        self._refusals.add(refusal.message, refusal.pod)

    def allocate(self, resource: str, ids: Collection[str]) -> Grant:
        """The container's grant for `ids`. The same ids always give the same answer.

        Raises:
            Refusal: the ids break a rule, or isolation is not ready.
        """
        picked = frozenset(ids)
        with self.in_flight.one():
            exchanged = self._old.exchange(resource, picked) if self._old.active else {}
            share = self._allocate(resource, frozenset(exchanged.values()) or picked, exchanged=bool(exchanged))
        if not exchanged:
            return share
        self._old.active = True  # the snapshot may have changed meanwhile
        return replace(share, annotations={**share.annotations, key(resource): written(exchanged)})

    def _allocate(self, resource: str, ids: frozenset[str], *, exchanged: bool) -> Grant:
        view = self._state.view()
        snap, at, before = view.snap, locate(resource, ids, view.snap), None
        # Kubelet's device list from before a mode switch may still have units of mode core_mem, which never span GPUs.
        listed = at.listed and (len(at.counts) == 1 or at.kind.mode is not Mode.CORE_MEM)
        if view.answered and view.answered[0] == (resource, ids) and listed:
            requester, check = view.answered[1], None
        else:
            before = view.occupancy.given(resource, ids)
            check = AllocationRequest(resource, len(ids), must_include=ids)
            requester = identify(check, view.tracker, snap)
        try:
            if not before and not snap.claimed.isdisjoint(at.counts):
                raise claimed(resource, at, snap)
            if check:
                check_allocated(check, requester, before, at, view.occupancy)
            seen = self._visible(ids, at, before, requester, view) if at.kind is Kind.WHOLE_TOPOLOGY else ()
            share = self._isolated(granted(resource, at, snap, self._strategy, seen), view)
        except Refusal as refusal:
            refusal.pod = requester.pod_name
            self._state.refused(None)
            raise
        uid, owner, certain = requester.pod.uid if requester.pod else None, requester.owner, requester.certain
        if before and not requester.init_gpus:  # kubelet requests the ids again
            owner, certain = before.owner, False
            pod = snap.living_pods.get(owner.pod) if owner else None
            uid = before.pod_uid if isinstance(before, RecentAllocation) else (pod.uid if pod else None)
        uuids = frozenset([gpu.uuid for gpu in share.gpus])
        self._state.allocated(RecentAllocation(resource, ids, uuids, view.now, owner, uid, certain, exchanged), share)
        log.debug("Allocated devices", extra={"resource": resource, "units": len(ids), "gpus": list(at.counts)})
        return share

    def _visible(
        self, ids: frozenset[str], at: Located, before: InUse | None, requester: Requester, view: View
    ) -> tuple[str, ...]:
        """UUIDs of other GPUs that the container sees, the same for the same ids."""
        if before and (share := self._state.granted(before.resource, ids)):
            return tuple(gpu.uuid for gpu in share.visible_gpus)
        found = visible_gpus(requester, before, at, view.occupancy)
        for announcement in found.warnings:
            self._send_event(announcement)
        return found.uuids

    def _isolated(self, share: Grant, view: View) -> Grant:
        try:
            return self._isolation[view.driver_of(share)].prepare(share)
        except IsolationError as err:
            raise Refusal(Reason.ISOLATION, f"{share.resource}: {err}") from err
