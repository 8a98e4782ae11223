"""Allocate: the grant for devices that kubelet picked, checked unless the agent has just chosen them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.assignment import decision_of, in_doubt
from gpuagent.domain.deviceplugin.job import NONE_VISIBLE, Visible, named_for_others, named_gpus, visible_gpus
from gpuagent.domain.deviceplugin.mode_rules import check_core_mem, not_offered
from gpuagent.domain.deviceplugin.occupancy import InUse, Occupancy, RecentAllocation
from gpuagent.domain.deviceplugin.requesting_container import (
    AllocationRequest,
    Requester,
    UnconfirmedPod,
    Unknown,
    identify,
)
from gpuagent.domain.pods.annotations import shown
from gpuagent.domain.pods.pod import requests
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceAccess, DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, Kind, Mode, other_resource
from gpuagent.domain.sharing.units import KINDS, parse_id, units_of
from gpuagent.domain.snapshot import Snapshot


class Located(NamedTuple):
    """The ids of one request: kind of unit, units by GPU UUID in index order, whether all are listed."""

    kind: Kind
    counts: Mapping[str, int]
    listed: bool


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
    resource = request.resource
    ids = request.must_include
    snap = occupancy.snapshot
    located = locate(resource, ids, snap)
    if not _may_be_chosen(located):
        chosen_for = None
    before = None if chosen_for else occupancy.allocation_with(resource, ids)
    requester = chosen_for or identify(request, occupancy.tracker, snap)
    # The Event for a refusal goes to the pod, if it is known.
    try:
        if not before:
            _check_unclaimed(resource, located, snap)
            _check_not_withheld(resource, ids, snap)
        # What the agent has just chosen satisfies the rules. Allocate would be slower with a second check.
        if not chosen_for:
            _check(request, requester, before, located, occupancy)
        visible = NONE_VISIBLE
        if before and stored:
            # What the container sees must not change when its annotations do.
            uuids = [gpu.uuid for gpu in stored.visible_gpus]
            visible = Visible(tuple(uuids))
        elif located.kind is Kind.WHOLE_TOPOLOGY:
            visible = visible_gpus(requester, before, located.counts, occupancy)
        grant = granted(resource, located, snap, strategy, visible.uuids)
    except Refusal as refusal:
        refusal.pod = requester.pod_name
        raise
    owner = requester.owner
    uid = requester.pod.uid if requester.pod else None
    certain = requester.certain
    if before and not requester.init_gpus:
        # Kubelet requests the ids again, so they stay with the container that has them.
        owner = before.owner
        uid = _pod_uid_of(before, snap)
        certain = False
    allocation = RecentAllocation(resource, ids, frozenset(located.counts), at, owner, uid, certain)
    return Allocated(requester, grant, allocation, visible.warnings)


def _may_be_chosen(located: Located) -> bool:
    """Whether the agent may have chosen these units for a container, by the lists as they are now."""
    if not located.listed:
        return False
    # Kubelet's device list from before a mode switch may still have units of mode core_mem, which never span GPUs.
    return len(located.counts) == 1 or located.kind.mode is not Mode.CORE_MEM


def _pod_uid_of(allocation: InUse, snap: Snapshot) -> str | None:
    if isinstance(allocation, RecentAllocation):
        return allocation.pod_uid
    # Kubelet's list has names alone.
    pod = snap.living_pods.get(allocation.owner.pod)
    return pod.uid if pod else None


def locate(
    resource: str,
    ids: Collection[str],
    snapshot: Snapshot,
) -> Located:
    """Find the ids of one request.

    Raises:
        Refusal: no ids, ids that are not of this node, ids of another resource, or more than one kind.
    """
    if not ids:
        raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: the request names no device")
    kind = snapshot.resource_kinds.get(resource)
    uuid = snapshot.units.get(next(iter(ids)))
    if kind and uuid:
        # Usually all ids are of one GPU. To find that out is ten times faster than to look at each id.
        ids_of_gpu = snapshot.ids.blocks.get((resource, uuid, kind), frozenset())
        if ids_of_gpu.issuperset(ids):
            return Located(kind, {uuid: len(ids)}, listed=True)
    return _locate_each(resource, ids, snapshot)


def _locate_each(
    resource: str,
    ids: Collection[str],
    snapshot: Snapshot,
) -> Located:
    """Find ids of several GPUs, or ids that are not listed now."""
    counts: Counter[str] = Counter()
    kinds = set()
    for device_id in ids:
        uuid = snapshot.units.get(device_id) or _unlisted(resource, device_id, snapshot)
        counts[uuid] += 1
        code = device_id.split("-", 2)[1]
        kinds.add(KINDS[code])
    resource_of = snapshot.policy.resources.of
    kind = next(iter(kinds))
    if len(kinds) > 1 or resource_of(kind) != resource:
        names = ", ".join(sorted(resource_of(kind) or "no resource" for kind in kinds))
        raise Refusal(Reason.MIXED_RESOURCES, f"{resource}: the request names devices of {names}")
    by_index = sorted(counts, key=lambda uuid: snapshot.gpus[uuid].index)
    return Located(
        kind,
        {uuid: counts[uuid] for uuid in by_index},
        listed=snapshot.units.keys() >= set(ids),
    )


def _unlisted(
    resource: str,
    device_id: str,
    snapshot: Snapshot,
) -> str:
    """GPU UUID of an id of this node that is not advertised now, for example after a mode switch."""
    unit = parse_id(device_id)
    gpu = snapshot.gpu_by_key.get(unit.gpu_key) if unit else None
    exists = False
    if unit and gpu:
        exists = unit.n < units_of(gpu, unit.kind, snapshot.policy.unit)
    if gpu is None or not exists:
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {device_id!r} does not exist on this node")
    return gpu.uuid


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


def _check(
    request: AllocationRequest,
    requester: Requester,
    before: InUse | None,
    located: Located,
    occupancy: Occupancy,
) -> None:
    """Check devices that the agent has not just chosen. `before` is the allocation that has their ids already."""
    snap = occupancy.snapshot
    resource = request.resource
    if not before:
        _check_certain(resource, requester, located, occupancy)
    _check_offered(request, before, located, snap)
    if not _is_of_other_pod(before, requester):
        _check_pair(resource, requester, located, snap)
    # The other rules may have changed since the first Allocate, which the container's restart must survive.
    if before:
        return
    _check_decided(resource, located, requester, snap)
    check_core_mem(resource, request.size, requester, snap)
    if not located.kind.is_whole:
        _check_sharers(resource, requester, located, occupancy)


def _is_of_other_pod(before: InUse | None, requester: Requester) -> bool:
    """Whether another pod holds the ids already: kubelet may request such ids again."""
    if before is None or before.owner is None:
        return False
    return before.owner.pod != requester.pod_name


def _check_certain(
    resource: str,
    requester: Requester,
    located: Located,
    occupancy: Occupancy,
) -> None:
    """Refuse if a scheduler may have chosen other GPUs for the container: the agent cannot name its pod."""
    if not (isinstance(requester, Unknown) and requester.maybe_decided):
        return
    if isinstance(requester, UnconfirmedPod) and requester.maybe_undecided:
        # A pod without a decision may take GPUs that are in no pod's decision.
        reserved = occupancy.reserved(resource, None)
        decided = {*reserved, *named_for_others(None, resource, occupancy)}
        if decided.isdisjoint(located.counts):
            return
    raise in_doubt(resource, requester)


def _check_pair(
    resource: str,
    requester: Requester,
    located: Located,
    snap: Snapshot,
) -> None:
    """Refuse another GPU than that of the container's other resource."""
    if not requester.container_gpus or located.kind.is_whole:
        return
    if requester.container_gpus != located.counts.keys():
        other = other_resource(resource)
        raise apart(resource, other, requester.container_gpus, located.counts, snap)


