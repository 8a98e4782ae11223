"""Amounts of extended resources: what pods ask for, and what nodes have left, as a kube-scheduler counts it."""

from collections import Counter
from collections.abc import Iterable, Mapping

from standin.api.objects import Json

ENDED = ("Succeeded", "Failed")
"""Phases of pods that hold nothing any more."""


BY_CLASS = "kube-scheduler-of-claims"
"""Scheduler of the pods for whose extended resources a DeviceClass has devices, so that they get a claim."""


def has_claims(pod: Json) -> bool:
    """Whether a pod has claims, or gets one for its extended resources."""
    return bool(pod["spec"].get("resourceClaims")) or is_by_class(pod)


def is_by_class(pod: Json) -> bool:
    """Whether a pod gets a claim for its extended resources."""
    return bool(pod["spec"].get("schedulerName") == BY_CLASS)


def limits(pod: Json) -> Counter[str]:
    """Amounts that the pod's containers ask for at one time, as kube-scheduler counts them.

    An ordinary init container runs beside the sidecars before it, and gives back what it has.
    """
    if is_by_class(pod):
        return Counter()
    sidecars: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in pod["spec"].get("initContainers") or ():
        amounts = _amounts(container)
        if is_sidecar(container):
            sidecars.update(amounts)
        else:
            most |= sidecars + amounts
    together = sidecars
    for container in pod["spec"]["containers"]:
        together.update(_amounts(container))
    return together | most


def lasting_containers(pod: Json) -> list[Json]:
    """The containers that live as long as the pod: sidecars and those of the app."""
    sidecars = [container for container in pod["spec"].get("initContainers") or () if is_sidecar(container)]
    return [*sidecars, *pod["spec"]["containers"]]


def is_sidecar(container: Json) -> bool:
    """Whether an init container goes on beside the containers after it."""
    return container.get("restartPolicy") == "Always"


def _amounts(container: Json) -> Counter[str]:
    """Amounts of extended resources that a container asks for."""
    resources = container.get("resources") or {}
    limits: Mapping[str, str] = resources.get("limits") or {}
    return Counter({resource: int(amount) for resource, amount in limits.items() if "/" in resource})


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
