"""Values of each GPU."""

from collections.abc import Collection, Mapping
from operator import attrgetter

from gpuagent.domain.deviceplugin.resize.resizing import withheld_bytes
from gpuagent.domain.gpus.health_verdict import GpuHealth
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.units import MIB
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import GpuSample
from gpuagent.domain.usage.guarantee import Share
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import Labels, MetricValues, Reading, Values, known, known_values, labels


def gpus(reading: Reading) -> MetricValues:
    """The metrics of each GPU."""
    state = reading.state
    yield f.GPU_INFO, _info(state)
    yield f.HEALTHY, _healthy(state)
    yield f.FENCED, _fenced(state)
    yield from _xids(reading)
    yield f.TOTAL, _total_memory(state)
    yield f.RESERVED, _reserved_memory(state)
    if state.holdings.listed is not None:
        yield from _allocated(reading)
    yield from _sampled(reading)


def _info(state: State) -> Values:
    info: dict[Labels, float] = {}
    for gpu in state.gpus.by_uuid.values():
        info[*labels(gpu), str(gpu.index), gpu.model, gpu.pci_bus_id] = 1.0
    return info


def _healthy(state: State) -> Values:
    healthy: dict[Labels, float] = {}
    for uuid, gpu in state.gpus.by_uuid.items():
        healthy[labels(gpu)] = float(uuid not in state.unhealthy)
    return healthy


def _fenced(state: State) -> Values:
    fenced: dict[Labels, float] = {}
    for uuid, gpu in state.gpus.by_uuid.items():
        fenced[labels(gpu)] = float(uuid in state.gpus.fenced)
    return fenced


def _total_memory(state: State) -> Values:
    """Bytes; without GPUs of which the driver does not report it."""
    total: dict[Labels, float] = {}
    for gpu in state.gpus.by_uuid.values():
        if gpu.memory_mib:
            total[labels(gpu)] = float(gpu.memory_mib * MIB)
    return total


def _reserved_memory(state: State) -> Values:
    """Bytes; without GPUs of which the driver does not report it."""
    reserved: dict[Labels, float] = {}
    for gpu in state.gpus.by_uuid.values():
        if gpu.reserved_mib:
            reserved[labels(gpu)] = float(gpu.reserved_mib * MIB)
    return reserved


def _xids(reading: Reading) -> MetricValues:
    healths = _healths(reading.state)
    last_xid: dict[Labels, float] = {}
    last_xid_at: dict[Labels, float] = {}
    counts: dict[Labels, float] = {}
    for named, health in healths.items():
        if health.last_xid is not None:
            xid, at = health.last_xid
            last_xid[named] = float(xid)
            last_xid_at[named] = reading.unix_times[at]
        for number, count in health.counts.items():
            counts[*named, str(number)] = float(count)
    yield f.LAST_XID, last_xid
    yield f.LAST_XID_AT, last_xid_at
    yield f.XIDS, counts


def _healths(state: State) -> dict[Labels, GpuHealth]:
    """The health of the GPUs about which something is known."""
    healths: dict[Labels, GpuHealth] = {}
    for uuid, gpu in state.gpus.by_uuid.items():
        health = state.health.by_uuid.get(uuid)
        if health is not None:
            healths[labels(gpu)] = health
    return healths


def _allocated(reading: Reading) -> MetricValues:
    by_uuid = reading.state.gpus.by_uuid
    gives_compute = _gives_compute(reading)
    memory: dict[Labels, float | None] = {}
    compute: dict[Labels, float | None] = {}
    sharers: dict[Labels, float] = {}
    withheld: dict[Labels, float] = {}
    withheld_by_uuid = withheld_bytes(reading.state)
    for uuid, holders in reading.derived.holders.items():
        named = labels(by_uuid[uuid])
        sharers[named] = float(len(holders))
        withheld[named] = float(withheld_by_uuid[uuid])
        shares = _different_shares(holders)
        memory[named] = _allocated_memory(shares)
        compute[named] = _allocated_compute(shares, gives_compute=gives_compute)
    yield f.ALLOCATED, known(memory)
    yield f.COMPUTE_ALLOCATED, known(compute)
    yield f.SHARERS, sharers
    yield f.WITHHELD, withheld
    yield f.FREE, known(_free_memory(reading))


