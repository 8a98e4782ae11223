"""Kubelets before 1.19: they do not ask which ids to take, so an id is a count, exchanged for a unit.

The container is the oldest one that waits for this amount, which is the rule of Aliyun's plugin. The agent corrects
the pod's annotations afterwards. `allocator/old_kubelets` stands between such a kubelet and the rest of the agent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester
from gpuagent.domain.deviceplugin.occupancy import Occupancy, RecentAllocation
from gpuagent.domain.pods.exchange import Exchanged

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


def beside(requester: Requester, half: RecentAllocation) -> Requester:
    """The requester of the other resource of the container that has `half`, on the same GPUs.

    If the container that seems to request it has another amount, the agent has mistaken a pod for another one. Then the
    container is unknown, and its GPUs are still certain.
    """
    container = requester.container
    if container and container.limits.get(half.resource) == len(half.ids):
        return replace(requester, container_gpus=half.uuids)
    return Requester(container_gpus=half.uuids)


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
