"""What the containers of a ResourceClaim get. Kubelet names the claim, and the claim names its GPUs.

Source of the fields: k8s.io/api/resource/v1, types.go.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.domain.dra.device_classes import CORE_CLASS, SHARE_CLASS
from gpuagent.domain.dra.gpu_sets import members_of
from gpuagent.domain.dra.requests import asked, check_requests
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, Grant, Mount
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, Isolates, Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit

MIB = 2**20
OF_LIMITS = "resource.kubernetes.io/extended-resource-claim"
ClaimedGpus = tuple[ClaimedGpu, ...]
_KINDS = {
    Mode.CORE_MEM: Kind.MEMORY_CORE_MEM,
    Mode.CGPU: Kind.MEMORY_CGPU,
    Mode.MPS: Kind.MEMORY_MPS,
    Mode.SHARE: Kind.MEMORY_SHARE,
}


def claimed_gpus(claim: Mapping[str, Any], pool: str, gpus: Mapping[str, Gpu], unit: MemoryUnit) -> ClaimedGpus:
    """The GPUs that a claim (decoded JSON) has on this node.

    Args:
        claim: the ResourceClaim.
        pool: name of the node's pool.
        gpus: of the node, by UUID.
        unit: in which memory is shared out.

    Raises:
        Refusal: the claim is not allocated, or its allocation cannot be served.
    """
    results = _results(claim)
    if not results:
        raise Refusal(Reason.UNKNOWN_DEVICE, f"the claim has no device of {DRA_DRIVER} allocated")
    check_requests(claim, {text(result.get("request")) for result in results})
    claimed: list[ClaimedGpu] = []
    for result in results:
        claimed.extend(_claimed(result, pool, gpus, unit))
    _check_one_size(claimed)
    lacks_compute = not (claimed[0].unlimited or claimed[0].cores)
    if lacks_compute and CORE_CLASS in _classes(claim):
        words = f"a share of {CORE_CLASS} needs compute too: name cores beside memory in the request"
        raise Refusal(Reason.CORE_MEM_BOTH, words)
    return tuple(claimed)


def _check_one_size(claimed: Collection[ClaimedGpu]) -> None:
    """A container has one environment, so all GPUs of a claim have to be of one size."""
    used = [gpu for gpu in claimed if not gpu.admin]
    if used and len(used) < len(claimed):
        words = (
            "the claim has GPUs with adminAccess and others, and a container can have one kind: make a claim for each"
        )
        raise Refusal(Reason.MIXED_RESOURCES, words)
    shares = {(gpu.memory_mib, gpu.cores) for gpu in used if not gpu.whole}
    has_whole = any(gpu.whole for gpu in used)
    if len(shares) + has_whole > 1:
        words = "the claim has different shares, and a container can have one size: make a claim for each size"
        raise Refusal(Reason.MIXED_RESOURCES, words)
    if len({gpu.uuid for gpu in used}) < len(used):
        words = "the claim has two shares of one GPU, and a container can have one: make one request for both"
        raise Refusal(Reason.MIXED_RESOURCES, words)


def has_device(claim: Mapping[str, Any]) -> bool:
    """Whether a device of this driver is allocated to the claim."""
    return bool(_results(claim))


def has_device_of(claim: Mapping[str, Any], prepared: PreparedClaim) -> bool:
    """Whether the claim still has one of the devices with which it was prepared."""
    allocated = {(result.get("pool"), result.get("device")) for result in _results(claim)}
    return any((gpu.pool, gpu.device) in allocated for gpu in prepared.gpus)


def _results(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The devices of this driver that the scheduler allocated."""
    allocation = mapping(mapping(claim.get("status")).get("allocation"))
    devices = mapping(allocation.get("devices"))
    return [result for result in mappings(devices.get("results")) if result.get("driver") == DRA_DRIVER]


def _claimed(result: Mapping[str, Any], pool: str, gpus: Mapping[str, Gpu], unit: MemoryUnit) -> Iterator[ClaimedGpu]:
    """The GPUs of one device: a GPU of which the claim has a share or all, or a set of whole GPUs."""
    device = text(result.get("device"))
    is_admin = result.get("adminAccess") is True
    members: list[Gpu] = []
    devices: list[Gpu] = []
    if result.get("pool") == pool:
        members = [gpus[uuid] for uuid in members_of(device, gpus)]
        members.sort(key=lambda gpu: gpu.index)
        devices = [gpu for gpu in gpus.values() if device_name(gpu) == device]
        devices = devices or members
    if not devices:
        raise Refusal(Reason.UNKNOWN_DEVICE, f"device {device} of pool {text(result.get('pool'))} is not on this node")
    for gpu in devices:
        cores = 0
        if is_admin:
            memory_mib = 0
        elif members or gpu.only_whole:
            memory_mib = gpu.memory_mib
        else:
            memory_mib, cores = _consumed(result, gpu, unit)
        has_all_memory = memory_mib > gpu.memory_mib - unit.mib
        yield ClaimedGpu(
            request=text(result.get("request")).partition("/")[0],
            pool=pool,
            device=device,
            share_id=text(result.get("shareID")),
            uuid=gpu.uuid,
            memory_mib=memory_mib,
            cores=cores,
            whole=has_all_memory and not cores and not is_admin,
            admin=is_admin,
        )