def _free_memory(reading: Reading) -> Mapping[Labels, float | None]:
    """Bytes; None if they are not known."""
    by_uuid = reading.state.gpus.by_uuid
    free: dict[Labels, float | None] = {}
    for uuid, free_bytes in reading.derived.free_memory.items():
        free[labels(by_uuid[uuid])] = free_bytes
    return free


def _different_shares(holders: Mapping[ContainerRef, Share]) -> list[Share]:
    """The shares of a GPU, each once: all containers that use a request of a claim have one share."""
    keyed: list[tuple[ContainerRef | tuple[str, int], Share]] = []
    for owner, share in holders.items():
        if share.of_claims:
            keyed.extend(share.of_claims.items())
        else:
            keyed.append((owner, share))
    return list(dict(keyed).values())


def _gives_compute(reading: Reading) -> bool:
    """Whether the mode gives parts of a GPU's compute, or whole GPUs."""
    if reading.state.node.mode is Mode.DRA:
        return True
    kinds = reading.state.resource_kinds.values()
    return any(kind.is_whole or not kind.is_memory for kind in kinds)


def _is_foreign(shares: Collection[Share]) -> bool:
    """Whether another plugin gave the GPU to a container, and the agent does not know how much of it."""
    return any(share.mode is None for share in shares)


def _allocated_memory(shares: Collection[Share]) -> float | None:
    """Bytes; None if another plugin gave the GPU to a container."""
    if _is_foreign(shares):
        return None
    return sum(share.taken_bytes for share in shares)


def _allocated_compute(shares: Collection[Share], *, gives_compute: bool) -> float | None:
    """Part of the GPU's compute; None if another plugin gave the GPU to a container, or if shares do not limit it."""
    parts = [share.compute for share in shares if share.compute is not None]
    if parts:
        return min(1.0, sum(parts))
    if not gives_compute or _is_foreign(shares):
        return None
    return 0.0


def _sampled(reading: Reading) -> MetricValues:
    samples = _samples(reading)
    yield f.SAMPLE, _answered(reading)
    yield f.USED, known_values(samples, _used_bytes)
    yield f.UNATTRIBUTED, _unattributed(reading, samples)
    yield f.UNATTRIBUTED_PROCESSES, _unattributed_processes(reading)
    yield f.BUSY, known_values(samples, _busy)
    yield f.TEMPERATURE, known_values(samples, _temperature)
    yield f.POWER, known_values(samples, _power)


_used_bytes = attrgetter("memory_used_bytes")
_busy = attrgetter("busy")
_temperature = attrgetter("temperature_celsius")
_power = attrgetter("power_watts")


def _samples(reading: Reading) -> dict[Labels, GpuSample]:
    """The samples of the GPUs that have one."""
    samples: dict[Labels, GpuSample] = {}
    for uuid, gpu in reading.state.gpus.by_uuid.items():
        sample = reading.samples.by_uuid.get(uuid)
        if sample is not None:
            samples[labels(gpu)] = sample
    return samples


def _answered(reading: Reading) -> Values:
    """Whether each GPU answered when it was sampled; none for a GPU that was not sampled."""
    samples = reading.samples
    answered: dict[Labels, float] = {}
    for uuid, gpu in reading.state.gpus.by_uuid.items():
        is_failing = uuid in samples.failing
        if is_failing or uuid in samples.by_uuid:
            answered[labels(gpu)] = float(not is_failing)
    return answered


def _unattributed(reading: Reading, samples: Mapping[Labels, GpuSample]) -> Values:
    memory: dict[Labels, float | None] = {}
    for named, sample in samples.items():
        memory[named] = _unattributed_bytes(reading, sample)
    return known(memory)


def _unattributed_bytes(reading: Reading, sample: GpuSample) -> float | None:
    """Bytes in use that no container is known to use; None if they are not known."""
    if sample.memory_used_bytes is None or sample.uuid not in reading.use.strays:
        return None
    by_containers = 0
    for (uuid, _), used in reading.use.by_container.items():
        if uuid != sample.uuid:
            continue
        if used.memory_bytes is None:
            return None
        by_containers += used.memory_bytes
    return max(0, sample.memory_used_bytes - by_containers)


def _unattributed_processes(reading: Reading) -> Values:
    by_uuid = reading.state.gpus.by_uuid
    processes: dict[Labels, float] = {}
    for uuid, count in reading.use.strays.items():
        if uuid in by_uuid:
            processes[labels(by_uuid[uuid])] = count
    return processes
