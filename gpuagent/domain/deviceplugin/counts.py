"""Kubelets before 1.19: they do not ask which ids to take, so an id is a count, exchanged for a unit.

The container is the oldest one that waits for this amount, which is the rule of Aliyun's plugin. The agent corrects
the pod's annotations afterwards. `allocator/old_kubelets` stands between such a kubelet and the rest of the agent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester, Search
from gpuagent.domain.deviceplugin.occupancy import AdmissionTracker, Occupancy, RecentAllocation
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
    resource: str, picked: frozenset[str], in_admission: frozenset[str], exchanged: Exchanged, now: Occupancy
) -> Pick:
    """Find which ids keep their units, and which units the others may get.

    Args:
        resource: name.
        picked: kubelet's ids.
        in_admission: units of the pod in admission.
        exchanged: ids to units.
        now: the allocations in use.
    """
    known = {device_id: exchanged[device_id] for device_id in picked if device_id in exchanged}
    given = now.given(resource, frozenset(known.values())) if len(known) == len(picked) else None
    again = given is not None and len(given.ids) == len(picked) and now.may_live(given)
    stay = known if again else {device_id: unit for device_id, unit in known.items() if unit in in_admission}
    freed = frozenset(known.values()).difference(stay.values())
    held = frozenset[str]().union(*(one.ids for one, _ in replace(now, offered=freed).in_use))
    blocks = now.snapshot.lists.get(resource, ())
    healthy = (now.snapshot.blocks[resource, *block.key] for block in blocks if block.healthy)
    offered = frozenset[str]().union(*healthy).difference(held).union(stay.values())
    return Pick(stay, freed, AllocationRequest(resource, len(picked), offered, frozenset(stay.values())))


def lapsed(now: Occupancy) -> frozenset[str]:
    """Units of allocations that kubelet has freed: such a kubelet does not list free ids, only its allocations."""
    snap = now.snapshot
    old = [one.ids for one in now.tracker.recent if one.at < snap.holdings_at - LAPSE_S]
    return frozenset[str]().union(*old).difference(*(h.ids for h in snap.holdings))


def corrected(request: AllocationRequest, tracker: AdmissionTracker, snap: Snapshot) -> AdmissionTracker:
    """The record of calls, if the last allocation cannot be that of the container to which the agent gave it.

    Kubelet allocates the resources of a container one after the other. So a call for the other resource is for the same
    container; if the amount is not what that container lacks, the agent has taken another pod for it. Then the last
    allocation is that of a waiting container which requests both amounts, or of an unseen one.
    """
    last = tracker.last
    if last is None or last.owner is None or last.resource == request.resource:
        return tracker
    if not _lacks_another_amount(request, last, tracker, snap):
        return tracker
    before = tracker.without(last)
    first_call = AllocationRequest(last.resource, len(last.ids))
    waiting = Search(first_call, before, snap).fitting(snap.with_devices)
    both = [one for one in waiting if one.container and one.container.may_want(request.resource, request.size)]
    meant = oldest(both)
    uid = meant.pod.uid if meant.pod else None
    return before.allocated(replace(last, owner=meant.owner, pod_uid=uid, certain=False))


def _lacks_another_amount(
    request: AllocationRequest, last: RecentAllocation, tracker: AdmissionTracker, snap: Snapshot
) -> bool:
    """Whether the container of `last` still lacks the resource of the request, and in another amount."""
    pod = snap.pod_by_uid.get(last.pod_uid or "")
    if pod is None or last.owner is None:
        return False
    served = any(one.owner == last.owner and one.resource == request.resource for one in tracker.admission)
    container = next((one for one in pod.containers if one.name == last.owner.container), None)
    if served or container is None or not container.asks(request.resource):
        return False
    return not container.may_want(request.resource, request.size)


def mapped(picked: Iterable[str], chosen: Iterable[str], stay: Exchanged) -> Exchanged:
    """Map each id of `picked` to its unit; new units come from `chosen`, in order."""
    given = set(stay.values())
    new = (unit for unit in chosen if unit not in given)
    return {**stay, **dict(zip(sorted(set(picked) - stay.keys()), new, strict=True))}


def oldest(found: list[Requester], last: RecentAllocation | None = None) -> Requester:
    """Aliyun's rule: the next container of the pod in admission, else the oldest waiting pod, else an unseen pod.

    If a pod seems unseen, the agent has usually mistaken another pod for it. So a waiting pod is preferred. `last` is
    the allocation of the unseen pod. If a waiting container requests just as much of that resource, it has this
    allocation: the agent saw its pod between the two calls. A pod with a started container comes last: if kubelet has
    no allocation for it, it has usually ended.
    """
    admitting = last.pod_uid if last else None
    known = [one for one in found if one.container]
    known.sort(key=lambda one: bool(one.pod and one.pod.container_ids and one.pod.uid != admitting))
    if last and not last.owner and found and found[0].container_gpus:
        same = (one for one in known if one.container and one.container.limits.get(last.resource) == len(last.ids))
        if one := next(same, None):
            return replace(one, container_gpus=found[0].container_gpus)
    return next(iter(known or found), Requester())
