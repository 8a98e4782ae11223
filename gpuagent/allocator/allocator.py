"""Answers kubelet's calls. Thread-safe; touches no API server, no NVML and no disk."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from gpuagent.allocator.allocator_state import AllocatorState, InFlight
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.allocator.preferred_allocation import PreferredAllocation
from gpuagent.allocator.refusal_events import RefusalEvents
from gpuagent.allocator.requester_queries import Fetch
from gpuagent.domain.announcement import EventSink
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest
from gpuagent.domain.deviceplugin.allocate import allocate, granted
from gpuagent.domain.deviceplugin.gpu_shares import container_shares
from gpuagent.domain.deviceplugin.located import locate
from gpuagent.domain.deviceplugin.memory_shares import device_shares
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.deviceplugin.start_checks import Start, check_start
from gpuagent.domain.node_state.resizes import limits_in_force
from gpuagent.domain.pods.exchange import by_units, key, written
from gpuagent.domain.pods.holdings import Record, Recorded, given_by_another, holder
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DRIVER_ANNOTATION, DeviceStrategy, Grant
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.snapshot import Snapshot
from gpuagent.isolation.interface import IsolationError, Serving, Starting

log = logging.getLogger(__name__)
_T = TypeVar("_T")

READ_S = 5.0
"""How long a PreStartContainer waits for kubelet's allocations."""


