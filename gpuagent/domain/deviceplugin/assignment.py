"""Which devices a requesting container gets: placement, with pods, decisions and allocations taken into account."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, Unknown
from gpuagent.domain.deviceplugin.job import gpus_of_job, named_for_others, named_gpus, together
from gpuagent.domain.deviceplugin.mode_rules import check_core_mem, gpu_count, not_offered
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.share import ShareRequest, choose_share
from gpuagent.domain.placement.whole import WholeRequest, choose_whole
from gpuagent.domain.pods.annotations import V1_GPU
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.scheduling.decision import Decision, Ignored
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.snapshot import Snapshot


def choose(request: AllocationRequest, requester: Requester, occupancy: Occupancy) -> tuple[str, ...]:
    """The device ids to answer with.

    Args:
        request: kubelet's.
        requester: the container; one without a pod gets only GPUs that are reserved for no pod.
        occupancy: the devices in use.

    Raises:
        Refusal: no GPU can serve the request.
    """
    snap = occupancy.snapshot
    if snap.mode is Mode.CORE_MEM:
        check_core_mem(request.resource, request.size, requester, snap)
    offered = free_by_gpu(request.resource, request.offered, snap)
    if snap.sets is None:
        share = _share(request, requester, offered, occupancy)
        try:
            uuids = choose_share(share)
        except Refusal:
            # Only the text of a refusal needs the free units of the whole node, which take a while to count.
            uuids = choose_share(_with_node(share, occupancy))
    else:
        uuids = choose_whole(_whole(request, requester, offered, occupancy, snap.sets))
        snap.ring(uuids)  # computes and caches the ring: Allocate needs it next
    each, suspect = request.size // len(uuids), occupancy.suspect_ids - request.must_include
    return tuple([i for uuid in uuids for i in take(offered[uuid], each, request.must_include, suspect)])


def take(free: Collection[str], count: int, must_include: Collection[str], suspect: Collection[str]) -> list[str]:
    """`count` ids of one GPU: those of `must_include` first, those of `suspect` last, and else the lowest numbers."""
    # Ids of one GPU differ in their number alone: by text, then by length, is by number.
    ids = sorted(sorted(free), key=len)
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
    return Announcement("GPUDecisionIgnored", f"{text} there. {advice}", warning=True, pods=(requester.pod.name,))


Offered = Mapping[str, frozenset[str]]
"""GPU UUID to the device ids that kubelet offers there."""


def _share(request: AllocationRequest, requester: Requester, offered: Offered, occupancy: Occupancy) -> ShareRequest:
    snap, resource, pod = occupancy.snapshot, request.resource, requester.pod
    spread = pod and pod.gpu_count_label is not None
    same_gpus, decision = requester.container_gpus, requester.decision(snap)
    decided = decision_of(requester, resource, snap)
    limited = same_gpus or decided
    chosen = decision.uuids if isinstance(decision, Decision) else ()
    return ShareRequest(
        resource=resource,
        size=request.size,
        unit=snap.unit_words[resource],
        free={uuid: len(ids) for uuid, ids in offered.items()},
        order=snap.indexes,
        must_include=_units_by_gpu(request.must_include, snap),
        placement=snap.placement,
        suspect=_units_by_gpu((occupancy.suspect_ids & request.offered) - request.must_include, snap),
        gpu_count=gpu_count(pod, resource, request.size, snap.resource_kinds) if spread and pod else 1,
        room=requester.room(resource),
        cramped=() if spread else _cramped(requester, occupancy),
        # A sidecar and its pod's other containers go to the same GPUs if they fit.
        pinned=requester.init_gpus or (chosen if chosen and not limited else requester.sidecar_gpus),
        short=() if same_gpus else _short_gpus(resource, requester, occupancy),
        only=decided[0] if decided else same_gpus or None,
        leaving=_listed(resource, snap, healthy=False),
        full=occupancy.full_gpus(requester.owner),
        most=snap.most_sharers,
        requester=str(requester.owner or "this container"),
        reserved={} if decided or same_gpus else occupancy.reserved(resource, requester.pod_name),
        decided=decided[1] if decided else "",
    )


def _cramped(requester: Requester, occupancy: Occupancy) -> list[set[str]]:
    """For each group of containers that should be on one GPU with a sidecar: UUIDs of the GPUs that are too full."""
    snap = occupancy.snapshot
    found = []
    for containers in requester.beside():
        cramped = set[str]()
        for resource in snap.resource_kinds:
            need = sum(one.limits.get(resource, 0) for one in containers)
            free, reserved = occupancy.free(resource), occupancy.reserved(resource, requester.pod_name)
            cramped |= {uuid for uuid in snap.gpus if free.get(uuid, 0) - reserved.get(uuid, 0) < need}
        found.append(cramped)
    return found


def _with_node(share: ShareRequest, occupancy: Occupancy) -> ShareRequest:
    """The request, with the NUMA node of the offer if GPUs of other NUMA nodes have free units that it leaves out."""
    gpus, free = occupancy.snapshot.gpus, occupancy.free(share.resource)
    offered_nodes = {gpus[uuid].numa_node for uuid in share.free}
    free_nodes = {gpus[uuid].numa_node for uuid, units in free.items() if units > 0}
    is_limited = len(offered_nodes) == 1 and not free_nodes <= offered_nodes
    if not is_limited or not occupancy.snapshot.policy.numa_of_shares:
        return share
    return replace(share, numa=offered_nodes.pop(), node_free=sum(free.values()))


def _units_by_gpu(ids: Collection[str], snap: Snapshot) -> Mapping[str, int]:
    return Counter(map(snap.units.__getitem__, ids)) if ids else {}


def _short_gpus(resource: str, requester: Requester, occupancy: Occupancy) -> set[str]:
    """UUIDs of GPUs with too few free units of the mode's other resource; empty if the mode has only one."""
    snap = occupancy.snapshot
    for other in snap.resource_kinds.keys() - {resource}:
        need = max(requester.other(resource, snap.resource_kinds), 1)
        free = occupancy.free(other)
        free.update({uuid: free.get(uuid, 0) - n for uuid, n in occupancy.reserved(other, requester.pod_name).items()})
        return {uuid for uuid in snap.gpus if free.get(uuid, 0) < need}
    return set()


