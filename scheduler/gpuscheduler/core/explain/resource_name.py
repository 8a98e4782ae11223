"""A resource in a pod's limits that no node has: what was probably meant, and what the nodes have instead."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.system.likeness import most_like
from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.limit_claims import OF_A_CLASS

OURS = (GPU_MEM, GPU_CORE, GPU_WHOLE)
_DOMAIN = "aliyun.com"
_OTHERS = ("gpu", "cuda", "mig-")
"""Parts of the names of other projects' resources, such as nvidia.com/mig-1g.10gb and tencent.com/vcuda-core."""
_BY_PART = {resource.partition("/")[2]: resource for resource in OURS}
"""Our resources by the part of the name after the domain."""


def gpu_resources(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the resources in the pod's limits that are about GPUs, or seem to be, each once."""
    spec = mapping(pod.get("spec"))
    names: dict[str, None] = {}
    for key in ("initContainers", "containers"):
        for container in mappings(spec.get(key)):
            limits = mapping_at(container, "resources", "limits")
            names |= {name: None for name in limits if _is_about_gpus(name)}
    return tuple(names)


def node_resources(node: Mapping[str, Any]) -> Iterator[str]:
    """Names of the resources of a Node object that are about GPUs and above zero.

    The capacity counts, because it has unhealthy devices, too.
    """
    status = mapping(node.get("status"))
    for key in ("capacity", "allocatable"):
        for name, amount in mapping(status.get(key)).items():
            if _is_about_gpus(name) and amount not in ("0", 0):
                yield name


def unknown_resource(
    pod: Mapping[str, Any],
    nodes_with: Mapping[str, int],
    classes: Collection[str] | None,
    claim_nodes: int,
) -> str:
    """That no node has one of the pod's resources for GPUs; empty if they are known.

    Args:
        pod: the Pod object (decoded JSON).
        nodes_with: number of nodes by resource.
        classes: resources that DeviceClasses serve; None if that is not known.
        claim_nodes: number of nodes that serve claims only.
    """
    served = classes or ()
    there = {resource: nodes_with.get(resource, 0) for resource in OURS}
    if GPU_WHOLE in served:
        there[GPU_WHOLE] += claim_nodes
    for name in gpu_resources(pod):
        domain, _, _ = name.partition("/")
        may_be_of_a_class = domain == OF_A_CLASS or (classes is None and domain != _DOMAIN)
        is_known = name in OURS or name in nodes_with or name in served
        if not is_known and not may_be_of_a_class:
            return f"asks for {words.shown(name)}, which no node has; {_instead(name, there, claim_nodes)}"
    return ""


def _instead(name: str, there: Mapping[str, int], claim_nodes: int) -> str:
    """What to ask for."""
    meant = _meant(name)
    if there.get(meant):
        has = words.count_are(there[meant], "node", "has", "have")
        return f"did you mean {meant}, which {has}?"
    offers = []
    for resource, count in there.items():
        if count:
            offers.append(f"{resource} ({words.count_of(count, 'node')})")
    if claim_nodes:
        offers.append(f"GPUs in a claim ({words.count_of(claim_nodes, 'node')})")
    if offers:
        return f"ask for {' or '.join(offers)} instead"
    return f"did you mean {meant}? No node has that now" if meant else "no node has GPUs of this project"


def _meant(name: str) -> str:
    """The resource of this project that has the most similar name; empty if none is similar."""
    _, _, written = name.lower().partition("/")
    # Others count memory and compute, too, in names that are longer than ours: gpumem-percentage, vcuda-core.
    if "mem" in written:
        return GPU_MEM
    if "core" in written:
        return GPU_CORE
    part = most_like(written[: words.MOST_SHOWN], _BY_PART)
    return _BY_PART.get(part, "")


def _is_about_gpus(name: object) -> bool:
    if not isinstance(name, str) or "/" not in name:
        return False
    domain, _, part = name.lower().partition("/")
    is_of_others = domain == OF_A_CLASS or any(other in part for other in _OTHERS)
    return is_of_others or (domain == _DOMAIN and bool(_meant(name)))
