"""What the containers of a ResourceClaim get. Kubelet names the claim, and the claim names its GPUs.

Source of the fields: k8s.io/api/resource/v1, types.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.domain.dra.device_classes import CORE_CLASS, SHARE_CLASS
from gpuagent.domain.dra.gpu_sets import members_of
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, Grant
from gpuagent.domain.sharing.mode import DRA_DRIVER, Isolates, Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit

_OF_LIMITS = "resource.kubernetes.io/extended-resource-claim"
_KINDS = {
    Mode.CORE_MEM: Kind.MEMORY_CORE_MEM,
    Mode.CGPU: Kind.MEMORY_CGPU,
    Mode.MPS: Kind.MEMORY_MPS,
    Mode.SHARE: Kind.MEMORY_SHARE,
}


def claimed_gpus(
    claim: Mapping[str, Any], pool: str, gpus: Mapping[str, Gpu], unit: MemoryUnit
) -> tuple[ClaimedGpu, ...]:
    """The GPUs that a claim (decoded JSON) has on this node.

    Args:
        claim: the ResourceClaim.
        pool: name of the node's pool.
        gpus: of the node, by UUID.
        unit: in which memory is shared out.

    Raises:
        Refusal: the claim is not allocated, or its allocation cannot be served.
    """
    found = tuple(gpu for one in _results(claim) for gpu in _claimed(one, pool, gpus, unit))
    if not found:
        raise Refusal(Reason.UNKNOWN_DEVICE, f"the claim has no device of {DRA_DRIVER} allocated")
    if len({(one.memory_mib, one.cores) for one in found if not one.whole}) + any(one.whole for one in found) > 1:
        text = "the claim has different shares, and a container can have one size: make a claim for each size"
        raise Refusal(Reason.MIXED_RESOURCES, text)
    if len({one.uuid for one in found}) < len(found):
        text = "the claim has two shares of one GPU, and a container can have one: make one request for both"
        raise Refusal(Reason.MIXED_RESOURCES, text)
    if CORE_CLASS in _classes(claim) and not (found[0].whole or found[0].cores):
        text = f"a share of {CORE_CLASS} needs compute too: name cores beside memory in the request"
        raise Refusal(Reason.CORE_MEM_BOTH, text)
    return found


def has_device(claim: Mapping[str, Any]) -> bool:
    """Whether a device of this driver is allocated to the claim."""
    return bool(_results(claim))


def _results(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    devices = mapping(mapping(mapping(claim.get("status")).get("allocation")).get("devices"))
    return [one for one in mappings(devices.get("results")) if one.get("driver") == DRA_DRIVER]


def _claimed(result: Mapping[str, Any], pool: str, gpus: Mapping[str, Gpu], unit: MemoryUnit) -> Iterator[ClaimedGpu]:
    """The GPUs of one device: a GPU of which the claim has a share or all, or a set of whole GPUs."""
    device, consumed = text(result.get("device")), mapping(result.get("consumedCapacity"))
    here = gpus if result.get("pool") == pool else {}
    members = [here[uuid] for uuid in members_of(device, here)]
    given = [gpu for gpu in here.values() if device_name(gpu) == device] or sorted(members, key=lambda gpu: gpu.index)
    if not given:
        raise Refusal(Reason.UNKNOWN_DEVICE, f"device {device} of pool {text(result.get('pool'))} is not on this node")
    memory, cores = (amount(text(consumed.get(name, "0"))) for name in ("memory", "cores"))
    if (not memory and not members) or cores is None:
        raise Refusal(Reason.INTERNAL, f"device {device}: the allocation does not say how much of it is consumed")
    for gpu in given:
        memory_mib = gpu.memory_mib if members else (memory or 0) // 2**20
        yield ClaimedGpu(
            request=text(result.get("request")).partition("/")[0],
            pool=pool,
            device=device,
            share_id=text(result.get("shareID")),
            uuid=gpu.uuid,
            memory_mib=memory_mib,
            cores=cores,
            whole=memory_mib > gpu.memory_mib - unit.mib and not cores,
        )


def reserved_for(claim: Mapping[str, Any]) -> frozenset[str]:
    """UIDs of the pods that the scheduler reserved the claim for."""
    consumers = mappings(mapping(claim.get("status")).get("reservedFor"))
    return frozenset(text(one.get("uid")) for one in consumers if one.get("resource") == "pods")


def check_alone(claim: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod]) -> None:
    """Check that no container uses the claim and another one. Raises Refusal."""
    near = [other for other in others if other.namespace == claim.namespace and other.name != claim.name]
    for pod in pods:
        users = pod.claims.get(claim.name, ()) if pod.name.namespace == claim.namespace else ()
        for other in near:
            if both := {*users} & {*pod.claims.get(other.name, ())}:
                words = f"container {min(both)} of pod {pod.name} has claim {other.name} as well"
                raise Refusal(Reason.MIXED_RESOURCES, f"{words}, and a container can have one: make one claim for both")


def container_parts(claim: Mapping[str, Any], gpus: tuple[ClaimedGpu, ...]) -> tuple[tuple[ClaimedGpu, ...], ...]:
    """The claim's GPUs, by those that a container gets together.

    The scheduler makes one claim for all GPUs in a pod's limits, with a request for each container.
    """
    annotations = mapping(mapping(claim.get("metadata")).get("annotations"))
    if annotations.get(_OF_LIMITS) != "true":
        return (gpus,)
    requests = dict.fromkeys(one.request for one in gpus)
    return tuple(tuple(one for one in gpus if one.request == request) for request in requests)


def must_isolate(claim: Mapping[str, Any], gpus: tuple[ClaimedGpu, ...]) -> frozenset[Isolates]:
    """The isolation that the classes of the GPUs' requests promise. Only shares have a promise."""
    if gpus[0].whole or _classes(claim) == {SHARE_CLASS}:
        return frozenset()
    return frozenset({Isolates.MEMORY, Isolates.COMPUTE} if gpus[0].cores else {Isolates.MEMORY})