def _whole(
    request: AllocationRequest, requester: Requester, offered: Offered, occupancy: Occupancy, sets: BestSets
) -> WholeRequest:
    snap, resource = occupancy.snapshot, request.resource
    # Kubelet may still list a GPU that was replaced. The topology has only the new GPU in its slot.
    free = offered.keys() & snap.positions.keys()
    must_include = {snap.units[device_id] for device_id in request.must_include}
    if gone := must_include - free:
        text = f"{resource}: {snap.names[min(gone)]}, which kubelet has fixed, is not there any more"
        raise Refusal(Reason.UNKNOWN_DEVICE, text)
    whole = WholeRequest(
        resource=resource,
        size=request.size,
        free=free,
        sets=sets,
        positions=snap.positions,
        names=snap.names,
        must_include=must_include,
        leaving=_listed(resource, snap, healthy=False),
        suspect={snap.units[i] for i in (occupancy.suspect_ids & occupancy.offered) - request.must_include},
        reserved=named_for_others(requester.pod, resource, occupancy),
        spare=_listed(resource, snap, healthy=True).difference(*(uuids for _, uuids in occupancy.in_use)),
    )
    if requester.pod is None:
        return whole
    held = gpus_of_job(requester.pod, resource, occupancy)
    named = named_gpus(requester.pod, resource, snap)
    return replace(
        whole,
        named=None if named is None else named - held.get(requester.pod.name, set()),
        job_gpus=set[str]().union(*held.values()),
        together=together(requester.pod, resource, held),
        requester=str(requester.owner),
    )


def _listed(resource: str, snap: Snapshot, *, healthy: bool) -> set[str]:
    """UUIDs of the GPUs whose units are listed with this health. Draining units are listed as unhealthy."""
    return {block.gpu.uuid for block in snap.lists.get(resource, ()) if block.healthy is healthy}


def in_doubt(resource: str, found: Unknown) -> Refusal:
    """The refusal of a request that may be for pods with GPUs chosen by a scheduler."""
    pods = ", ".join(map(str, found.candidates[:3])) or "pods of this node"
    text = f"{resource}: a scheduler chose GPUs for {pods}, and the agent cannot identify the requesting pod"
    return Refusal(Reason.UNKNOWN_POD, f"{text}: {found.why}. Create the pod again")


def free_by_gpu(resource: str, offered: frozenset[str], snap: Snapshot) -> dict[str, frozenset[str]]:
    """GPU UUID to the ids of `offered` there.

    Raises:
        Refusal: the resource is at zero in this mode, or an id is not one of its devices.
    """
    if resource not in snap.resource_kinds:
        raise not_offered(resource, snap)
    free: dict[str, frozenset[str]] = {}
    for (name, uuid, _), ids in snap.blocks.items():
        if name == resource and (here := ids & offered):
            free[uuid] = here | free[uuid] if uuid in free else here
    if sum(map(len, free.values())) < len(offered):
        stranger = min(offered.difference(*free.values()))
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {stranger!r} is not advertised on this node")
    return free


class DecidedGpus(NamedTuple):
    """UUIDs of the GPUs that a scheduler chose for a container, and words for messages."""

    uuids: frozenset[str]
    words: str


def decision_of(requester: Requester, resource: str, snap: Snapshot) -> DecidedGpus | None:
    """GPUs that a scheduler chose for the container; None where it chose none that count.

    Raises:
        Refusal: this node can never keep the decision.
    """
    decision = requester.decision(snap)
    gpus = requester.decided_gpus(resource, snap)
    if gpus is None or not isinstance(decision, Decision):
        return None
    if requester.container_gpus:
        # The container's other resource has followed the decision, or was chosen before there was one.
        return None
    if isinstance(gpus, str):
        text = f"{resource}: pod {requester.pod_name}: annotation {decision.key} {gpus}"
        raise Refusal(Reason.GPU_DECISION, text)
    words = f"a scheduler chose {names_of(gpus, snap)} for it (annotation {decision.key})"
    return DecidedGpus(gpus, words)


def names_of(uuids: Collection[str], snap: Snapshot) -> str:
    """GPUs in messages: ``GPU 1 and GPU 3``."""
    return " and ".join(sorted(map(snap.names.__getitem__, uuids)))
