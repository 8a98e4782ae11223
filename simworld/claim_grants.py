"""What a container with claims has to get, by the documents, from the parts of GPUs that a scheduler allocated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.simulation.boxes import BoxGpu
from simworld.parts.claim_scheduler import Part
from simworld.parts.isolation import CORES_LIMIT, MEMORY_LIMIT

MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class GpuUse:
    """All that one container has of a GPU.

    Attributes:
        gpu: the GPU.
        gib: of its memory.
        cores: percent of its compute; 0 for no limit.
        is_limited: whether it is a share; else the GPU is whole, or only looked at.
        is_watched: whether it is only looked at.
    """

    gpu: BoxGpu
    gib: int
    cores: int
    is_limited: bool
    is_watched: bool


def gpu_uses(parts: Iterable[Part], gpus: Sequence[BoxGpu]) -> list[GpuUse]:
    """What a container has of each GPU, in bus order: two shares of one GPU are one.

    Args:
        parts: that the container names.
        gpus: of its node.
    """
    parts_by_uuid: dict[str, list[Part]] = {}
    for part in parts:
        parts_by_uuid.setdefault(part.uuid, []).append(part)
    in_bus_order = sorted(gpus, key=lambda gpu: gpu.pci_bus_id)
    return [_gpu_use(gpu, parts_by_uuid[gpu.uuid]) for gpu in in_bus_order if gpu.uuid in parts_by_uuid]


def _gpu_use(gpu: BoxGpu, parts: Sequence[Part]) -> GpuUse:
    # A container that has a share of the GPU and watches it as well has the share.
    used = [part for part in parts if not part.watches]
    cores = sum(part.cores for part in used)
    gib = sum(mib_of(part, gpu) for part in used) // MIB_PER_GIB
    has_whole = any(is_whole(part, gpu) for part in used)
    return GpuUse(gpu, gib, cores, is_limited=bool(used) and not has_whole, is_watched=not used)


def is_impossible(uses: Sequence[GpuUse], *, isolates: bool) -> bool:
    """Whether a container cannot have this: GPUs to use and others to watch, or what an isolation driver cannot limit.

    Arguments as `expected_variables`.
    """
    is_mixed = len({use.is_watched for use in uses}) > 1
    sizes = {(use.gib, use.cores) if use.is_limited else () for use in uses}
    is_limited = any(use.is_limited for use in uses)
    return is_mixed or (isolates and is_limited and len(sizes) > 1)


def mib_of(part: Part, gpu: BoxGpu) -> int:
    """What a part takes; all of the GPU if the API server knows no capacity that is consumed."""
    if part.watches:
        return 0
    return part.mib or gpu.memory_mib


def is_whole(part: Part, gpu: BoxGpu) -> bool:
    """Whether a part is all of the GPU, without a limit of its compute."""
    has_all_memory = mib_of(part, gpu) // MIB_PER_GIB >= gpu.memory_mib // MIB_PER_GIB
    return has_all_memory and not part.cores


def expected_variables(uses: Sequence[GpuUse], *, isolates: bool) -> dict[str, str | None]:
    """Variables of a container, by name; None for one that it must not have.

    Args:
        uses: of its GPUs, in bus order.
        isolates: whether the node has an isolation driver.
    """
    limited = [use for use in uses if use.is_limited]
    variables: dict[str, str | None] = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(use.gpu.uuid for use in uses),
        "ALIYUN_COM_GPU_MEM_IDX": _joined(use.gpu.minor for use in limited),
        "ALIYUN_COM_GPU_MEM_CONTAINER": _amounts(use.gib for use in limited),
        MEMORY_LIMIT: None,
        CORES_LIMIT: None,
    }
    if isolates:
        variables[MEMORY_LIMIT] = _amounts(use.gib for use in limited)
        variables[CORES_LIMIT] = _amounts(use.cores for use in limited if use.cores)
    return variables


def wrong_variables(env: Mapping[str, str], expected: Mapping[str, str | None]) -> str:
    """What differs in a container's environment, in words; empty if nothing does."""
    differing = []
    for name, value in expected.items():
        if env.get(name) != value:
            differing.append(f"{name} is {env.get(name)!r} instead of {value!r}")
    return ", ".join(differing)


def _joined(numbers: Iterable[int]) -> str | None:
    return ",".join(map(str, numbers)) or None


def _amounts(amounts: Iterable[int]) -> str | None:
    """Equal amounts of several GPUs stand there once."""
    texts = list(map(str, amounts))
    return ",".join(texts if len(set(texts)) > 1 else texts[:1]) or None
