"""Allocate: the grant for devices that kubelet picked, checked unless the agent has just chosen them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.assignment import decision_of, in_doubt
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, UnconfirmedPod, Unknown, identify
from gpuagent.domain.deviceplugin.job import named_for_others, named_gpus, visible_gpus
from gpuagent.domain.deviceplugin.mode_rules import check_core_mem, not_offered
from gpuagent.domain.deviceplugin.occupancy import InUse, Occupancy, RecentAllocation
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


def allocate(  # noqa: PLR0913 (all that an answer depends on)
    request: AllocationRequest,
    chosen_for: Requester | None,
    occupancy: Occupancy,
    stored: Grant | None,
    strategy: DeviceStrategy,
    now: float,
) -> tuple[Requester, Grant, RecentAllocation, Sequence[Announcement]]:
    """The container, its grant without isolation, what to record of it, and warnings to its pod.

    Args:
        request: kubelet's; all of its ids must be included.
        chosen_for: the container, if the agent has just chosen these ids in GetPreferredAllocation.
        occupancy: the devices in use.
        stored: the grant of these ids, if they were allocated before. The same ids always give the same answer.
        strategy: how containers get their device nodes.
        now: monotonic seconds.

    Raises:
        Refusal: the devices break a rule of the mode or a scheduler's decision.
    """
    resource, ids, snap = request.resource, request.must_include, occupancy.snapshot
    at = locate(resource, ids, snap)
    # Kubelet's device list from before a mode switch may still have units of mode core_mem, which never span GPUs.
    chosen = chosen_for if at.listed and (len(at.counts) == 1 or at.kind.mode is not Mode.CORE_MEM) else None
    before = None if chosen else occupancy.given(resource, ids)
    requester = chosen or identify(request, occupancy.tracker, snap)
    try:
        if not before:
            _check_unclaimed(resource, at, snap)
        if not chosen:
            _check(request, requester, before, at, occupancy)
        visible, warnings = tuple[str, ...](), list[Announcement]()
        if before and stored:
            visible = tuple([gpu.uuid for gpu in stored.visible_gpus])
        elif at.kind is Kind.WHOLE_TOPOLOGY:
            visible, warnings = visible_gpus(requester, before, at.counts, occupancy)
        grant = granted(resource, at, snap, strategy, visible)
    except Refusal as refusal:
        refusal.pod = requester.pod_name
        raise
    owner, uid, certain = requester.owner, requester.pod.uid if requester.pod else None, requester.certain
    if before and not requester.init_gpus:  # kubelet requests the ids again
        pod = snap.living_pods.get(before.owner.pod) if before.owner else None
        uid = before.pod_uid if isinstance(before, RecentAllocation) else (pod.uid if pod else None)
        owner, certain = before.owner, False
    new = RecentAllocation(resource, ids, frozenset(at.counts), now, owner, uid, certain)
    return requester, grant, new, warnings


def locate(resource: str, ids: Collection[str], snapshot: Snapshot) -> Located:
    """Find the ids of one request.

    Raises:
        Refusal: no ids, ids that are not of this node, ids of another resource, or more than one kind.
    """
    if not ids:
        raise Refusal(Reason.EMPTY_REQUEST, f"{resource}: the request names no device")
    kind, uuid = snapshot.resource_kinds.get(resource), snapshot.units.get(next(iter(ids)))
    if kind and uuid and snapshot.blocks.get((resource, uuid, kind), frozenset()).issuperset(ids):
        return Located(kind, {uuid: len(ids)}, listed=True)  # the usual case, ten times faster than the rest
    counts = Counter(snapshot.units.get(device_id) or _unlisted(resource, device_id, snapshot) for device_id in ids)
    kinds = {KINDS[code] for code in {device_id.split("-", 2)[1] for device_id in ids}}
    if len(kinds) > 1 or snapshot.policy.resources.of(next(iter(kinds))) != resource:
        names = ", ".join(sorted(snapshot.policy.resources.of(kind) or "no resource" for kind in kinds))
        raise Refusal(Reason.MIXED_RESOURCES, f"{resource}: the request names devices of {names}")
    by_index = {uuid: counts[uuid] for uuid in sorted(counts, key=lambda uuid: snapshot.gpus[uuid].index)}
    return Located(kinds.pop(), by_index, listed=snapshot.units.keys() >= set(ids))


def _unlisted(resource: str, device_id: str, snapshot: Snapshot) -> str:
    """GPU UUID of an id of this node that is not advertised now, for example after a mode switch."""
    unit = parse_id(device_id)
    gpu = snapshot.gpu_by_key.get(unit.gpu_key) if unit else None
    if unit is None or gpu is None or unit.n >= units_of(gpu, unit.kind, snapshot.policy.unit):
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {device_id!r} does not exist on this node")
    return gpu.uuid


def granted(
    resource: str, at: Located, snapshot: Snapshot, strategy: DeviceStrategy, visible_gpus: Collection[str] = ()
) -> Grant:
    """The grant for the ids of one request. The same counts always give the same grant.

    Whole GPUs come in the order of their best ring. `visible_gpus` are UUIDs of GPUs that the container sees as well.
    """
    uuids = snapshot.ring(at.counts) if at.kind.is_whole else at.counts
    policy = snapshot.policy
    access = DeviceAccess(
        unit=policy.unit, device_nodes=snapshot.device_nodes, strategy=strategy, indexes=policy.index_for_uuid
    )
    gpus, others = ([snapshot.gpus[uuid] for uuid in some] for some in (uuids, visible_gpus))
    return access.grant(resource, at.kind, next(iter(at.counts.values())), gpus, others)


def _check(
    request: AllocationRequest, requester: Requester, before: InUse | None, at: Located, occupancy: Occupancy
) -> None:
    """Check devices that the agent has not just chosen. `before` is the allocation that has their ids already."""
    snap, resource = occupancy.snapshot, request.resource
    if isinstance(requester, Unknown) and requester.maybe_decided and not before:
        # A pod without a decision may take GPUs that are in no pod's decision.
        chosen = {*occupancy.reserved(resource, None), *named_for_others(None, resource, occupancy)}
        maybe_undecided = isinstance(requester, UnconfirmedPod) and requester.maybe_undecided
        if not (maybe_undecided and chosen.isdisjoint(at.counts)):
            raise in_doubt(resource, requester)
    _check_offered(request, before, at, snap)
    # Kubelet may request again the ids that another pod holds already.
    again = before is not None and before.owner is not None and before.owner.pod != requester.pod_name
    if requester.container_gpus and requester.container_gpus != at.counts.keys() and not (at.kind.is_whole or again):
        raise apart(resource, other_resource(resource), requester.container_gpus, at.counts, snap)
    if before:
        return
    _check_decided(resource, at, requester, snap)
    check_core_mem(resource, request.size, requester, snap)
    full = occupancy.full_gpus(requester.owner) & at.counts.keys()
    if full and not at.kind.is_whole:
        text = f"{resource}: kubelet picked {_gpus(full, snap)}, which has {snap.most_sharers} already"
        raise Refusal(Reason.TOO_MANY_PODS, f"{text}, the most allowed")


def _check_unclaimed(resource: str, at: Located, snap: Snapshot) -> None:
    """Refuse GPUs that ResourceClaims have: one front end gives a GPU at a time."""
    if claimed := snap.claimed & at.counts.keys():
        raise Refusal(Reason.STILL_HELD, f"{resource}: {_gpus(claimed, snap)} is still in use by ResourceClaims")


def _check_offered(request: AllocationRequest, before: InUse | None, at: Located, snap: Snapshot) -> None:
    """New units must be listed, and on one GPU unless the pod requests a spread. Units allocated before pass."""
    resource, counts, kind = request.resource, at.counts, snap.resource_kinds.get(request.resource)
    if before and before.ids == request.must_include:
        return
    # Until the agent has read kubelet's allocations, no unit is listed. Kubelet can then request only units that it
    # allocated before a restart.
    if not (before or at.listed) and snap.holdings_known:
        raise not_offered(resource, snap)
    if len(counts) == 1 or kind is None or kind.is_whole:
        return
    # Kubelet's device list from before a mode switch may still have units of mode core_mem.
    even = len(set(counts.values())) == 1 and at.kind.mode is not Mode.CORE_MEM
    if not (even and any(pod.gpu_count == len(counts) for pod, _ in requests(snap.pods, resource, request.size))):
        where = ", ".join(f"{n} on GPU {snap.gpus[uuid].index}" for uuid, n in counts.items())
        text = (
            f"{resource}: kubelet picked units of several GPUs for one container ({where}). A share stays on "
            "one GPU unless the pod label aliyun.com/gpu-count asks for an even spread, and in mode core_mem always"
        )
        raise Refusal(Reason.SPANS_GPUS, text)


def _check_decided(resource: str, at: Located, requester: Requester, snap: Snapshot) -> None:
    """Refuse if a scheduler chose other GPUs than kubelet picked."""
    picked = f"{resource}: kubelet picked {_gpus(at.counts, snap)} for {requester.owner}"
    if requester.pod and at.kind.is_whole:
        named = named_gpus(requester.pod, resource, snap)
        if named is not None and not at.counts.keys() <= named:
            text = f"{GROUP_ANNOTATION} names others: {shown(requester.pod.annotations[GROUP_ANNOTATION])}"
            raise Refusal(Reason.GPU_GROUP, f"{picked}, and the pod's annotation {text}")
        return
    found = decision_of(requester, resource, snap)
    if found and at.counts.keys() != found[0]:
        raise Refusal(Reason.GPU_DECISION, f"{picked}, and {found[1]}")


def apart(resource: str, other: str, uuids: Collection[str], counts: Collection[str], snap: Snapshot) -> Refusal:
    """The refusal where kubelet picked another GPU than the one (`uuids`) of the container's `other` resource."""
    text = f"{resource}: kubelet picked {_gpus(counts, snap)}, but the container's {other} is on {_gpus(uuids, snap)}"
    return Refusal(Reason.PAIR_APART, text)


def _gpus(uuids: Collection[str], snap: Snapshot) -> str:
    return "GPU " + ", ".join(str(snap.gpus[uuid].index) for uuid in uuids)
