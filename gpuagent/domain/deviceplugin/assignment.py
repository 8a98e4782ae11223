"""Which devices a requesting container gets: the choice of GPUs, with everything that is known besides."""

from collections.abc import Collection
from dataclasses import replace

from gpuagent.domain.annotations import V1_GPU
from gpuagent.domain.bestset import BestSets
from gpuagent.domain.choose import Request, choose_share
from gpuagent.domain.decision import Decision, Ignored
from gpuagent.domain.deviceplugin.checks import check_core_mem, decision_of, free_by_gpu, gpu_count, most_sharers
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester
from gpuagent.domain.deviceplugin.job import gpus_of_job, named_for_others, named_gpus, together
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.eventreason import EventReason
from gpuagent.domain.mode import GPU_CORE
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.whole import WholeRequest, choose_whole

_ADVICE = f"Do not copy {V1_GPU} and its like into templates: a scheduler writes them"


def choose(request: AllocationRequest, requester: Requester, occupancy: Occupancy) -> tuple[str, ...]:
    """The device ids to answer with.

    Args:
        request: kubelet's.
        requester: the container; one without a pod gets only what is reserved for none.
        occupancy: what is in use.

    Raises:
        Refusal: the request cannot be honoured.
    """
    snap = occupancy.snapshot
    check_core_mem(request.resource, request.size, requester, snap)
    if snap.sets is None:
        return choose_share(_share(request, requester, occupancy))
    chosen = choose_whole(_whole(request, requester, occupancy, snap.sets))
    snap.ring([snap.units[device_id] for device_id in chosen])  # Allocate asks for it in a moment
    return chosen


def notices(
    requester: Requester, resource: str, chosen: Collection[str], snap: Snapshot
) -> list[tuple[EventReason, str]]:
    """Reason and text of the Events for a pod whose annotations were not followed; `chosen` are device ids."""
    if requester.pod is None:
        return []
    decision = snap.decisions.get(requester.pod.name)
    if isinstance(decision, Ignored):
        text = f"annotation {decision.why}; the GPU of pod {requester.pod.name} is chosen as if the annotation were not"
        text = f"{text} there"
        return [("GpuDecisionIgnored", f"{text}. {_ADVICE}")]
    if not isinstance(decision, Decision) or snap.policy.keep_decisions or requester.paired:
        return []
    uuids = {snap.units[device_id] for device_id in chosen}
    if decision.unmet:
        why = f"annotation {decision.key} {decision.unmet}"
    elif (found := decision_of(requester, resource, snap)) and found[0] != uuids:
        why = f"{found[1]}, which is full or gone"
    else:
        return []
    names = " and ".join(sorted(map(snap.name_of, uuids)))
    text = f"{resource}: {requester.owner} gets {names}: {why}, and --decided-gpu-full is choose"
    return [("GpuDecisionNotKept", text)]


def suspect_ids(request: AllocationRequest, occupancy: Occupancy) -> frozenset[str]:
    """Ids offered now that a container may still hold."""
    return frozenset[str]().union(*(one.ids for one in occupancy.suspect)) - request.fixed


def _share(request: AllocationRequest, requester: Requester, occupancy: Occupancy) -> Request:
    snap, resource = occupancy.snapshot, request.resource
    shared = Request(
        resource=resource,
        size=request.size,
        unit="%" if resource == GPU_CORE else snap.policy.unit.phrase,
        free=free_by_gpu(resource, request.offered, snap),
        order=snap.indexes,
        must_include=request.fixed,
        placement=snap.placement,
        suspect=suspect_ids(request, occupancy),
        gpu_count=gpu_count(requester.pod, resource, request.size, snap.sold) if requester.pod else 1,
        room=requester.room(resource),
        pinned=requester.handed_on,
        short=() if requester.paired else _short_gpus(resource, requester, occupancy),
        only=requester.paired or None,
        leaving=_listed(resource, snap, healthy=False),
        full=occupancy.full_gpus(requester.owner),
        most=most_sharers(snap),
        requester=str(requester.owner or "this container"),
    )
    if requester.paired:
        return shared
    if decided := decision_of(requester, resource, snap):
        decided_request = replace(shared, only=decided[0], decided=decided[1])
        if snap.policy.keep_decisions or _possible(decided_request):
            return decided_request
    pinned = shared.pinned or _other_decided_gpus(requester, snap)
    return replace(shared, pinned=pinned, reserved=occupancy.reserved(resource, requester.pod_name))


def _short_gpus(resource: str, requester: Requester, occupancy: Occupancy) -> set[str]:
    """UUIDs of GPUs with too little left of the mode's other resource, where it has another."""
    snap = occupancy.snapshot
    for other in snap.sold.keys() - {resource}:
        need = max(requester.other(resource, snap.sold), 1)
        free = occupancy.free(other)
        free.update({uuid: free.get(uuid, 0) - n for uuid, n in occupancy.reserved(other, requester.pod_name).items()})
        return {uuid for uuid in snap.gpus if free.get(uuid, 0) < need}
    return set()


def _possible(request: Request) -> bool:
    try:
        choose_share(request)
    except Refusal:
        return False
    return True


def _other_decided_gpus(requester: Requester, snap: Snapshot) -> frozenset[str]:
    """UUIDs of the GPUs that a scheduler chose for other containers of the pod: a sidecar goes there if it fits."""
    decision = snap.decisions.get(requester.pod.name) if requester.pod else None
    return decision.uuids if isinstance(decision, Decision) else frozenset()


def _whole(request: AllocationRequest, requester: Requester, occupancy: Occupancy, sets: BestSets) -> WholeRequest:
    snap, resource = occupancy.snapshot, request.resource
    # A GPU whose slot another one has now is in no topology; kubelet has not read yet that it is gone.
    offered = free_by_gpu(resource, request.offered, snap)
    free = {uuid: next(iter(ids)) for uuid, ids in offered.items() if uuid in snap.places}
    fixed = {snap.units[device_id] for device_id in request.fixed}
    if gone := fixed - free.keys():
        text = f"{resource}: {snap.name_of(min(gone))}, which kubelet has fixed, is not there any more"
        raise Refusal(Reason.UNKNOWN_DEVICE, text)
    whole = WholeRequest(
        resource=resource,
        size=request.size,
        free=free,
        sets=sets,
        places=snap.places,
        names={uuid: snap.name_of(uuid) for uuid in snap.places},
        must_include=fixed,
        leaving=_listed(resource, snap, healthy=False),
        suspect={snap.units[device_id] for device_id in suspect_ids(request, occupancy) & occupancy.offered},
        reserved=named_for_others(requester.pod, resource, occupancy),
        spare=_listed(resource, snap, healthy=True).difference(*(uuids for _, uuids in occupancy.standing)),
    )
    if requester.pod is None:
        return whole
    held = gpus_of_job(requester.pod, resource, occupancy)
    named = named_gpus(requester.pod, resource, snap)
    return replace(
        whole,
        named=None if named is None else named - held.get(requester.pod.name, set()),
        beside=set[str]().union(*held.values()),
        together=together(requester.pod, resource, held),
        requester=str(requester.owner),
    )


def _listed(resource: str, snap: Snapshot, *, healthy: bool) -> set[str]:
    """UUIDs of the GPUs whose units are listed so; those that leave the list are shown unhealthy."""
    return {block.gpu.uuid for block in snap.lists.get(resource, ()) if block.healthy is healthy}
