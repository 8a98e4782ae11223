"""Values of each container on each of its GPUs, and the names that arena reads."""

from collections.abc import Mapping
from operator import attrgetter

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.units import MIB
from gpuagent.domain.usage.by_container import GpuSample, Used
from gpuagent.domain.usage.guarantee import Share
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import Item, Labels, MetricValues, Reading, Values, known, known_values, labels

_WHOLE = {None: "exclusive", Mode.DEFAULT: "exclusive", Mode.TOPOLOGY: "topology"}


def containers(reading: Reading) -> MetricValues:
    """The metrics of each container. Series end with their pod."""
    shares = by_labels(reading, reading.derived.shares)
    use = by_labels(reading, reading.use.by_container)
    yield f.CLAIM, _claims(shares)
    yield f.MEMORY_LIMIT, known_values(shares, attrgetter("memory_bytes"))
    yield f.MEMORY_USED, known_values(use, attrgetter("memory_bytes"))
    yield f.COMPUTE_LIMIT, known_values(shares, attrgetter("compute"))
    yield f.COMPUTE_USED, known_values(use, _busy)


def by_labels(reading: Reading, items: Mapping[tuple[str, ContainerRef], Item]) -> dict[Labels, Item]:
    """The items of containers on GPUs by the labels of their series; without those that cannot be named."""
    items_by_labels: dict[Labels, Item] = {}
    for (uuid, owner), item in items.items():
        named = _labels(reading, uuid, owner)
        if named is not None:
            items_by_labels[named] = item
    return items_by_labels


def _labels(reading: Reading, uuid: str, owner: ContainerRef) -> Labels | None:
    """The labels of a container on a GPU; None if the GPU or the pod is not known."""
    gpu = reading.state.gpus.by_uuid.get(uuid)
    pod = owner.pod
    # Without an API server an init container's pod has no name, and that of a claim may not be seen yet.
    if gpu is None or not all(pod):
        return None
    return (*labels(gpu), pod.namespace, pod.name, owner.container)


def _claims(shares: Mapping[Labels, Share]) -> Values:
    claims: dict[Labels, float] = {}
    for named, share in shares.items():
        for claim in share.claims:
            claims[*named, claim.name, claim.layer] = 1.0
    return claims


def _busy(used: Used) -> float | None:
    if used.busy is None:
        return None
    # The measurements of single processes may add up to a little more.
    return min(1.0, used.busy)


def arena(reading: Reading) -> MetricValues:
    """One series for each pod on each GPU, and one for a GPU without pods.

    arena adds up the used memory of a GPU's series where `allocate_mode` is ``share``, and takes the last one
    otherwise; of duty cycle and total it takes the last: those are the GPU's own.
    """
    duty: dict[Labels, float | None] = {}
    used: dict[Labels, float | None] = {}
    total: dict[Labels, float | None] = {}
    for uuid, holders in reading.derived.holders.items():
        gpu = reading.state.gpus.by_uuid[uuid]
        sample = reading.samples.by_uuid.get(uuid)
        duty_percent = _duty_percent(sample)
        total_bytes = _total_bytes(gpu)
        used_bytes = sample.memory_used_bytes if sample else None
        pods = _pods(reading, uuid, holders)
        for (pod, allocate_mode), pod_bytes in pods.items():
            named = (
                reading.node_name,
                pod.namespace,
                pod.name,
                *labels(gpu),
                allocate_mode,
            )
            duty[named] = duty_percent
            used[named] = pod_bytes if allocate_mode == "share" else used_bytes
            total[named] = total_bytes
    yield f.ARENA_DUTY, known(duty)
    yield f.ARENA_USED, known(used)
    yield f.ARENA_TOTAL, known(total)


def _pods(
    reading: Reading, uuid: str, holders: Mapping[ContainerRef, Share]
) -> Mapping[tuple[PodName, str], int | None]:
    """The pods on a GPU, each with its way of holding the GPU, to the bytes that it uses of it."""
    if not holders:
        return {(PodName("", ""), "none"): None}
    pods: dict[tuple[PodName, str], int | None] = {}
    for owner, share in holders.items():
        allocate_mode = _WHOLE.get(share.mode, "share")
        key = (owner.pod, allocate_mode)
        used = reading.use.by_container.get((uuid, owner))
        memory = used.memory_bytes if used else None
        before = pods.get(key, 0)
        if memory is None or before is None:
            # What one container of a pod uses is not known: then the use of the pod is not.
            pods[key] = None
        else:
            pods[key] = before + memory
    return pods


def _duty_percent(sample: GpuSample | None) -> float | None:
    if sample is None or sample.busy is None:
        return None
    return round(sample.busy * 100, 1)


def _total_bytes(gpu: Gpu) -> int | None:
    if not gpu.memory_mib:
        return None  # the driver does not report it
    return gpu.memory_mib * MIB
