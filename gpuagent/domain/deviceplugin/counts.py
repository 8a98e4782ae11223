"""Kubelets before 1.19: they do not ask which ids to take, so an id is a count, exchanged for a unit.

The container is the oldest one that waits for as much, as Aliyun's plugin has it; its pod's annotations are corrected
afterwards. Nothing else in the agent knows of the exchange but what reads kubelet's allocations.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuagent.domain.deviceplugin.assignment import not_offered
from gpuagent.domain.deviceplugin.identity import AllocationRequest, Requester
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.exchange import Exchanged


@dataclass(frozen=True, slots=True)
class Pick:
    """Ids that kubelet picked for one container.

    Attributes:
        exchanged: those whose units stay: they are asked for again, or were an init container's of the same pod.
        request: what the agent asks itself for all of them.
    """

    exchanged: Exchanged
    request: AllocationRequest


def pick(resource: str, picked: frozenset[str], in_admission: frozenset[str], now: Occupancy) -> Pick:
    """What is known of the ids.

    Args:
        resource: name.
        picked: kubelet's ids.
        in_admission: units of the pod in admission.
        now: what is in use.
    """
    known = {device_id: now.exchanged[device_id] for device_id in picked if device_id in now.exchanged}
    given = now.given(resource, frozenset(known.values())) if len(known) == len(picked) else None
    again = given is not None and len(given.ids) == len(picked) and now.may_live(given)
    stay = known if again else {device_id: unit for device_id, unit in known.items() if unit in in_admission}
    # The others were of pods that have ended: kubelet frees all of a pod at once.
    freed = replace(now, offered=frozenset(known.values()).difference(stay.values()))
    held = frozenset[str]().union(*(one.ids for one, _ in freed.standing))
    blocks = now.snapshot.lists.get(resource, ())
    healthy = (now.snapshot.blocks[resource, *block.key] for block in blocks if block.healthy)
    offered = frozenset[str]().union(*healthy).difference(held).union(stay.values())
    return Pick(stay, AllocationRequest(resource, len(picked), offered, frozenset(stay.values())))


def check_unlisted(resource: str, picked: frozenset[str], now: Occupancy) -> None:
    """Refuse counts that are not on offer any more: a count may also be the name of a unit that another pod has.

    Ids of before a downgrade of kubelet stand for themselves.
    """
    if not picked.isdisjoint(now.exchanged.values()):
        raise not_offered(resource, now.snapshot)


def paired(picked: Iterable[str], chosen: Iterable[str], stay: Exchanged) -> Exchanged:
    """What each of `picked` is exchanged for, when `chosen` are the units in the order to be given."""
    given = set(stay.values())
    new = (unit for unit in chosen if unit not in given)
    return {**stay, **dict(zip(sorted(set(picked) - stay.keys()), new, strict=True))}


def oldest(found: list[Requester]) -> Requester:
    """Aliyun's rule: the container that goes on, or the oldest pod that waits; where none does, an unseen one.

    A pod is unseen mostly because another one was taken for it: the second resource is rather that of a pod that waits.
    """
    return next((one for one in found if one.pod), found[0] if found else Requester())
