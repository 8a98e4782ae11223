"""Which devices a requesting container gets: placement, with pods, decisions and allocations taken into account.

`placement` ranks GPUs and knows no pods. So this module turns a call into a question for it: how much the container
requests, which GPUs are free for it, which ones it must have, and which ones it should have if it fits there. Shared
GPUs and whole GPUs are two such questions. The answer names GPUs, and the lowest free ids of these GPUs serve the call.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester
from gpuagent.domain.deviceplugin.decided_gpus import decision_of
from gpuagent.domain.deviceplugin.job import gpus_of_job, named_for_others, named_gpus, together
from gpuagent.domain.deviceplugin.mode_rules import check_core_mem, gpu_count, not_offered
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.share import Preferences, ShareRequest, choose_share
from gpuagent.domain.placement.whole import WholeRequest, choose_whole
from gpuagent.domain.pods.annotations import V1_GPU
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.scheduling.decision import Decision, Ignored
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.snapshot import Snapshot

Offered = Mapping[str, frozenset[str]]
"""GPU UUID to the device ids that kubelet offers there."""


def choose(
    request: AllocationRequest,
    requester: Requester,
    occupancy: Occupancy,
) -> tuple[str, ...]:
    """The device ids to answer with.

    Args:
        request: kubelet's.
        requester: the container; one without a pod gets only GPUs that are reserved for no pod.
        occupancy: the devices in use.

    Raises:
        Refusal: no GPU can serve the request.
    """
    snap = occupancy.snapshot
    # Before the choice, because the text of a refusal should name the pod's own mistake, not a lack of units.
    if snap.mode is Mode.CORE_MEM:
        check_core_mem(request.resource, request.size, requester, snap)
    offered = free_by_gpu(request.resource, request.offered, snap)
    if snap.sets is None:
        uuids = _choose_share(request, requester, offered, occupancy)
    else:
        whole = _whole_request(request, requester, offered, occupancy, snap.sets)
        uuids = choose_whole(whole)
        # Allocate needs the ring next, and the snapshot caches it.
        snap.ring(uuids)
    units_per_gpu = request.size // len(uuids)
    # Kubelet itself requires the ids of `must_include`, so the container has them already.
    # Units that are about to leave the list come last, too.
    suspect = (occupancy.suspect_ids | snap.resizes.withheld) - request.must_include
    chosen: list[str] = []
    for uuid in uuids:
        chosen += take(offered[uuid], units_per_gpu, request.must_include, suspect)
    return tuple(chosen)


def _choose_share(
    request: AllocationRequest,
    requester: Requester,
    offered: Offered,
    occupancy: Occupancy,
) -> tuple[str, ...]:
    """UUIDs of the GPUs for units of shared GPUs."""
    share = _share_request(request, requester, offered, occupancy)
    try:
        return choose_share(share)
    except Refusal:
        # Only the text of a refusal needs the free units of the whole node, which take a while to count.
        return choose_share(_with_node(share, occupancy))


def take(
    free: Collection[str],
    count: int,
    must_include: Collection[str],
    suspect: Collection[str],
) -> list[str]:
    """`count` ids of one GPU: those of `must_include` first, those of `suspect` last, and else the lowest numbers."""
    # Ids of one GPU differ in their number alone: by text, then by length, is by number.
    ids = sorted(free)
    ids.sort(key=len)
    if must_include or suspect:
        ids.sort(key=lambda device_id: (device_id not in must_include, device_id in suspect))
    return ids[:count]


def notice(requester: Requester, snap: Snapshot) -> Announcement | None:
    """The warning to a pod whose annotations are not a decision."""
    if requester.pod is None:
        return None
    decision = requester.decision(snap)
    if not isinstance(decision, Ignored):
        return None
    text = f"annotation {decision.why}; the GPU of pod {requester.pod_name} is chosen as if the annotation were not"
    advice = f"Do not copy {V1_GPU} and its like into templates: a scheduler writes them"
    return Announcement(
        "GPUDecisionIgnored",
        f"{text} there. {advice}",
        warning=True,
        pods=(requester.pod.name,),
    )


def _share_request(
    request: AllocationRequest,
    requester: Requester,
    offered: Offered,
    occupancy: Occupancy,
) -> ShareRequest:
    """What the container asks for, and where it may or should be placed."""
    snap = occupancy.snapshot
    resource = request.resource
    pod = requester.pod
    decided = decision_of(requester, resource, snap)
    # The container must get these GPUs or none.
    only: Collection[str] | None = requester.container_gpus or None
    if decided:
        only = decided.uuids
    is_limited = only is not None
    gpus = 1
    if pod and pod.gpu_count_label is not None:
        gpus = gpu_count(pod, resource, request.size, snap.resource_kinds)
    # What a scheduler chose for this container is among the reserved units, and must not count against it.
    reserved: Mapping[str, int] = {}
    if not is_limited:
        reserved = occupancy.reserved(resource, requester.pod_name)
    return ShareRequest(
        resource=resource,
        size=request.size,
        unit=snap.unit_words[resource],
        free={uuid: len(ids) for uuid, ids in offered.items()},
        order=snap.indexes,
        must_include=_units_by_gpu(request.must_include, snap),
        gpu_count=gpus,
        preferences=_preferences(request, requester, occupancy, is_limited=is_limited),
        only=only,
        leaving=_listed(resource, snap, healthy=False),
        full=occupancy.full_gpus(requester.owner),
        most=snap.most_sharers,
        requester=str(requester.owner or "this container"),
        reserved=reserved,
        decided=decided.words if decided else "",
    )


def _preferences(
    request: AllocationRequest,
    requester: Requester,
    occupancy: Occupancy,
    *,
    is_limited: bool,
) -> Preferences:
    """Where the container should be placed, if there is a choice. `is_limited`: it must get certain GPUs or none."""
    snap = occupancy.snapshot
    resource = request.resource
    suspect_ids = (occupancy.suspect_ids & request.offered) - request.must_include
    # Its other resource has a GPU already, which had enough of this one.
    short: Collection[str] = ()
    if not requester.container_gpus:
        short = _short_gpus(resource, requester, occupancy)
    # A spread share is on several GPUs anyway, so nothing can be together with it.
    cramped: Sequence[Collection[str]] = ()
    is_spread = requester.pod is not None and requester.pod.gpu_count_label is not None
    if not is_spread:
        cramped = _cramped(requester, occupancy)
    return Preferences(
        placement=snap.placement,
        pinned=_preferred_gpus(requester, snap, is_limited=is_limited),
        short=short,
        suspect=_units_by_gpu(suspect_ids, snap),
        cramped=cramped,
        room=requester.units_for_later_containers(resource),
    )


def _preferred_gpus(
    requester: Requester,
    snap: Snapshot,
    *,
    is_limited: bool,
) -> Collection[str]:
    """UUIDs of GPUs that the container should get if it fits there."""
    if requester.init_gpus:
        # Kubelet has units there for this container to reuse.
        return requester.init_gpus
    decision = requester.decision(snap)
    if isinstance(decision, Decision) and not is_limited:
        # Schedulers do not number init containers and sidecars. Those belong on the GPUs of their pod.
        uuids = decision.uuids
        if uuids:
            return uuids
    # A sidecar and its pod's other containers go to the same GPUs if they fit.
    return requester.sidecar_gpus


def _cramped(requester: Requester, occupancy: Occupancy) -> list[set[str]]:
    """For each group of containers that should be on one GPU with a sidecar: UUIDs of the GPUs that are too full."""
    cramped = []
    for containers in requester.groups_beside_sidecar():
        too_full = set[str]()
        for resource in occupancy.snapshot.resource_kinds:
            need = sum([container.limits.get(resource, 0) for container in containers])
            too_full |= _lacking_gpus(resource, need, requester, occupancy)
        cramped.append(too_full)
    return cramped


def _lacking_gpus(
    resource: str,
    need: int,
    requester: Requester,
    occupancy: Occupancy,
) -> set[str]:
    """UUIDs of the GPUs with less than `need` free units that are not reserved for other pods."""
    free = occupancy.free(resource)
    reserved = occupancy.reserved(resource, requester.pod_name)
    lacking = set()
    for uuid in occupancy.snapshot.gpus:
        available = free.get(uuid, 0) - reserved.get(uuid, 0)
        if available < need:
            lacking.add(uuid)
    return lacking


def _short_gpus(
    resource: str,
    requester: Requester,
    occupancy: Occupancy,
) -> Collection[str]:
    """UUIDs of GPUs with too few free units of the mode's other resource; empty if the mode has only one."""
    kinds = occupancy.snapshot.resource_kinds
    for other in kinds:
        if other != resource:
            # A container of an unknown size needs at least one unit.
            need = max(requester.units_of_other_resource(resource, kinds), 1)
            return _lacking_gpus(other, need, requester, occupancy)
    return ()


