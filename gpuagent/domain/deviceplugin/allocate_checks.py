"""Checks of an Allocate whose devices kubelet picked itself, or requests again."""

from collections.abc import Collection

from gpuagent.domain.deviceplugin.assignment import decision_of, in_doubt
from gpuagent.domain.deviceplugin.device_ids import Located
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, Unknown
from gpuagent.domain.deviceplugin.job import named_for_others, named_gpus
from gpuagent.domain.deviceplugin.mode_rules import check_core_mem, not_offered
from gpuagent.domain.deviceplugin.occupancy import InUse, Occupancy
from gpuagent.domain.pods.annotations import shown
from gpuagent.domain.pods.pod import requests
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, Mode, other_resource
from gpuagent.domain.snapshot import Snapshot


def check_allocated(
    request: AllocationRequest, requester: Requester, before: InUse | None, at: Located, occupancy: Occupancy
) -> None:
    """Check devices that differ from the agent's last GetPreferredAllocation answer.

    Args:
        request: all of its ids must be included.
        requester: the container.
        before: the allocation that has these ids already.
        at: their GPUs.
        occupancy: the devices in use.

    Raises:
        Refusal: the devices break a rule of the mode or a scheduler's decision.
    """
    snap, resource = occupancy.snapshot, request.resource
    if isinstance(requester, Unknown) and requester.maybe_decided and not before:
        # A pod without a decision may take GPUs that are in no pod's decision.
        chosen = {*occupancy.reserved(resource, None), *named_for_others(None, resource, occupancy)}
        if not (requester.maybe_undecided and chosen.isdisjoint(at.counts)):
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


def claimed(resource: str, at: Located, snap: Snapshot) -> Refusal:
    """The refusal of GPUs that ResourceClaims have: a GPU is given by one front end at a time."""
    held = snap.claimed & at.counts.keys()
    return Refusal(Reason.STILL_HELD, f"{resource}: {_gpus(held, snap)} is still in use by ResourceClaims")


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
    found = decision_of(requester, resource, snap) if snap.policy.keep_decisions else None
    if found and at.counts.keys() != found[0]:
        raise Refusal(Reason.GPU_DECISION, f"{picked}, and {found[1]}")


def apart(resource: str, other: str, uuids: Collection[str], counts: Collection[str], snap: Snapshot) -> Refusal:
    """The refusal where kubelet picked another GPU than the one (`uuids`) of the container's `other` resource."""
    text = f"{resource}: kubelet picked {_gpus(counts, snap)}, but the container's {other} is on {_gpus(uuids, snap)}"
    return Refusal(Reason.PAIR_APART, text)


def _gpus(uuids: Collection[str], snap: Snapshot) -> str:
    return "GPU " + ", ".join(str(snap.gpus[uuid].index) for uuid in uuids)
