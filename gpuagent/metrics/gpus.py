"""Values of each GPU."""

from collections.abc import Collection

from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.usage.by_container import GpuSample
from gpuagent.domain.usage.guarantee import MIB, Share
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import Labels, MetricValues, Reading, Values, known, labels


def gpus(reading: Reading) -> MetricValues:
    """The metrics of each GPU."""
    state = reading.state
    info: dict[Labels, float] = {}
    healthy: dict[Labels, float] = {}
    fenced: dict[Labels, float] = {}
    total: dict[Labels, float] = {}
    reserved: dict[Labels, float] = {}
    for uuid, gpu in state.gpus.by_uuid.items():
        named = labels(gpu)
        info[*named, str(gpu.index), gpu.model, gpu.pci_bus_id] = 1.0
        healthy[named] = float(uuid not in state.unhealthy)
        fenced[named] = float(uuid in state.gpus.fenced)
        if gpu.memory_mib:
            total[named] = float(gpu.memory_mib * MIB)
        if gpu.reserved_mib:
            reserved[named] = float(gpu.reserved_mib * MIB)
    yield f.GPU_INFO, info
    yield f.HEALTHY, healthy
    yield f.FENCED, fenced
    yield from _xids(reading)
    yield f.TOTAL, total
    yield f.RESERVED, reserved
    if state.holdings.listed is not None:
        yield from _given(reading)
    yield from _sampled(reading)


def _xids(reading: Reading) -> MetricValues:
    state = reading.state
    last_xid: dict[Labels, float] = {}
    last_xid_at: dict[Labels, float] = {}
    counts: dict[Labels, float] = {}
    for uuid, gpu in state.gpus.by_uuid.items():
        health = state.health.by_uuid.get(uuid)
        if health is None:
            continue
        named = labels(gpu)
        if health.last_xid is not None:
            xid, at = health.last_xid
            last_xid[named] = float(xid)
            last_xid_at[named] = reading.unix_times[at]
        for xid, count in health.counts.items():
            counts[*named, str(xid)] = float(count)
    yield f.LAST_XID, last_xid
    yield f.LAST_XID_AT, last_xid_at
    yield f.XIDS, counts


def _given(reading: Reading) -> MetricValues:
    gpus_ = reading.state.gpus.by_uuid
    gives_compute = _gives_compute(reading)
    memory: dict[Labels, float | None] = {}
    compute: dict[Labels, float | None] = {}
    sharers: dict[Labels, float] = {}
    for uuid, holders in reading.derived.holders.items():
        named = labels(gpus_[uuid])
        sharers[named] = float(len(holders))
        # All containers of one claim have one share.
        shares = {share.claim.uid if share.claim else owner: share for owner, share in holders.items()}
        memory[named] = _memory_given(shares.values())
        compute[named] = _compute_given(shares.values(), gives_compute=gives_compute)
    yield f.ALLOCATED, known(memory)
    yield f.COMPUTE_ALLOCATED, known(compute)
    yield f.SHARERS, sharers


def _gives_compute(reading: Reading) -> bool:
    """Whether the mode gives parts of a GPU's compute, or whole GPUs."""
    if reading.state.node.mode is Mode.DRA:
        return True
    return any(kind.is_whole or not kind.is_memory for kind in reading.state.resource_kinds.values())


def _memory_given(shares: Collection[Share]) -> float | None:
    """Bytes; None if another plugin gave the GPU to a container."""
    if any(share.mode is None for share in shares):
        return None
    return sum(share.memory_bytes or 0 for share in shares)


def _compute_given(shares: Collection[Share], *, gives_compute: bool) -> float | None:
    """Part of the GPU's compute; None if another plugin gave the GPU to a container, or if shares do not limit it."""
    parts = [share.compute for share in shares if share.compute is not None]
    if parts:
        return min(1.0, sum(parts))
    is_foreign = any(share.mode is None for share in shares)
    return 0.0 if gives_compute and not is_foreign else None


def _sampled(reading: Reading) -> MetricValues:
    samples = reading.samples
    answered: dict[Labels, float] = {}
    used: dict[Labels, float | None] = {}
    unattributed: dict[Labels, float | None] = {}
    busy: dict[Labels, float | None] = {}
    temperature: dict[Labels, float | None] = {}
    power: dict[Labels, float | None] = {}
    for uuid, gpu in reading.state.gpus.by_uuid.items():
        named = labels(gpu)
        sample = samples.by_uuid.get(uuid)
        if sample or uuid in samples.failing:
            answered[named] = float(uuid not in samples.failing)
        if sample:
            used[named] = sample.memory_used_bytes
            unattributed[named] = _unattributed(reading, sample)
            busy[named] = sample.busy
            temperature[named] = sample.temperature_celsius
            power[named] = sample.power_watts
    yield f.SAMPLE, answered
    yield f.USED, known(used)
    yield f.UNATTRIBUTED, known(unattributed)
    yield f.UNATTRIBUTED_PROCESSES, _unattributed_processes(reading)
    yield f.BUSY, known(busy)
    yield f.TEMPERATURE, known(temperature)
    yield f.POWER, known(power)


def _unattributed(reading: Reading, sample: GpuSample) -> float | None:
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
    gpus_ = reading.state.gpus.by_uuid
    return {labels(gpus_[uuid]): count for uuid, count in reading.use.strays.items() if uuid in gpus_}