def _with_node(share: ShareRequest, occupancy: Occupancy) -> ShareRequest:
    """The request, with the NUMA node of the offer if GPUs of other NUMA nodes have free units that it leaves out."""
    snap = occupancy.snapshot
    free = occupancy.free(share.resource)
    offered_nodes = {snap.gpus[uuid].numa_node for uuid in share.free}
    free_nodes = {snap.gpus[uuid].numa_node for uuid, units in free.items() if units > 0}
    is_limited = len(offered_nodes) == 1 and not free_nodes <= offered_nodes
    if not is_limited or not snap.policy.numa_of_shares:
        return share
    return replace(share, numa=offered_nodes.pop(), node_free=sum(free.values()))


def _units_by_gpu(ids: Collection[str], snap: Snapshot) -> Mapping[str, int]:
    if not ids:
        return {}
    return Counter(map(snap.units.__getitem__, ids))


def _whole_request(
    request: AllocationRequest,
    requester: Requester,
    offered: Offered,
    occupancy: Occupancy,
    sets: BestSets,
) -> WholeRequest:
    """How many whole GPUs the container asks for, and which ones it may or should get."""
    snap = occupancy.snapshot
    resource = request.resource
    pod = requester.pod
    # Kubelet may still list a GPU that was replaced. The topology has only the new GPU in its slot.
    free = offered.keys() & snap.positions.keys()
    must_include = {snap.units[device_id] for device_id in request.must_include}
    gone = must_include - free
    if gone:
        text = f"{resource}: {snap.names[min(gone)]}, which kubelet has fixed, is not there any more"
        raise Refusal(Reason.UNKNOWN_DEVICE, text)
    suspect_ids = (occupancy.suspect_ids & occupancy.offered) - request.must_include
    in_use = [uuids for _, uuids in occupancy.in_use]
    whole = WholeRequest(
        resource=resource,
        size=request.size,
        free=free,
        sets=sets,
        positions=snap.positions,
        names=snap.names,
        must_include=must_include,
        leaving=_listed(resource, snap, healthy=False),
        suspect={snap.units[device_id] for device_id in suspect_ids},
        reserved=named_for_others(pod, resource, occupancy),
        spare=_listed(resource, snap, healthy=True).difference(*in_use),
    )
    if pod is None:
        return whole
    held = gpus_of_job(pod, resource, occupancy)
    named = named_gpus(pod, resource, snap)
    if named is not None:
        # The pod's other containers have some of its GPUs already.
        named -= held.get(pod.name, set())
    return replace(
        whole,
        named=named,
        job_gpus=set[str]().union(*held.values()),
        together=together(pod, resource, held),
        requester=str(requester.owner),
    )


def _listed(
    resource: str,
    snap: Snapshot,
    *,
    healthy: bool,
) -> set[str]:
    """UUIDs of the GPUs whose units are listed with this health. Draining units are listed as unhealthy."""
    return {block.gpu.uuid for block in snap.lists.get(resource, ()) if block.healthy is healthy}


def free_by_gpu(
    resource: str,
    offered: frozenset[str],
    snap: Snapshot,
) -> dict[str, frozenset[str]]:
    """GPU UUID to the ids of `offered` there.

    Raises:
        Refusal: the resource is at zero in this mode, or an id is not one of its devices.
    """
    if resource not in snap.resource_kinds:
        raise not_offered(resource, snap)
    free: dict[str, frozenset[str]] = {}
    located = 0
    for (name, uuid, _), ids in snap.ids.blocks.items():
        if name != resource:
            continue
        offered_here = ids & offered
        if offered_here:
            located += len(offered_here)
            # A GPU has two blocks while units of another mode leave the list.
            free[uuid] = offered_here | free[uuid] if uuid in free else offered_here
    if located < len(offered):
        stranger = min(offered.difference(*free.values()))
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {stranger!r} is not advertised on this node")
    return free