def _check_sharers(
    resource: str,
    requester: Requester,
    located: Located,
    occupancy: Occupancy,
) -> None:
    """Refuse a GPU that has as many pods or containers as allowed."""
    snap = occupancy.snapshot
    full = occupancy.full_gpus(requester.owner) & located.counts.keys()
    if full:
        text = f"{resource}: kubelet picked {_gpus(full, snap)}, which has {snap.most_sharers} already"
        raise Refusal(Reason.TOO_MANY_PODS, f"{text}, the most allowed")


def _check_unclaimed(
    resource: str,
    located: Located,
    snap: Snapshot,
) -> None:
    """Refuse GPUs that ResourceClaims have: one front end gives a GPU at a time."""
    claimed = snap.claimed & located.counts.keys()
    if claimed:
        text = f"{resource}: {_gpus(claimed, snap)} is still in use by ResourceClaims"
        raise Refusal(Reason.STILL_HELD, text)


def _check_not_withheld(
    resource: str,
    ids: Collection[str],
    snap: Snapshot,
) -> None:
    """Refuse units that a resized pod has: kubelet has picked them before it heard that they leave the list."""
    withheld = snap.resizes.closed
    if not withheld:
        return
    lost = withheld.intersection(ids)
    if lost:
        owner = snap.resizes.owner_of(min(lost))
        text = (
            f"{resource}: kubelet picked {len(lost)} units that have just gone to pod {owner}, whose limit was raised"
        )
        raise Refusal(Reason.STILL_HELD, f"{text}. Create the pod again")


