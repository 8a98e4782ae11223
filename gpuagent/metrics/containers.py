"""Values of each container on each of its GPUs, and the names that arena reads."""

from collections.abc import Mapping

from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.usage.by_container import GpuSample
from gpuagent.domain.usage.guarantee import MIB
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import Labels, MetricValues, Reading, known, labels

_PodMemory = dict[tuple[PodName, str], int | None]
"""Pod and its way of holding a GPU to the bytes that it uses of it."""

_WHOLE = {None: "exclusive", Mode.DEFAULT: "exclusive", Mode.TOPOLOGY: "topology"}


def containers(reading: Reading) -> MetricValues:
    """The metrics of each container. Series end with their pod."""
    memory_limit: dict[Labels, float | None] = {}
    compute_limit: dict[Labels, float | None] = {}
    claims: dict[Labels, float] = {}
    for (uuid, owner), share in reading.derived.shares.items():
        named = _labels(reading, uuid, owner)
        if named is None:
            continue
        memory_limit[named] = share.memory_bytes
        compute_limit[named] = share.compute
        if share.claim:
            claims[*named, share.claim.name, share.claim.layer] = 1.0
    memory_used: dict[Labels, float | None] = {}
    compute_used: dict[Labels, float | None] = {}
    for (uuid, owner), used in reading.use.by_container.items():
        named = _labels(reading, uuid, owner)
        if named is None:
            continue
        memory_used[named] = used.memory_bytes
        # The measurements of single processes may add up to a little more.
        compute_used[named] = None if used.busy is None else min(1.0, used.busy)
    yield f.CLAIM, claims
    yield f.MEMORY_LIMIT, known(memory_limit)
    yield f.MEMORY_USED, known(memory_used)
    yield f.COMPUTE_LIMIT, known(compute_limit)
    yield f.COMPUTE_USED, known(compute_used)


def _labels(reading: Reading, uuid: str, owner: ContainerRef) -> Labels | None:
    """The labels of a container on a GPU; None if the GPU or the pod is not known."""
    gpu = reading.state.gpus.by_uuid.get(uuid)
    # Without an API server an init container's pod has no name, and that of a claim may not be seen yet.
    if gpu is None or not all(owner.pod):
        return None
    return (*labels(gpu), owner.pod.namespace, owner.pod.name, owner.container)


def arena(reading: Reading) -> MetricValues:
    """One series for each pod on each GPU, and one for a GPU without pods.

    arena adds up the used memory of a GPU's series where `allocate_mode` is ``share``, and takes the last one
    otherwise; of duty cycle and total it takes the last: those are the GPU's own.
    """
    duty: dict[Labels, float | None] = {}
    used: dict[Labels, float | None] = {}
    total: dict[Labels, float | None] = {}
    for uuid, pods in _pods(reading).items():
        gpu = reading.state.gpus.by_uuid[uuid]
        sample = reading.samples.by_uuid.get(uuid, GpuSample(uuid=uuid, at=0.0))
        for (pod, allocate_mode), memory in pods.items():
            series = (reading.node_name, pod.namespace, pod.name, uuid, str(gpu.minor), allocate_mode)
            total[series] = gpu.memory_mib * MIB or None
            duty[series] = None if sample.busy is None else round(sample.busy * 100, 1)
            used[series] = memory if allocate_mode == "share" else sample.memory_used_bytes
    yield f.ARENA_DUTY, known(duty)
    yield f.ARENA_USED, known(used)
    yield f.ARENA_TOTAL, known(total)


def _pods(reading: Reading) -> Mapping[str, _PodMemory]:
    """GPU UUID to its pods, each with its way of holding the GPU, and its memory use."""
    pods: dict[str, _PodMemory] = {}
    for uuid, holders in reading.derived.holders.items():
        of_gpu: _PodMemory = {}
        for owner, share in holders.items():
            key = (owner.pod, _WHOLE.get(share.mode, "share"))
            used = reading.use.by_container.get((uuid, owner))
            memory = used.memory_bytes if used else None
            before = of_gpu.get(key, 0)
            # What one container of a pod uses is not known: then the use of the pod is not.
            of_gpu[key] = None if memory is None or before is None else before + memory
        if not holders:
            of_gpu[PodName("", ""), "none"] = None
        pods[uuid] = of_gpu
    return pods
