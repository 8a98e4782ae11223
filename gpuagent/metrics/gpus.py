"""Values of each GPU."""

from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.usage.by_container import GpuSample
from gpuagent.domain.usage.guarantee import MIB
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import MetricValues, Reading, Values, known, labels


def gpus(reading: Reading) -> MetricValues:
    """The metrics of each GPU."""
    state, unhealthy, fenced = reading.state, reading.state.unhealthy, reading.state.gpus.fenced
    all_ = list(state.gpus.by_uuid.values())
    yield f.GPU_INFO, {(*labels(gpu), str(gpu.index), gpu.model, gpu.pci_bus_id): 1 for gpu in all_}
    yield f.HEALTHY, {labels(gpu): float(gpu.uuid not in unhealthy) for gpu in all_}
    yield f.FENCED, {labels(gpu): float(gpu.uuid in fenced) for gpu in all_}
    yield from _xids(reading)
    yield f.TOTAL, {labels(gpu): gpu.memory_mib * MIB for gpu in all_ if gpu.memory_mib}
    yield f.RESERVED, {labels(gpu): gpu.reserved_mib * MIB for gpu in all_ if gpu.reserved_mib}
    if state.holdings.listed is not None:
        yield from _given(reading)
    yield from _sampled(reading)


def _xids(reading: Reading) -> MetricValues:
    state = reading.state
    cases = {labels(gpu): case for gpu in state.gpus.by_uuid.values() if (case := state.health.by_uuid.get(gpu.uuid))}
    last = {named: case.last_xid for named, case in cases.items() if case.last_xid}
    yield f.LAST_XID, {named: xid for named, (xid, _) in last.items()}
    yield f.LAST_XID_AT, {named: reading.unix_times[at] for named, (_, at) in last.items()}
    yield f.XIDS, {(*named, str(xid)): n for named, case in cases.items() for xid, n in case.counts.items()}


def _given(reading: Reading) -> MetricValues:
    known_gpus = reading.state.gpus.by_uuid
    memory: dict[tuple[str, ...], float | None] = {}
    compute: dict[tuple[str, ...], float | None] = {}
    by_part = reading.state.node.mode is Mode.DRA or any(
        kind.is_whole or not kind.is_memory for kind in reading.state.resource_kinds.values()
    )
    for uuid, holders in reading.derived.holders.items():
        named = labels(known_gpus[uuid])
        once = {share.claim.uid if share.claim else owner: share for owner, share in holders.items()}.values()
        foreign = any(share.mode is None for share in once)
        memory[named] = None if foreign else sum(share.memory_bytes or 0 for share in once)
        parts = [share.compute for share in once if share.compute is not None]
        compute[named] = min(1.0, sum(parts)) if parts or (by_part and not foreign) else None
    yield f.ALLOCATED, known(memory)
    yield f.COMPUTE_ALLOCATED, known(compute)
    yield (
        f.SHARERS,
        {labels(known_gpus[uuid]): len(holders) for uuid, holders in reading.derived.holders.items()},
    )


def _sampled(reading: Reading) -> MetricValues:
    samples, known_gpus = reading.samples, reading.state.gpus.by_uuid
    shown = {labels(known_gpus[uuid]): sample for uuid, sample in samples.by_uuid.items() if uuid in known_gpus}
    asked = [gpu for gpu in known_gpus.values() if gpu.uuid in samples.by_uuid or gpu.uuid in samples.failing]
    yield f.SAMPLE, {labels(gpu): float(gpu.uuid not in samples.failing) for gpu in asked}
    yield f.USED, known({named: sample.memory_used_bytes for named, sample in shown.items()})
    yield f.UNATTRIBUTED, known({named: _unattributed(reading, sample) for named, sample in shown.items()})
    yield f.UNATTRIBUTED_PROCESSES, _unattributed_processes(reading)
    yield f.BUSY, known({named: sample.busy for named, sample in shown.items()})
    yield f.TEMPERATURE, known({named: sample.temperature_celsius for named, sample in shown.items()})
    yield f.POWER, known({named: sample.power_watts for named, sample in shown.items()})


def _unattributed(reading: Reading, sample: GpuSample) -> float | None:
    if sample.memory_used_bytes is None or sample.uuid not in reading.use.strays:
        return None
    mine = [used.memory_bytes for (uuid, _), used in reading.use.by_container.items() if uuid == sample.uuid]
    measured = [memory for memory in mine if memory is not None]
    return max(0, sample.memory_used_bytes - sum(measured)) if len(measured) == len(mine) else None


def _unattributed_processes(reading: Reading) -> Values:
    gpus_ = reading.state.gpus.by_uuid
    return {labels(gpus_[uuid]): count for uuid, count in reading.use.strays.items() if uuid in gpus_}