class Allocator:
    """One allocator serves all resources: the two resources of a container must be on one GPU.

    Attributes:
        prefer: as `PreferredAllocation.prefer`.
        occupancy: the devices in use now.
        expect_pods: as `AllocatorState.expect_pods`.
        serving: as `AllocatorState.serving`.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        clock: Callable[[], float],
        kubelet: KubeletAllocations,
        isolation: Mapping[str, Serving],
        strategy: DeviceStrategy,
        send_event: EventSink,
        allocated: Callable[[], None] = lambda: None,
        fetch: Fetch = lambda _pods, _timeout_s: None,
    ) -> None:
        self.in_flight = InFlight(clock, allocated)
        self._state = AllocatorState(clock)
        preferred = PreferredAllocation(self._state, kubelet, send_event, fetch)
        self._old = preferred.old
        self.occupancy = self._state.occupancy
        self.prefer = preferred.prefer
        self.expect_pods = self._state.expect_pods
        self.serving = self._state.serving
        self._refusals = RefusalEvents(clock, send_event)
        self._kubelet = kubelet
        self._isolation = isolation
        self._strategy = strategy
        self._send_event = send_event

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from this snapshot from now on."""
        tracker = self._state.publish(snapshot)
        self._old.publish(snapshot, tracker)
        self._refusals.publish(snapshot.pods)

    def recent_ids(self) -> frozenset[str]:
        """Ids that Allocate has given to containers lately, and that kubelet may not have recorded yet."""
        try:
            occupancy = self._state.occupancy()
        except Refusal:
            return frozenset()
        read_at = occupancy.snapshot.allocations.read_at
        recent = []
        for allocation in occupancy.tracker.recent:
            is_unread = allocation.at >= read_at
            if is_unread or occupancy.may_live(allocation):
                recent.append(allocation.ids)
        return frozenset[str]().union(*recent)

    def report(self, refusal: Refusal) -> None:
        """Send an Event for a refusal; never blocks."""
        self._refusals.add(refusal.message, refusal.pod)

    def allocate(self, resource: str, ids: Collection[str]) -> Grant:
        """The container's grant for `ids`. The same ids always give the same answer.

        Kubelets before 1.19 pick ids themselves, so that each is a count. Of them, the last call alone can be repeated.

        Raises:
            Refusal: the ids break a rule, or isolation is not ready.
        """
        picked = frozenset(ids)
        with self.in_flight:
            self._state.wait_for_pods()
            exchanged = self._old.exchange(resource, picked) if self._old.active else {}
            units = frozenset(exchanged.values()) or picked
            grant = self._allocate(resource, units, exchanged=bool(exchanged))
        if not exchanged:
            return grant
        # The snapshot may have changed meanwhile, but kubelet now holds ids that are counts.
        self._old.active = True
        annotations = {**grant.annotations, key(resource): written(exchanged)}
        return replace(grant, annotations=annotations)

    def _allocate(
        self,
        resource: str,
        ids: frozenset[str],
        *,
        exchanged: bool,
    ) -> Grant:
        state = self._state
        occupancy = state.occupancy()
        try:
            allocated = allocate(
                AllocationRequest(resource, len(ids), must_include=ids),
                state.chosen_for((resource, ids)),
                occupancy,
                state.granted((resource, ids)),
                self._strategy,
                state.clock(),
            )
            owner = allocated.requester.owner
            bare = allocated.grant
            isolated = self._isolated(bare, owner, occupancy.snapshot, lambda driver: driver.prepare(bare))
            grant = _with_driver(isolated, occupancy.snapshot)
        except Refusal:
            # Kubelet rejects the pod in admission. Which one that is, Allocate itself does not ask.
            state.refused(None)
            raise
        for warning in allocated.warnings:
            self._send_event(warning)
        allocation = allocated.allocation
        if exchanged:
            allocation = replace(allocation, exchanged=True)
        state.allocated(allocation, grant)
        extra = {
            "resource": resource,
            "units": len(ids),
            "gpus": [gpu.uuid for gpu in grant.gpus],
        }
        log.debug("Allocated devices", extra=extra)
        return grant

    def _isolated(
        self,
        grant: Grant,
        owner: ContainerRef | None,
        snap: Snapshot,
        work: Callable[[Serving], _T],
    ) -> _T:
        """The work of the grant's isolation driver. Raises Refusal: it fails, or does not work on these GPUs now."""
        try:
            return work(self._driver_of(grant, snap))
        except IsolationError as err:
            pod = owner.pod if owner else None
            raise Refusal(Reason.ISOLATION, f"{grant.resource}: {err}", pod) from err

    def _driver_of(self, grant: Grant, snap: Snapshot) -> Serving:
        """The isolation driver for the grant's mode. Raises IsolationError: it does not work on these GPUs now."""
        layer, why = snap.serving[grant.kind.mode]
        if why:
            raise IsolationError(why)
        # A driver that works may still be unable to isolate some of the GPUs.
        if layer.left_out:
            left_out = [gpu for gpu in grant.gpus if gpu.uuid in layer.left_out]
            if left_out:
                gpu = left_out[-1]
                raise IsolationError(f"GPU {gpu.index} cannot be isolated: {layer.left_out[gpu.uuid]}")
        return self._isolation[layer.driver]

    def prestart(self, resource: str, ids: Collection[str]) -> ContainerRef | None:
        """The container that `ids` belong to, from kubelet's allocations, with its isolation verified.

        None where kubelet does not list it: an ordinary init container whose devices no later container reuses. None
        also for a container that another plugin served.

        Raises:
            Refusal: the container breaks a promise of the mode, or its isolation is not ready. Kubelet retries.
        """
        state = self._state
        picked = frozenset(ids)
        state.wait_for_pods(undecided=True)
        # Refuses while the agent starts: until then it knows no ids.
        state.occupancy()
        if given_by_another(picked):
            log.info("Let a container of another plugin start again", extra={"resource": resource})
            return None
        # Right after a start, the container may have been admitted by the agent's former process.
        state.wait(self._can_name_containers, READ_S)
        occupancy = state.occupancy()
        snap = occupancy.snapshot
        units = self._old.units(resource, picked) if self._old.active else picked
        start = Start(resource, units, locate(resource, units, snap), snap)
        owner, recorded = self._checked_owner(start, picked, occupancy)
        extra = {"resource": resource, "units": len(units), "container": str(owner)}
        log.info("Verified container", extra=extra)
        # Prefer the stored grant: the isolation driver of the mode may have changed since.
        stored = state.granted((resource, units))
        grant = stored or self._granted_before(start, recorded)
        starting = _starting(start, owner, recorded)
        self._isolated(grant, owner, snap, lambda driver: driver.verify(grant, starting))
        return owner

    def _granted_before(self, start: Start, recorded: Recorded) -> Grant:
        """The grant of a container that a former run of the agent admitted."""
        grant = granted(start.resource, start.located, start.snap, self._strategy)
        for entry in recorded.checkpoint:
            if entry.resource == start.resource and entry.ids == start.ids:
                # What the driver gave then. It may give new containers something else by now.
                return replace(grant, env={**grant.env, **entry.kept_env})
        return grant

    def _can_name_containers(self, snap: Snapshot) -> bool:
        """Whether kubelet's allocations were read, or can be read again for one call."""
        if snap.holdings_known:
            return True
        return bool(snap.allocations.kubelet) and not self._old.active

    def _checked_owner(
        self,
        start: Start,
        picked: frozenset[str],
        occupancy: Occupancy,
    ) -> tuple[ContainerRef | None, Recorded]:
        """The container and kubelet's allocations, after a check of the mode's promises.

        Reads the allocations again if they may be old.
        """
        owner = start.owner(occupancy.tracker)
        recorded = start.snap.allocation_index.recorded
        layer, _ = start.snap.serving[start.located.kind.mode]
        is_complete = not layer.limits_pods or bool(_checkpoint_records(start, recorded))
        if owner and is_complete:
            # Allocations that were read during the pod's admission are incomplete, so a refusal is not final.
            with suppress(Refusal):
                check_start(start, recorded, self._state.grant_order())
                return owner, recorded
        # A container that starts for the first time is usually younger than the last read.
        read = self._kubelet.read(timeout_s=READ_S)
        if read:
            owner = owner or holder(start.resource, picked, read.holdings)
            holdings, checkpoint, _ = by_units(read.holdings, read.checkpoint)
            recorded = Recorded(holdings, checkpoint, start.snap.pods, start.snap.units)
        try:
            check_start(start, recorded, self._state.grant_order())
        except Refusal as refusal:
            refusal.pod = owner.pod if owner else None
            raise
        return owner, recorded


