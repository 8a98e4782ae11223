"""The memory shares of pods by kubelet's checkpoint, which alone has their UIDs and their init containers."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit, parse_id, units_of

MIB = 2**20
_UnitsOnGpu = tuple[str, Kind, int]
"""Key of a GPU, kind of units, and their number."""


def device_shares(
    entries: Iterable[CheckpointEntry],
    gpus: Collection[Gpu],
    unit: MemoryUnit,
    modes: Collection[Mode],
) -> dict[str, PodShares]:
    """UID to the shares of each pod.

    Args:
        entries: of kubelet's checkpoint, with units in place of exchanged ids.
        gpus: of the node.
        unit: of memory.
        modes: whose units count; those of other modes are not limited by the same driver.
    """
    by_key = {gpu.key: gpu for gpu in gpus}
    by_pod: defaultdict[str, list[CheckpointEntry]] = defaultdict(list)
    for entry in entries:
        by_pod[entry.pod_uid].append(entry)
    shares = {}
    for uid, of_pod in by_pod.items():
        containers: dict[str, dict[str, int]] = {}
        for entry in of_pod:
            own = _bytes(entry.ids, by_key, unit, modes)
            if own:
                containers[entry.container] = own
        if containers:
            # Kubelet gives the units of an init container to later containers of the pod, so each unit counts once.
            every_id = frozenset[str]().union(*[entry.ids for entry in of_pod])
            shares[uid] = PodShares(_bytes(every_id, by_key, unit, modes), containers)
    return shares


def _bytes(
    ids: frozenset[str],
    by_key: Mapping[str, Gpu],
    unit: MemoryUnit,
    modes: Collection[Mode],
) -> dict[str, int]:
    """GPU UUID to the memory of these units in bytes."""
    shares: dict[str, int] = {}
    for key, kind, count in _units_by_gpu(ids):
        gpu = by_key.get(key)
        if gpu is None or kind.mode not in modes:
            continue
        shares[gpu.uuid] = share_bytes(gpu, kind, count, unit)
    return shares


def share_bytes(gpu: Gpu, kind: Kind, units: int, unit: MemoryUnit) -> int:
    """The memory of these units of a GPU, to which the rest that makes no whole unit is spread evenly."""
    # After a change of the unit, a container may have more units than the GPU has now.
    of_gpu = max(units, units_of(gpu, kind, unit))
    mib = gpu.memory_mib * units // of_gpu
    return mib * MIB


# Between two reads, most containers have the same units.
@lru_cache(maxsize=1024)
def _units_by_gpu(ids: frozenset[str]) -> tuple[_UnitsOnGpu, ...]:
    """The memory units among these ids, by GPU."""
    counts: Counter[tuple[str, Kind]] = Counter()
    for device_id in ids:
        unit = parse_id(device_id)
        if unit is not None and unit.kind.is_memory:
            counts[unit.gpu_key, unit.kind] += 1
    return tuple([(key, kind, count) for (key, kind), count in counts.items()])
