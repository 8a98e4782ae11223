"""Kubelets before 1.19: they do not ask which ids to take, so an id is a count, exchanged for a unit.

The container is the oldest one that waits for this amount, which is the rule of Aliyun's plugin. The agent corrects
the pod's annotations afterwards. `allocator/old_kubelets` stands between such a kubelet and the rest of the agent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuagent.domain.deviceplugin.admission.recent_allocations import RecentAllocation, all_ids
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.exchange import Exchanged
from gpuagent.domain.snapshot import Snapshot

LAPSE_S = 30.0
"""Within this time kubelet writes an allocation to its checkpoint, even on a slow disk."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Ids that kubelet picked for one container.

    Attributes:
        exchanged: ids that keep their units: kubelet requests them again, or an init container of the pod had them.
        freed: units of the other ids. Their pods have ended: kubelet frees all ids of a pod at once.
        request: the agent's own request for all of them, in place of GetPreferredAllocation.
    """

    exchanged: Exchanged
    freed: frozenset[str]
    request: AllocationRequest


def pick(
    resource: str,
    picked: frozenset[str],
    in_admission: frozenset[str],
    exchanged: Exchanged,
    occupancy: Occupancy,
) -> Pick:
    """Find which ids keep their units, and which units the others may get.

    Args:
        resource: name.
        picked: kubelet's ids.
        in_admission: units of the pod in admission.
        exchanged: ids to units.
        occupancy: the allocations in use.
    """
    # An id that the agent has exchanged before is one that kubelet has freed, reuses or requests again.
    known = {device_id: exchanged[device_id] for device_id in picked if device_id in exchanged}
    known_units = frozenset(known.values())
    if len(known) == len(picked) and _repeats_last_call(resource, known_units, occupancy):
        kept = known
    else:
        kept = {device_id: unit for device_id, unit in known.items() if unit in in_admission}
    kept_units = frozenset(kept.values())
    freed = known_units - kept_units
    # Kubelet frees all ids of a pod at once, so the other units of these allocations are free as well.
    held = all_ids([allocation for allocation, _ in occupancy.with_freed(freed).in_use])
    offered = _healthy_units(resource, occupancy.snapshot) - held
    request = AllocationRequest(
        resource,
        len(picked),
        offered=offered | kept_units,
        must_include=kept_units,
    )
    return Pick(kept, freed, request)


def _repeats_last_call(resource: str, units: frozenset[str], occupancy: Occupancy) -> bool:
    """Whether this is the last Allocate once more, which gets the same answer.

    Kubelet picks free ids only. So the ids of an earlier allocation are for a new container: the pod that had them has
    ended, although the watch may not have shown that yet. The same holds once that pod has started, or was refused.

    If the last pod was deleted before it started, and the watch is late, a new container with the very same ids looks
    like it.
    """
    tracker = occupancy.tracker
    if not tracker.recent:
        return False
    last = tracker.recent[-1]
    if (last.resource, last.ids) != (resource, units) or not occupancy.may_live(last):
        return False
    if last.pod_uid in tracker.refused:
        return False
    pod = occupancy.snapshot.living_pods.get(last.owner.pod) if last.owner else None
    return pod is None or not pod.container_ids


def _healthy_units(resource: str, snap: Snapshot) -> frozenset[str]:
    """All units of the resource that are listed as healthy."""
    units = frozenset[str]()
    for block in snap.lists.get(resource, ()):
        if block.healthy:
            units |= snap.ids.blocks[resource, *block.key]
    return units - snap.resizes.withheld


def lapsed(occupancy: Occupancy) -> frozenset[str]:
    """Units of allocations that kubelet has freed: such a kubelet does not list free ids, only its allocations."""
    snap = occupancy.snapshot
    # A younger allocation may not be in the checkpoint yet.
    written_before = snap.allocations.read_at - LAPSE_S
    old = [allocation for allocation in occupancy.tracker.recent if allocation.at < written_before]
    return all_ids(old) - all_ids(snap.holdings)


def beside(requester: Requester, half: RecentAllocation) -> Requester:
    """The requester of the other resource of the container that has `half`, on the same GPUs.

    If the container that seems to request it has another amount, the agent has mistaken a pod for another one. Then the
    container is unknown, and its GPUs are still certain.
    """
    if _requests_as_much(requester, half):
        return replace(requester, container_gpus=half.uuids)
    return Requester(container_gpus=half.uuids)


def mapped(
    picked: Iterable[str],
    chosen: Iterable[str],
    kept: Exchanged,
) -> Exchanged:
    """Map each id of `picked` to its unit; new units come from `chosen`, in order."""
    kept_units = set(kept.values())
    new_units = [unit for unit in chosen if unit not in kept_units]
    # In a fixed order, so that the same ids get the same units.
    new_ids = sorted(set(picked) - kept.keys())
    return {**kept, **dict(zip(new_ids, new_units, strict=True))}


def oldest(fitting: list[Requester], last: RecentAllocation | None = None) -> Requester:
    """Aliyun's rule: the next container of the pod in admission, else the oldest waiting pod, else an unseen pod.

    A pod that looks unknown is usually one that the agent misidentified, so prefer a known waiting pod. `last` is
    the allocation of the unseen pod. If a waiting container requests just as much of that resource, it has this
    allocation: the agent saw its pod between the two calls.
    """
    if not fitting:
        return Requester()
    known = [requester for requester in fitting if requester.container]
    admitting = last.pod_uid if last else None
    # A pod with a started container that kubelet has no allocation for has usually ended, so it comes last.
    known.sort(key=lambda requester: _has_started(requester, admitting))
    pair = fitting[0]
    # The first one that fits is the second resource of an unseen pod: see whether a known pod has the first one.
    unidentified = last if last and last.owner is None else None
    if unidentified and pair.container_gpus:
        for requester in known:
            if _requests_as_much(requester, unidentified):
                return replace(requester, container_gpus=pair.container_gpus)
    return known[0] if known else pair


def _requests_as_much(requester: Requester, allocation: RecentAllocation) -> bool:
    """Whether the container requests as much of the resource as was allocated."""
    container = requester.container
    if container is None:
        return False
    return container.limits.get(allocation.resource) == len(allocation.ids)


def _has_started(requester: Requester, admitting: str | None) -> bool:
    """Whether a container of the pod runs or ran, and the pod is not the one in admission."""
    pod = requester.pod
    if pod is None or pod.uid == admitting:
        return False
    return bool(pod.container_ids)