def _checkpoint_records(start: Start, recorded: Recorded) -> list[Record]:
    """The containers with these units in kubelet's checkpoint, which alone has the UIDs of their pods."""
    records = recorded.containers.get((start.resource, start.ids), ())
    return [record for record in records if record.uid]


def _with_driver(grant: Grant, snap: Snapshot) -> Grant:
    """The grant with its isolation driver, which kubelet keeps for an agent that starts later."""
    layer, _ = snap.serving[grant.kind.mode]
    if layer.driver == NONE:
        return grant
    annotations = {**grant.annotations, DRIVER_ANNOTATION: layer.driver}
    return replace(grant, annotations=annotations)


def _starting(start: Start, owner: ContainerRef | None, recorded: Recorded) -> Starting:
    """The container for its isolation driver, with all shares of its pod that the same driver serves."""
    snap = start.snap
    serving, _ = snap.serving[start.located.kind.mode]
    modes = [mode for mode, (layer, _) in snap.serving.items() if layer.driver == serving.driver]
    records = _checkpoint_records(start, recorded)
    uids = {record.uid for record in records}
    entries = [entry for entry in recorded.checkpoint if entry.pod_uid in uids]
    limits = limits_in_force(snap.resizes)
    shares = device_shares(entries, snap.gpus.values(), snap.policy.unit, modes, limits)
    of_pods = {uid: shares.get(uid, PodShares()) for uid in uids}
    if not records:
        return Starting(owner, of_pods)
    # Containers with the same units run one after another, and have the same share.
    record = records[0]
    container = record.container.container
    own = [entry for entry in entries if (entry.pod_uid, entry.container) == (record.uid, container)]
    own_shares = container_shares(own, snap.gpus.values(), snap.policy.unit, modes)
    return Starting(owner, of_pods, container, own_shares)
