"""What a call of kubelet's must satisfy before it is granted."""

from collections.abc import Collection, Mapping

from gpuagent.domain.annotations import shown
from gpuagent.domain.decision import Decision
from gpuagent.domain.deviceplugin.identity import Requester, Unknown
from gpuagent.domain.deviceplugin.job import named_for_others, named_gpus
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.grant import Located
from gpuagent.domain.mode import GPU_COUNT_LABEL, GROUP_ANNOTATION, Kind, Mode
from gpuagent.domain.pods import Pod, requests
from gpuagent.domain.snapshot import Snapshot


def not_offered(resource: str, snap: Snapshot) -> Refusal:
    """The resource is at zero in this mode."""
    return Refusal(Reason.NOT_OFFERED, f"{resource}: not offered in mode {snap.mode}, which is in force on this node")


def free_by_gpu(resource: str, offered: frozenset[str], snap: Snapshot) -> dict[str, frozenset[str]]:
    """GPU UUID to the ids of `offered` there.

    Raises:
        Refusal: the resource is at zero in this mode, or an id is not one of its devices.
    """
    if resource not in snap.sold:
        raise not_offered(resource, snap)
    free: dict[str, frozenset[str]] = {}
    for (name, uuid, _), ids in snap.blocks.items():
        if name == resource and (here := ids & offered):
            free[uuid] = here | free[uuid] if uuid in free else here
    if sum(map(len, free.values())) < len(offered):
        stranger = min(offered.difference(*free.values()))
        raise Refusal(Reason.UNKNOWN_DEVICE, f"{resource}: device {stranger!r} is not on offer on this node")
    return free


def gpu_count(pod: Pod, resource: str, size: int, sold: Mapping[str, Kind]) -> int:
    """Over how many GPUs the pod's label `aliyun.com/gpu-count` spreads this request; 1 without it.

    Raises:
        Refusal: the label cannot be honoured.
    """
    count, kind = pod.gpu_count, sold.get(resource)
    if pod.gpu_count_label is None or kind is None or kind.is_whole:
        return 1
    said = f"pod {pod.name}: label {GPU_COUNT_LABEL}={pod.gpu_count_label!r}"
    if count is None:
        raise Refusal(Reason.GPU_COUNT, f"{said} is not a number of GPUs; set it to 1 or more, or remove it")
    if count > 1 and kind in {Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM}:
        raise Refusal(Reason.GPU_COUNT, f"{said} cannot be combined with mode core_mem: one container, one GPU there")
    if size % count:
        text = f"{said} does not divide {size} units of {resource}; ask for a multiple of {count}"
        raise Refusal(Reason.GPU_COUNT, text)
    return count


def in_doubt(resource: str, found: Unknown) -> Refusal:
    """Schedulers chose GPUs for pods that this request may be for."""
    pods = ", ".join(map(str, found.between[:3]))
    text = f"{resource}: a scheduler chose GPUs for {pods}, and the agent cannot tell which pod asks"
    return Refusal(Reason.UNKNOWN_POD, f"{text}: {found.why}. Create the pod again")


def check_reserved(resource: str, found: Unknown, at: Located, occupancy: Occupancy) -> None:
    """Kubelet picked none of the GPUs that a scheduler chose for a pod which this may be, or may not be."""
    chosen = {*occupancy.reserved(resource, None), *named_for_others(None, resource, occupancy)}
    if found.between and not (found.undecided and chosen.isdisjoint(at.counts)):
        raise in_doubt(resource, found)


def check_offered(resource: str, ids: frozenset[str], at: Located, occupancy: Occupancy) -> None:
    """New units must be on offer and on one GPU unless a spread was asked for; units given out before are fine."""
    snap, counts = occupancy.snapshot, at.counts
    kind = snap.sold.get(resource)
    may_span = len(counts) == 1 or kind is None or kind.is_whole
    if may_span and at.listed:
        return
    before = occupancy.given(resource, ids)
    if before and before.ids == ids:
        return
    # Before kubelet's allocations were read nothing is on offer, and only units of before a restart can be asked for.
    if not before and snap.holdings_known and not at.listed:
        raise not_offered(resource, snap)
    if may_span:
        return
    # A device list that kubelet has from before a switch may have units of mode core_mem still.
    even = len(set(counts.values())) == 1 and at.kind.mode is not Mode.CORE_MEM
    if not (even and any(pod.gpu_count == len(counts) for pod, _ in requests(snap.pods, resource, len(ids)))):
        where = ", ".join(f"{n} on GPU {snap.gpus[uuid].index}" for uuid, n in counts.items())
        text = (
            f"{resource}: kubelet picked units of several GPUs for one container ({where}); a share stays on "
            "one GPU unless the pod label aliyun.com/gpu-count asks for an even spread, and in mode core_mem always"
        )
        raise Refusal(Reason.SPANS_GPUS, text)