def grants(gpus: tuple[ClaimedGpu, ...], mode: Mode, known: Mapping[str, Gpu], access: DeviceAccess) -> Iterator[Grant]:
    """The memory and the compute of a claim's containers, as they would get them in `mode`.

    The GPUs are in bus order: MPS counts them so, and so do limits by number.
    """
    devices = sorted((known[one.uuid] for one in gpus), key=lambda gpu: gpu.pci_bus_id)
    first = gpus[0]
    if first.whole:
        yield access.grant(DRA_DRIVER, Kind.WHOLE_TOPOLOGY, 1, devices)
        return
    yield access.grant(DRA_DRIVER, _KINDS[mode], first.memory_mib // access.unit.mib, devices)
    if first.cores and mode is Mode.CORE_MEM:
        yield access.grant(DRA_DRIVER, Kind.CORE_CORE_MEM, first.cores, devices)


def merged(parts: list[Grant]) -> Grant:
    """One grant with what all of them have."""
    first = parts[0]
    for one in parts[1:]:
        first = replace(
            first,
            env={**first.env, **one.env},
            device_nodes=tuple(dict.fromkeys((*first.device_nodes, *one.device_nodes))),
            mounts=tuple(dict.fromkeys((*first.mounts, *one.mounts))),
        )
    return first


def _classes(claim: Mapping[str, Any]) -> set[str]:
    """Classes of the requests, and of the alternatives of requests, that have a device of this driver."""
    given = {text(one.get("request")) for one in _results(claim)}
    found = {}
    for one in mappings(mapping(mapping(claim.get("spec")).get("devices")).get("requests")):
        name = text(one.get("name"))
        found[name] = mapping(one.get("exactly"))
        found |= {f"{name}/{text(other.get('name'))}": other for other in mappings(one.get("firstAvailable"))}
    return {text(request.get("deviceClassName")) for name, request in found.items() if name in given}