def _consumed(result: Mapping[str, Any], gpu: Gpu, unit: MemoryUnit) -> tuple[int, int]:
    """MiB of memory and percent of compute that a share consumes of a GPU."""
    consumed = mapping(result.get("consumedCapacity"))
    memory = amount(text(consumed.get("memory", "0")))
    cores = amount(text(consumed.get("cores", "0")))
    if not memory or cores is None:
        words = f"device {text(result.get('device'))}: the allocation does not say how much of it is consumed"
        raise Refusal(Reason.INTERNAL, words)
    memory_mib = memory // MIB
    if memory_mib < unit.mib:
        words = f"the claim has {text(consumed.get('memory'))} of memory, and the node shares out units of {unit}"
        raise Refusal(Reason.CLAIM_INVALID, f"{words}: create the claim again, with {unit.mib}Mi or more")
    if memory_mib >= gpu.memory_mib + unit.mib:
        words = f"the claim has {text(consumed.get('memory'))} of memory, and GPU {gpu.index} has {gpu.memory_mib} MiB"
        raise Refusal(Reason.CLAIM_INVALID, f"{words}: create the claim again")
    if cores > CORE_PERCENT_PER_GPU:
        words = f"the claim has {cores} cores, and a GPU has {CORE_PERCENT_PER_GPU}: cores are percent of its compute"
        raise Refusal(Reason.CLAIM_INVALID, f"{words}. Create the claim again, with {CORE_PERCENT_PER_GPU} or less")
    return memory_mib, cores


def tolerations_of(claim: Mapping[str, Any], device: str) -> list[Mapping[str, Any]]:
    """The tolerations with which the scheduler gave a device to the claim."""
    tolerations: list[Mapping[str, Any]] = []
    for result in _results(claim):
        if text(result.get("device")) == device:
            tolerations.extend(mappings(result.get("tolerations")))
    return tolerations


def reserved_for(claim: Mapping[str, Any]) -> frozenset[str]:
    """UIDs of the pods that the scheduler reserved the claim for."""
    consumers = mappings(mapping(claim.get("status")).get("reservedFor"))
    pods = [consumer for consumer in consumers if consumer.get("resource") == "pods"]
    return frozenset(text(pod.get("uid")) for pod in pods)


def check_alone(claim: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod]) -> None:
    """Check that no container uses the claim and another one. Raises Refusal."""
    near = [other for other in others if other.namespace == claim.namespace and other.name != claim.name]
    for pod in pods:
        if pod.name.namespace != claim.namespace:
            continue
        users = set(pod.claims.get(claim.name, ()))
        for other in near:
            both = users.intersection(pod.claims.get(other.name, ()))
            if both:
                user = f"container {min(both)} of pod {pod.name}"
                words = f"{user} has claim {other.name} as well"
                raise Refusal(Reason.MIXED_RESOURCES, f"{words}, and a container can have one: make one claim for both")


def container_parts(claim: Mapping[str, Any], gpus: ClaimedGpus) -> tuple[ClaimedGpus, ...]:
    """The claim's GPUs, by those that a container gets together.

    The scheduler makes one claim for all GPUs in a pod's limits, with a request for each container.
    """
    annotations = mapping(mapping(claim.get("metadata")).get("annotations"))
    if annotations.get(OF_LIMITS) != "true":
        return (gpus,)
    parts: dict[str, list[ClaimedGpu]] = {}
    for gpu in gpus:
        parts.setdefault(gpu.request, []).append(gpu)
    return tuple(tuple(part) for part in parts.values())


def must_isolate(claim: Mapping[str, Any], gpus: ClaimedGpus) -> frozenset[Isolates]:
    """The isolation that the classes of the GPUs' requests promise. Only shares have a promise."""
    first = gpus[0]  # all have one size
    if first.unlimited or _classes(claim) == {SHARE_CLASS}:
        return frozenset()
    if first.cores:
        return frozenset({Isolates.MEMORY, Isolates.COMPUTE})
    return frozenset({Isolates.MEMORY})


def grants(gpus: ClaimedGpus, mode: Mode, known: Mapping[str, Gpu], access: DeviceAccess) -> Iterator[Grant]:
    """The memory and the compute of a claim's containers, as they would get them in `mode`.

    The GPUs are in bus order: MPS counts them so, and so do limits by number.
    """
    # Two requests with adminAccess may have the same GPU.
    uuids = dict.fromkeys(claimed.uuid for claimed in gpus)
    devices = sorted((known[uuid] for uuid in uuids), key=lambda gpu: gpu.pci_bus_id)
    first = gpus[0]
    if first.unlimited:
        yield access.grant(DRA_DRIVER, Kind.WHOLE_TOPOLOGY, 1, devices)
        return
    yield access.grant(DRA_DRIVER, _KINDS[mode], first.memory_mib // access.unit.mib, devices)
    if first.cores and mode is Mode.CORE_MEM:
        yield access.grant(DRA_DRIVER, Kind.CORE_CORE_MEM, first.cores, devices)


def merged(parts: list[Grant]) -> Grant:
    """One grant with what all of them have."""
    first = parts[0]
    env: dict[str, str] = {}
    device_nodes: dict[str, None] = {}
    mounts: dict[Mount, None] = {}
    for part in parts:
        env |= part.env
        device_nodes |= dict.fromkeys(part.device_nodes)
        mounts |= dict.fromkeys(part.mounts)
    return replace(first, env=env, device_nodes=tuple(device_nodes), mounts=tuple(mounts))


def _classes(claim: Mapping[str, Any]) -> set[str]:
    """Classes of the requests, and of the alternatives of requests, that have a device of this driver."""
    given = {text(result.get("request")) for result in _results(claim)}
    requests = [request for name, request in asked(claim).items() if name in given]
    return {text(request.get("deviceClassName")) for request in requests}
