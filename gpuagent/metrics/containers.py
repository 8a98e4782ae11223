"""Values of each container on each of its GPUs, and the names that arena reads."""

from collections import defaultdict
from collections.abc import Mapping

from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.usage.guarantee import MIB
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import MetricValues, Reading, known, labels

_WHOLE = {None: "exclusive", Mode.DEFAULT: "exclusive", Mode.TOPOLOGY: "topology"}


def containers(reading: Reading) -> MetricValues:
    """The metrics of each container. Series end with their pod."""

    def named(values: Mapping[tuple[str, ContainerRef], float | None]) -> Mapping[tuple[str, ...], float]:
        gpus = reading.state.gpus.by_uuid
        # Without an API server an init container's pod has no name, and that of a claim may not be seen yet.
        return known(
            {
                (*labels(gpus[uuid]), owner.pod.namespace, owner.pod.name, owner.container): value
                for (uuid, owner), value in values.items()
                if uuid in gpus and all(owner.pod)
            }
        )

    gpus = reading.state.gpus.by_uuid
    claims = [
        (uuid, owner, share.claim)
        for (uuid, owner), share in reading.derived.shares.items()
        if share.claim and all(owner.pod)
    ]
    who = [(*labels(gpus[uuid]), *owner.pod, owner.container, claim.name, claim.layer) for uuid, owner, claim in claims]
    yield f.CLAIM, dict.fromkeys(who, 1.0)
    use = reading.use.by_container
    yield f.MEMORY_LIMIT, named({who: share.memory_bytes for who, share in reading.derived.shares.items()})
    yield f.MEMORY_USED, named({who: used.memory_bytes for who, used in use.items()})
    yield f.COMPUTE_LIMIT, named({who: share.compute for who, share in reading.derived.shares.items()})
    # The measurements of single processes may add up to a little more.
    busy = {who: None if used.busy is None else min(1.0, used.busy) for who, used in use.items()}
    yield f.COMPUTE_USED, named(busy)


def arena(reading: Reading) -> MetricValues:
    """One series for each pod on each GPU, and one for a GPU without pods.

    arena adds up the used memory of a GPU's series where `allocate_mode` is ``share``, and takes the last one
    otherwise; of duty cycle and total it takes the last: those are the GPU's own.
    """
    duty: dict[tuple[str, ...], float | None] = {}
    used: dict[tuple[str, ...], float | None] = {}
    total: dict[tuple[str, ...], float | None] = {}
    for uuid, pods in _pods(reading).items():
        gpu, sample = reading.state.gpus.by_uuid[uuid], reading.samples.by_uuid.get(uuid)
        for (pod, allocate_mode), memory in pods.items():
            series = (reading.node_name, pod.namespace, pod.name, uuid, str(gpu.minor), allocate_mode)
            total[series] = gpu.memory_mib * MIB or None
            duty[series] = None if sample is None or sample.busy is None else round(sample.busy * 100, 1)
            whole = None if sample is None else sample.memory_used_bytes
            used[series] = memory if allocate_mode == "share" else whole
    yield f.ARENA_DUTY, known(duty)
    yield f.ARENA_USED, known(used)
    yield f.ARENA_TOTAL, known(total)


def _pods(reading: Reading) -> Mapping[str, Mapping[tuple[PodName, str], int | None]]:
    """GPU UUID to its pods, each with its way of holding the GPU, and its memory use."""
    found: dict[str, dict[tuple[PodName, str], int | None]] = defaultdict(dict)
    for uuid, holders in reading.derived.holders.items():
        for owner, share in holders.items():
            key = (owner.pod, _WHOLE.get(share.mode, "share"))
            used = reading.use.by_container.get((uuid, owner))
            memory, before = used.memory_bytes if used else None, found[uuid].get(key, 0)
            found[uuid][key] = None if memory is None or before is None else before + memory
        if not holders:
            found[uuid][PodName("", ""), "none"] = None
    return found
