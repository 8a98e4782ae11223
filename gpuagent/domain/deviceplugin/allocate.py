"""Allocate: the grant for devices that kubelet picked, checked unless the agent has just chosen them."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.admission.recent_allocations import InUse, RecentAllocation
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester
from gpuagent.domain.deviceplugin.admission.requesting_container import identify
from gpuagent.domain.deviceplugin.allocation_rules import PickedDevices, check_free, check_rules
from gpuagent.domain.deviceplugin.job import NONE_VISIBLE, Visible, visible_gpus
from gpuagent.domain.deviceplugin.located import Located, locate
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.grant import DeviceAccess, DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.snapshot import Snapshot


class Allocated(NamedTuple):
    """The answer to one Allocate.

    Attributes:
        requester: the container.
        grant: what it gets, without isolation.
        allocation: what to record.
        warnings: to the pod.
    """

    requester: Requester
    grant: Grant
    allocation: RecentAllocation
    warnings: Sequence[Announcement]


def allocate(  # noqa: PLR0913 (all that an answer depends on)
    request: AllocationRequest,
    chosen_for: Requester | None,
    occupancy: Occupancy,
    stored: Grant | None,
    strategy: DeviceStrategy,
    at: float,
) -> Allocated:
    """Answer one request.

    Args:
        request: kubelet's; all of its ids must be included.
        chosen_for: the container, if the agent has just chosen these ids in GetPreferredAllocation.
        occupancy: the devices in use.
        stored: the grant of these ids, if they were allocated before. The same ids always give the same answer.
        strategy: how containers get their device nodes.
        at: monotonic seconds.

    Raises:
        Refusal: the devices break a rule of the mode or a scheduler's decision.
    """
    snap = occupancy.snapshot
    resource = request.resource
    ids = request.must_include
    located = locate(resource, ids, snap)
    if not _may_be_chosen(located):
        chosen_for = None
    before = None
    requester = chosen_for
    if requester is None:
        before = occupancy.allocation_with(resource, ids)
        requester = identify(request, occupancy.tracker, snap)
    picked = PickedDevices(request, located, requester, before, occupancy)
    try:
        if before is None:
            check_free(picked)
        # What the agent has just chosen satisfies the rules. Allocate would be slower with a second check.
        if chosen_for is None:
            check_rules(picked)
        visible = _visible(picked, stored)
        grant = granted(resource, located, snap, strategy, visible.uuids)
    except Refusal as refusal:
        # The Event for a refusal goes to the pod, if it is known.
        refusal.pod = requester.pod_name
        raise
    return Allocated(requester, grant, _to_record(picked, at), visible.warnings)


def _may_be_chosen(located: Located) -> bool:
    """Whether the agent may have chosen these units for a container, by the lists as they are now."""
    if not located.listed:
        return False
    # Kubelet's device list from before a mode switch may still have units of mode core_mem, which never span GPUs.
    return len(located.counts) == 1 or located.kind.mode is not Mode.CORE_MEM


def _visible(picked: PickedDevices, stored: Grant | None) -> Visible:
    """The GPUs that the container sees besides its own."""
    if picked.before and stored:
        # What the container sees must not change when its annotations do.
        uuids = [gpu.uuid for gpu in stored.visible_gpus]
        return Visible(tuple(uuids))
    if picked.located.kind is Kind.WHOLE_TOPOLOGY:
        return visible_gpus(picked.requester, picked.before, picked.located.counts, picked.occupancy)
    return NONE_VISIBLE


def _to_record(picked: PickedDevices, at: float) -> RecentAllocation:
    """What the agent records of this call."""
    requester = picked.requester
    before = picked.before
    owner = requester.owner
    uid = requester.pod.uid if requester.pod else None
    certain = requester.certain
    if before and not requester.init_gpus:
        # Kubelet requests the ids again, so they stay with the container that has them.
        owner = before.owner
        uid = _pod_uid_of(before, picked.snap)
        certain = False
    request = picked.request
    uuids = frozenset(picked.located.counts)
    return RecentAllocation(request.resource, request.must_include, uuids, at, owner, uid, certain)


def _pod_uid_of(allocation: InUse, snap: Snapshot) -> str | None:
    if isinstance(allocation, RecentAllocation):
        return allocation.pod_uid
    # Kubelet's list has names alone.
    pod = snap.living_pods.get(allocation.owner.pod)
    return pod.uid if pod else None


def granted(
    resource: str,
    located: Located,
    snapshot: Snapshot,
    strategy: DeviceStrategy,
    visible_gpus: Collection[str] = (),
) -> Grant:
    """The grant for the ids of one request. The same counts always give the same grant.

    Whole GPUs come in the order of their best ring. `visible_gpus` are UUIDs of GPUs that the container sees as well.
    """
    # Frameworks number GPUs in this order, and talk to their neighbors in it.
    uuids: Collection[str] = located.counts
    if located.kind.is_whole:
        uuids = snapshot.ring(uuids)
    policy = snapshot.policy
    access = DeviceAccess(
        unit=policy.unit,
        device_nodes=snapshot.device_nodes,
        strategy=strategy,
        indexes=policy.index_for_uuid,
    )
    units_per_gpu = next(iter(located.counts.values()))
    gpus = [snapshot.gpus[uuid] for uuid in uuids]
    others = [snapshot.gpus[uuid] for uuid in visible_gpus]
    return access.grant(resource, located.kind, units_per_gpu, gpus, others)