def _check_offered(
    request: AllocationRequest,
    before: InUse | None,
    located: Located,
    snap: Snapshot,
) -> None:
    """New units must be listed, and on one GPU unless the pod requests a spread. Units allocated before pass."""
    resource = request.resource
    # Kubelet repeats a whole allocation for a container that starts again.
    if before and before.ids == request.must_include:
        return
    # Until the agent has read kubelet's allocations, no unit is listed. Kubelet can then request only units that it
    # allocated before a restart.
    is_unknown = not (before or located.listed)
    if is_unknown and snap.holdings_known:
        raise not_offered(resource, snap)
    kind = snap.resource_kinds.get(resource)
    if kind is None or kind.is_whole:
        return
    if len(located.counts) == 1 or _is_spread_asked_for(request, located, snap):
        return
    counts = [f"{count} on GPU {snap.gpus[uuid].index}" for uuid, count in located.counts.items()]
    text = (
        f"{resource}: kubelet picked units of several GPUs for one container ({', '.join(counts)}). A share stays "
        "on one GPU unless the pod label aliyun.com/gpu-count asks for an even spread, and in mode core_mem always"
    )
    raise Refusal(Reason.SPANS_GPUS, text)


def _is_spread_asked_for(
    request: AllocationRequest,
    located: Located,
    snap: Snapshot,
) -> bool:
    """Whether a pod requests that many units, spread evenly over that many GPUs."""
    # Kubelet's device list from before a mode switch may still have units of mode core_mem.
    if located.kind.mode is Mode.CORE_MEM:
        return False
    amounts = set(located.counts.values())
    if len(amounts) > 1:
        return False
    # The agent has not identified the pod, so any pod with this label and amount justifies the spread.
    asking = requests(snap.pods, request.resource, request.size)
    return any(pod.gpu_count == len(located.counts) for pod, _ in asking)


def _check_decided(
    resource: str,
    located: Located,
    requester: Requester,
    snap: Snapshot,
) -> None:
    """Refuse if a scheduler chose other GPUs than kubelet picked."""
    # A container may have a part of the pod's whole GPUs, but a share has exactly those of its decision.
    uuids = located.counts.keys()
    picked = f"{resource}: kubelet picked {_gpus(uuids, snap)} for {requester.owner}"
    if requester.pod and located.kind.is_whole:
        named = named_gpus(requester.pod, resource, snap)
        if named is not None and not uuids <= named:
            value = shown(requester.pod.annotations[GROUP_ANNOTATION])
            text = f"{GROUP_ANNOTATION} names others: {value}"
            raise Refusal(Reason.GPU_GROUP, f"{picked}, and the pod's annotation {text}")
        return
    decided = decision_of(requester, resource, snap)
    if decided and uuids != decided.uuids:
        raise Refusal(Reason.GPU_DECISION, f"{picked}, and {decided.words}")


def apart(
    resource: str,
    other: str,
    uuids: Collection[str],
    picked: Collection[str],
    snap: Snapshot,
) -> Refusal:
    """The refusal where kubelet `picked` another GPU than the one (`uuids`) of the container's `other` resource."""
    text = f"{resource}: kubelet picked {_gpus(picked, snap)}, but the container's {other} is on {_gpus(uuids, snap)}"
    return Refusal(Reason.PAIR_APART, text)


def _gpus(uuids: Collection[str], snap: Snapshot) -> str:
    indexes = [str(snap.gpus[uuid].index) for uuid in uuids]
    return "GPU " + ", ".join(indexes)