def check_core_mem(resource: str, size: int, requester: Requester, snap: Snapshot) -> None:
    """The rules of mode core_mem: compute in whole steps; a container that asks for one resource asks for the other.

    One that has compute alone would have the whole GPU's memory.
    """
    kind, policy = snap.sold.get(resource), snap.policy
    if kind is None or kind.mode is not Mode.CORE_MEM:
        return
    if kind is Kind.CORE_CORE_MEM and size % policy.core_step:
        below = size - size % policy.core_step
        fitting = " or ".join(str(n) for n in (below, below + policy.core_step) if n)
        text = f"{resource}: {size} is no multiple of {policy.core_step} percent; ask for {fitting}"
        raise Refusal(Reason.CORE_STEP, text)
    if not policy.core_mem_both or requester.container is None:
        return
    other = next(name for name in snap.sold if name != resource)
    if not requester.container.asks(other):
        text = (
            f"{resource}: {requester.owner} asks for it and not for {other}; in mode core_mem "
            "a container asks for both, or for neither"
        )
        raise Refusal(Reason.CORE_MEM_BOTH, text)


def check_pair(resource: str, at: Located, requester: Requester, snap: Snapshot) -> None:
    """The two resources of a container are on one GPU."""
    if requester.paired and requester.paired != at.counts.keys() and not at.kind.is_whole:
        other = next(name for name in snap.sold if name != resource)
        raise apart(resource, other, requester.paired, at.counts, snap)


def check_allocated(
    resource: str, ids: frozenset[str], at: Located, requester: Requester, occupancy: Occupancy
) -> None:
    """New units that the agent did not choose itself."""
    snap = occupancy.snapshot
    _check_decided(resource, at, requester, snap)
    check_core_mem(resource, len(ids), requester, snap)
    full = occupancy.full_gpus(requester.owner) & at.counts.keys()
    if full and not at.kind.is_whole:
        where = ", ".join(f"GPU {snap.gpus[uuid].index}" for uuid in full)
        text = f"{resource}: kubelet picked {where}, which has {most_sharers(snap)} already, the most allowed"
        raise Refusal(Reason.TOO_MANY_PODS, text)


def _check_decided(resource: str, at: Located, requester: Requester, snap: Snapshot) -> None:
    """A scheduler did not choose other GPUs than kubelet picked."""
    if requester.pod is None:
        return
    picked = "GPU " + ", ".join(str(snap.gpus[uuid].index) for uuid in at.counts)
    said = f"{resource}: kubelet picked {picked} for {requester.owner}"
    if at.kind.is_whole:
        named = named_gpus(requester.pod, resource, snap)
        if named is not None and not at.counts.keys() <= named:
            text = f"{GROUP_ANNOTATION} names others: {shown(requester.pod.annotations[GROUP_ANNOTATION])}"
            raise Refusal(Reason.GPU_GROUP, f"{said}, and the pod's annotation {text}")
        return
    found = decision_of(requester, resource, snap) if snap.policy.keep_decisions else None
    if found and at.counts.keys() != found[0]:
        raise Refusal(Reason.GPU_DECISION, f"{said}, and {found[1]}")


def decision_of(requester: Requester, resource: str, snap: Snapshot) -> tuple[frozenset[str], str] | None:
    """GPUs that a scheduler chose for the container, and words for them; None where it chose none that count.

    Raises:
        Refusal: this node can never keep the decision.
    """
    found = requester.decided_gpus(resource, snap)
    if found is None or requester.pod is None or requester.paired:
        return None
    decision = snap.decisions[requester.pod.name]
    key = decision.key if isinstance(decision, Decision) else ""
    if isinstance(found, str):
        if not snap.policy.keep_decisions:
            return None
        raise Refusal(Reason.GPU_DECISION, f"{resource}: pod {requester.pod.name}: annotation {key} {found}")
    gpus = " and ".join(sorted(map(snap.name_of, found)))
    return found, f"a scheduler chose {gpus} for it (annotation {key})"


def most_sharers(snap: Snapshot) -> str:
    """The caps of sharers of one GPU, for messages: ``20 pods``."""
    pods = f"{snap.policy.max_pods_per_gpu} pods"
    return pods if snap.max_sharers is None else f"{pods} or {snap.max_sharers} containers"


def apart(resource: str, other: str, uuids: Collection[str], counts: Collection[str], snap: Snapshot) -> Refusal:
    """Kubelet picked another GPU than the one (`uuids`) of the container's `other` resource."""
    there = ", ".join(str(snap.gpus[uuid].index) for uuid in uuids)
    here = ", ".join(str(snap.gpus[uuid].index) for uuid in counts)
    text = f"{resource}: kubelet picked GPU {here}, but the container's {other} is on GPU {there}"
    return Refusal(Reason.PAIR_APART, text)
