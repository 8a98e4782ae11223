"""What the containers of a ResourceClaim get. Kubelet names the claim, and the claim names its GPUs.

Source of the fields: k8s.io/api/resource/v1, types.go.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuagent.domain.dra.device_classes import CORE_CLASS, SHARE_CLASS
from gpuagent.domain.dra.gpu_sets import members_of
from gpuagent.domain.dra.requests import check_requests, requests_of
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, Grant
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, Isolates, Kind, Mode
from gpuagent.domain.sharing.units import MIB, MemoryUnit

Json = Mapping[str, Any]
GpusByUuid = Mapping[str, Gpu]
ClaimedGpus = tuple[ClaimedGpu, ...]
_KINDS = {
    Mode.CORE_MEM: Kind.MEMORY_CORE_MEM,
    Mode.CGPU: Kind.MEMORY_CGPU,
    Mode.MPS: Kind.MEMORY_MPS,
    Mode.SHARE: Kind.MEMORY_SHARE,
}


def claimed_gpus(claim: Json, pool: str, gpus: GpusByUuid, unit: MemoryUnit) -> ClaimedGpus:
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
    requests = {text(result.get("request")) for result in results}
    check_requests(claim, requests)
    claimed: list[ClaimedGpu] = []
    for result in results:
        claimed.extend(_claimed(result, pool, gpus, unit))
    _check_sums(claimed, gpus)
    _check_compute(claim, claimed)
    return tuple(claimed)


def _check_sums(claimed: list[ClaimedGpu], gpus: GpusByUuid) -> None:
    """A claim may have several shares of a GPU, and together no more than the GPU."""
    shares: dict[str, list[ClaimedGpu]] = {}
    for share in claimed:
        if not share.admin:
            shares.setdefault(share.uuid, []).append(share)
    for uuid, of_gpu in shares.items():
        gpu = gpus[uuid]
        count = len(of_gpu)
        # A single share was compared with the GPU before.
        if count > 1 and not _fit_together(of_gpu, gpu):
            text = f"the claim has {count} shares of GPU {gpu.index}, which are more than the GPU"
            raise Refusal(Reason.CLAIM_INVALID, f"{text}: create the claim again")


def _fit_together(shares: list[ClaimedGpu], gpu: Gpu) -> bool:
    """Whether a GPU has several shares beside each other."""
    memory_mib = sum(share.memory_mib for share in shares)
    cores = sum(share.cores for share in shares)
    has_enough = memory_mib <= gpu.memory_mib and cores <= CORE_PERCENT_PER_GPU
    return has_enough and not any(share.whole for share in shares)


def _check_compute(claim: Json, claimed: list[ClaimedGpu]) -> None:
    """The class promises isolated compute, and a share without cores has no limit that could be isolated."""
    classes = _classes(claim)
    for gpu in claimed:
        has_compute = gpu.unlimited or bool(gpu.cores)
        if not has_compute and classes.get(gpu.request) == CORE_CLASS:
            words = f"a share of {CORE_CLASS} needs compute too: name cores beside memory in the request"
            raise Refusal(Reason.CORE_MEM_BOTH, words)


def has_device(claim: Json) -> bool:
    """Whether a device of this driver is allocated to the claim."""
    return bool(_results(claim))


def has_device_of(claim: Json, prepared: PreparedClaim) -> bool:
    """Whether the claim still has one of the devices with which it was prepared."""
    devices = {(gpu.pool, gpu.device) for gpu in prepared.gpus}
    allocated = set()
    for result in _results(claim):
        pool = result.get("pool")
        device = result.get("device")
        allocated.add((pool, device))
    return bool(allocated & devices)


def _results(claim: Json) -> list[Json]:
    """The devices of this driver that the scheduler allocated."""
    devices = mapping_at(claim, "status", "allocation", "devices")
    results = mappings(devices.get("results"))
    return [result for result in results if result.get("driver") == DRA_DRIVER]


def _claimed(result: Json, pool: str, gpus: GpusByUuid, unit: MemoryUnit) -> Iterator[ClaimedGpu]:
    """The GPUs of one device: a GPU of which the claim has a share or all, or a set of whole GPUs."""
    device = text(result.get("device"))
    # Containers name a request, and not the alternative of it that was allocated.
    request, _, _ = text(result.get("request")).partition("/")
    is_admin = result.get("adminAccess") is True
    single: list[Gpu] = []
    members: list[Gpu] = []
    if result.get("pool") == pool:
        single = [gpu for gpu in gpus.values() if device_name(gpu) == device]
        members = _members(device, gpus)
    devices = single or members
    if not devices:
        pool_name = text(result.get("pool"))
        words = f"device {device} of pool {pool_name} is not on this node"
        raise Refusal(
            Reason.UNKNOWN_DEVICE, f"{words}: delete every pod of the claim, so that the scheduler chooses again"
        )
    for gpu in devices:
        memory_mib = gpu.memory_mib
        cores = 0
        if is_admin:
            memory_mib = 0  # a monitor uses nothing
        elif not members and not gpu.only_whole:
            memory_mib, cores = _consumed(result, gpu, unit)
        # Less than a unit is left, so no other claim can have a share.
        has_all_memory = memory_mib > gpu.memory_mib - unit.mib
        yield ClaimedGpu(
            request=request,
            pool=pool,
            device=device,
            share_id=text(result.get("shareID")),
            uuid=gpu.uuid,
            memory_mib=memory_mib,
            cores=cores,
            whole=has_all_memory and not cores and not is_admin,
            admin=is_admin,
        )


def _members(device: str, gpus: GpusByUuid) -> list[Gpu]:
    """The GPUs of a set, in NVML's order; none if the device is not a set of this node's GPUs."""
    members = [gpus[uuid] for uuid in members_of(device, gpus)]
    return sorted(members, key=lambda gpu: gpu.index)


def _consumed(result: Json, gpu: Gpu, unit: MemoryUnit) -> tuple[int, int]:
    """MiB of memory and percent of compute that a claim consumes of a GPU."""
    is_share = "shareID" in result or "consumedCapacity" in result
    if not is_share:
        # The device was not published as one that can be shared, so the claim has it alone.
        return gpu.memory_mib, 0
    consumed = mapping(result.get("consumedCapacity"))
    given_memory = text(consumed.get("memory", "0"))
    given_cores = text(consumed.get("cores", "0"))
    memory = amount(given_memory)
    cores = amount(given_cores)
    if not memory or cores is None:
        device = text(result.get("device"))
        words = f"device {device}: the allocation does not say how much of it is consumed"
        raise Refusal(Reason.INTERNAL, words)
    memory_mib = memory // MIB
    # The scheduler keeps to the slice. So the unit or the GPU was changed later, or the claim was written by others.
    problem = ""
    if memory_mib < unit.mib:
        problem = (
            f"the claim has {given_memory} of memory, and the node shares out units of {unit}: "
            f"create the claim again, with {unit.mib}Mi or more"
        )
    elif memory_mib >= gpu.memory_mib + unit.mib:
        problem = (
            f"the claim has {given_memory} of memory, and GPU {gpu.index} has {gpu.memory_mib} MiB: "
            "create the claim again"
        )
    elif cores > CORE_PERCENT_PER_GPU:
        problem = (
            f"the claim has {cores} cores, and a GPU has {CORE_PERCENT_PER_GPU}: cores are percent of its compute. "
            f"Create the claim again, with {CORE_PERCENT_PER_GPU} or less"
        )
    if problem:
        raise Refusal(Reason.CLAIM_INVALID, problem)
    return memory_mib, cores


def tolerations_of(claim: Json, device: str | None = None) -> list[Json]:
    """The tolerations with which the scheduler gave a device to the claim; None for those of all devices."""
    tolerations: list[Json] = []
    for result in _results(claim):
        name = text(result.get("device"))
        if device in {None, name}:
            tolerations.extend(mappings(result.get("tolerations")))
    return tolerations


def reserved_for(claim: Json) -> frozenset[str]:
    """UIDs of the pods that the scheduler reserved the claim for."""
    status = mapping(claim.get("status"))
    uids = set()
    for consumer in mappings(status.get("reservedFor")):
        if consumer.get("resource") == "pods":
            uids.add(text(consumer.get("uid")))
    return frozenset(uids)


def must_isolate(claim: Json, gpus: ClaimedGpus) -> frozenset[Isolates]:
    """The isolation that the classes of the GPUs' requests promise. Only shares have a promise."""
    classes = _classes(claim)
    promised: set[Isolates] = set()
    for gpu in gpus:
        if gpu.unlimited or classes.get(gpu.request) == SHARE_CLASS:
            continue
        promised.add(Isolates.MEMORY)
        if gpu.cores:
            promised.add(Isolates.COMPUTE)
    return frozenset(promised)


