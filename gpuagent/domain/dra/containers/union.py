"""The GPUs of a container from all that it names, and the environment for them."""

from collections.abc import Iterable
from dataclasses import replace

from gpuagent.domain.dra.prepare import ClaimedGpus
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, Grant, Mount
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import Mode


def together(parts: Iterable[tuple[PreparedClaim, ClaimedGpu]]) -> ClaimedGpus:
    """Each GPU once, with all that a container has of it. A container can use two shares of one GPU as one.

    Raises:
        Refusal: the container has GPUs to use and others to watch.
    """
    gpus: dict[str, ClaimedGpu] = {}
    for _, gpu in parts:
        earlier = gpus.get(gpu.uuid)
        gpus[gpu.uuid] = gpu if earlier is None else _sum(earlier, gpu)
    is_watching = {gpu.admin for gpu in gpus.values()}
    if len(is_watching) > 1:
        raise Refusal(
            Reason.MIXED_RESOURCES,
            "a container has GPUs with adminAccess and others, and can have one kind: use them in two containers",
        )
    return tuple(gpus.values())


def _sum(first: ClaimedGpu, second: ClaimedGpu) -> ClaimedGpu:
    return replace(
        first,
        memory_mib=first.memory_mib + second.memory_mib,
        cores=first.cores + second.cores,
        whole=first.whole or second.whole,
        admin=first.admin and second.admin,
    )


def is_isolated(parts: Iterable[tuple[PreparedClaim, ClaimedGpu]]) -> bool:
    """Whether one of the shares was prepared with an isolation driver."""
    return any(claim.layer != NONE and not gpu.unlimited for claim, gpu in parts)


def sizes(gpus: ClaimedGpus, mode: Mode) -> list[ClaimedGpus]:
    """The GPUs by the size of their shares, whole ones together. Compute makes a size where `mode` limits it."""
    by_size: dict[tuple[int, int], list[ClaimedGpu]] = {}
    for gpu in gpus:
        size = (0, 0) if gpu.unlimited else (gpu.memory_mib, gpu.cores * (mode is Mode.CORE_MEM))
        by_size.setdefault(size, []).append(gpu)
    return [tuple(of_size) for of_size in by_size.values()]


def merged(parts: list[Grant]) -> Grant:
    """One grant for GPUs of one size, of which some grants have the memory and others the compute."""
    env: dict[str, str] = {}
    # Kept in order, each once: the grants of memory and compute have the same GPUs.
    device_nodes: dict[str, None] = {}
    mounts: dict[Mount, None] = {}
    for part in parts:
        env |= part.env
        device_nodes |= dict.fromkeys(part.device_nodes)
        mounts |= dict.fromkeys(part.mounts)
    return replace(
        parts[0],
        env=env,
        device_nodes=tuple(device_nodes),
        mounts=tuple(mounts),
    )


def of_sizes(parts: list[Grant], access: DeviceAccess) -> Grant:
    """One grant with the GPUs of grants for different sizes, in bus order."""
    units: dict[str, int] = {}
    for part in parts:
        if part.kind.is_memory:
            units |= {gpu.uuid: part.units for gpu in part.gpus}
    gpus = [gpu for part in parts for gpu in part.gpus]
    gpus.sort(key=lambda gpu: gpu.pci_bus_id)
    shared = [gpu for gpu in gpus if gpu.uuid in units]
    base = access.grant(parts[0].resource, parts[0].kind, parts[0].units, gpus)
    every = merged(parts)
    env = {**every.env, "NVIDIA_VISIBLE_DEVICES": base.env["NVIDIA_VISIBLE_DEVICES"]}
    if shared:
        env |= access.memory_env(shared, [units[gpu.uuid] for gpu in shared])
    return replace(base, env=env, mounts=every.mounts)
