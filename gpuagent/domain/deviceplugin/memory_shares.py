"""The memory shares of pods by kubelet's checkpoint, which alone has their UIDs and their init containers."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.memory_shares import BytesByGpu, PodShares
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MIB, MemoryUnit, parse_id, units_of

_OnGpu = tuple[str, Kind]
"""Key of a GPU and kind of units."""
_UnitsOnGpu = tuple[str, Kind, int]
"""Key of a GPU, kind of units, and their number."""


def device_shares(
    entries: Iterable[CheckpointEntry],
    gpus: Collection[Gpu],
    unit: MemoryUnit,
    modes: Collection[Mode],
    limits: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, PodShares]:
    """UID to the shares of each pod.

    Args:
        entries: of kubelet's checkpoint, with units in place of exchanged ids.
        gpus: of the node.
        unit: of memory.
        modes: whose units count; those of other modes are not limited by the same driver.
        limits: UID of each resized pod to its containers' units in all.
    """
    by_key = {gpu.key: gpu for gpu in gpus}
    by_pod: defaultdict[str, list[CheckpointEntry]] = defaultdict(list)
    for entry in entries:
        by_pod[entry.pod_uid].append(entry)
    shares = {}
    for uid, of_pod in by_pod.items():
        resized = limits.get(uid, {}) if limits else {}
        # A resize is in units of today.
        units_then = 0 if resized else _units_then(of_pod)
        containers: dict[str, BytesByGpu] = {}
        changes: Counter[_OnGpu] = Counter()
        for entry in of_pod:
            units = _units(entry.ids, by_key, modes)
            if not units:
                continue
            limited = units
            if entry.container in resized:
                limited = spread(units, resized[entry.container])
                changes.update(limited)
                changes.subtract(units)
            containers[entry.container] = _bytes(limited, by_key, unit, units_then)
        if containers:
            # Kubelet gives the units of an init container to later containers of the pod, so each unit counts once.
            every_id = frozenset[str]().union(*[entry.ids for entry in of_pod])
            total = Counter(_units(every_id, by_key, modes))
            total.update(changes)
            of_pod_together = _bytes(total, by_key, unit, units_then)
            shares[uid] = PodShares(_at_least(of_pod_together, containers), containers)
    return shares


def _units_then(entries: Iterable[CheckpointEntry]) -> int:
    """How many units the GPU had when kubelet got these; 0 if that is not known, or differs between GPUs."""
    numbers = frozenset[int]().union(*[entry.gpu_units for entry in entries])
    return min(numbers) if len(numbers) == 1 else 0


def spread(units: Mapping[_OnGpu, int], limit: int) -> dict[_OnGpu, int]:
    """A limit in units for each GPU on which a container has `units`, evenly as those are."""
    return dict.fromkeys(units, limit // len(units))


def _at_least(total: dict[str, int], containers: Mapping[str, BytesByGpu]) -> dict[str, int]:
    """The total of a pod, and at least what one of its containers may use: an init container runs alone."""
    for share in containers.values():
        for uuid, amount in share.items():
            total[uuid] = max(total[uuid], amount)
    return total


def _units(
    ids: frozenset[str],
    by_key: Mapping[str, Gpu],
    modes: Collection[Mode],
) -> dict[_OnGpu, int]:
    """Key of a GPU and kind to the number of these units there."""
    units: dict[_OnGpu, int] = {}
    for key, kind, count in units_by_gpu(ids):
        is_limited = kind.is_memory and kind.mode in modes
        if key in by_key and is_limited:
            units[key, kind] = count
    return units


def _bytes(
    units: Mapping[_OnGpu, int],
    by_key: Mapping[str, Gpu],
    unit: MemoryUnit,
    units_then: int,
) -> dict[str, int]:
    """GPU UUID to the memory of these units in bytes."""
    shares: dict[str, int] = {}
    for (key, kind), count in units.items():
        gpu = by_key[key]
        shares[gpu.uuid] = share_bytes(gpu, kind, count, unit, units_then)
    return shares


def share_bytes(gpu: Gpu, kind: Kind, units: int, unit: MemoryUnit, units_then: int = 0) -> int:
    """The memory of these units of a GPU, to which the rest that makes no whole unit is spread evenly.

    Args:
        gpu: the GPU.
        kind: of the units.
        units: how many.
        unit: their size now.
        units_then: how many the GPU had when the container got these; 0 if that is not known.
    """
    # After a change of the unit, the smaller of both sizes counts. With the former one alone, the container would have
    # memory that kubelet gives to others. With that of today alone, it would have more than it was given.
    of_gpu = max(units, units_of(gpu, kind, unit), units_then)
    mib = gpu.memory_mib * units // of_gpu
    return mib * MIB


# Between two reads, most containers have the same units.
@lru_cache(maxsize=1024)
def units_by_gpu(ids: frozenset[str]) -> tuple[_UnitsOnGpu, ...]:
    """The units among these ids, by GPU and kind."""
    counts: Counter[tuple[str, Kind]] = Counter()
    for device_id in ids:
        unit = parse_id(device_id)
        if unit is not None:
            counts[unit.gpu_key, unit.kind] += 1
    return tuple([(key, kind, count) for (key, kind), count in counts.items()])