def grants(gpus: ClaimedGpus, mode: Mode, known: GpusByUuid, access: DeviceAccess) -> Iterator[Grant]:
    """The memory and the compute of a container, as it would get them in `mode`.

    The GPUs are in bus order: MPS counts them so, and so do limits by number.

    Args:
        gpus: each once, all of one size.
        mode: whose isolation the container gets.
        known: GPUs of the node, by UUID.
        access: how the container gets devices.
    """
    devices = [known[claimed.uuid] for claimed in gpus]
    devices.sort(key=lambda gpu: gpu.pci_bus_id)
    first = gpus[0]
    if first.unlimited:
        yield access.grant(DRA_DRIVER, Kind.WHOLE_TOPOLOGY, 1, devices)
        return
    memory_kind = _KINDS[mode]
    units = first.memory_mib // access.unit.mib
    yield access.grant(DRA_DRIVER, memory_kind, units, devices)
    if first.cores and mode is Mode.CORE_MEM:
        yield access.grant(DRA_DRIVER, Kind.CORE_CORE_MEM, first.cores, devices)


def _classes(claim: Json) -> dict[str, str]:
    """The request of each device of this driver, as containers name it, to the class of what was allocated for it."""
    requests = requests_of(claim)
    classes = {}
    for result in _results(claim):
        allocated = text(result.get("request"))
        name, _, _ = allocated.partition("/")
        request = requests.get(allocated, {})
        classes[name] = text(request.get("deviceClassName"))
    return classes
