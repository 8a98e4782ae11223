"""Amounts of extended resources: what pods ask for, and what nodes have left, as a kube-scheduler counts it."""

from collections import Counter
from collections.abc import Iterable

from standin.api.objects import Json

ENDED = ("Succeeded", "Failed")
"""Phases of pods that hold nothing any more."""


def limits(pod: Json) -> Counter[str]:
    """Amounts that the pod's containers ask for together."""
    amounts: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        for resource, amount in (resources.get("limits") or {}).items():
            if "/" in resource:
                amounts[resource] += int(amount)
    return amounts


def free_amounts(node: Json, pods: Iterable[Json]) -> Counter[str]:
    """What a node has left beside the pods that hold amounts of it; negative if too much is bound."""
    free: Counter[str] = Counter()
    allocatable = node["status"].get("allocatable") or {}
    for resource, amount in allocatable.items():
        if "/" in resource:
            free[resource] = int(amount)
    for pod in pods:
        if _is_on(pod, node):
            free.subtract(limits(pod))
    return free


def fits(pod: Json, node: Json, pods: Iterable[Json]) -> bool:
    """Whether a node has what a pod asks for: kube-scheduler's NodeResourcesFit. No claimed volume is ever there."""
    if pod["spec"].get("volumes"):
        return False
    free = free_amounts(node, pods)
    return all(amount <= free[resource] for resource, amount in limits(pod).items())


def _is_on(pod: Json, node: Json) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return pod["spec"].get("nodeName") == node["metadata"]["name"] and phase not in ENDED
