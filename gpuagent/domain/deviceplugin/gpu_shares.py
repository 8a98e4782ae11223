"""What containers may use of their GPUs by kubelet's checkpoint, which has their init containers, too."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from gpuagent.domain.deviceplugin.memory_shares import units_by_gpu
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.gpu_share import ALL_PERCENT, NO_SHARE, GpuShare, largest
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit, units_of


def largest_shares(
    entries: Iterable[CheckpointEntry],
    gpus: Collection[Gpu],
    unit: MemoryUnit,
    modes: Collection[Mode],
) -> dict[str, GpuShare]:
    """GPU UUID to the largest share that a container of these modes has.

    Args:
        entries: of kubelet's checkpoint, with units in place of exchanged ids.
        gpus: of the node.
        unit: of memory.
        modes: whose units count.
    """
    by_container: defaultdict[tuple[str, str], list[CheckpointEntry]] = defaultdict(list)
    for entry in entries:
        by_container[entry.pod_uid, entry.container].append(entry)
    shares = [container_shares(of_container, gpus, unit, modes) for of_container in by_container.values()]
    return largest(shares)


def container_shares(
    entries: Collection[CheckpointEntry],
    gpus: Collection[Gpu],
    unit: MemoryUnit,
    modes: Collection[Mode],
) -> dict[str, GpuShare]:
    """GPU UUID to what one container may use. `entries` has all resources of the container."""
    units: Counter[tuple[str, Kind]] = Counter()
    units_then: set[int] = set()
    for entry in entries:
        units_then.update(entry.gpu_units)
        for key, kind, count in units_by_gpu(entry.ids):
            if kind.mode in modes:
                units[key, kind] += count
    by_key = {gpu.key: gpu for gpu in gpus}
    shares: dict[str, GpuShare] = {}
    for (key, kind), count in units.items():
        gpu = by_key.get(key)
        if gpu is None:
            continue
        part = GpuShare(percent=count)
        if kind.is_memory:
            part = GpuShare(memory_mib=_memory_mib(gpu, kind, count, unit, units_then))
        shares[gpu.uuid] = part.or_more(shares.get(gpu.uuid, NO_SHARE))
    return {gpu.uuid: _with_unlimited(shares[gpu.uuid], gpu) for gpu in gpus if gpu.uuid in shares}


def _memory_mib(gpu: Gpu, kind: Kind, count: int, unit: MemoryUnit, units_then: Collection[int]) -> int:
    """The memory of these units.

    Args:
        gpu: the GPU.
        kind: of the units.
        count: how many.
        unit: their size now.
        units_then: how many the GPU had when the container got these.
    """
    # After a change of the unit, the container keeps the cap that it was given. It must not be cut below that.
    of_gpu = min([units_of(gpu, kind, unit), *units_then])
    return gpu.memory_mib * count // max(of_gpu, count)


def _with_unlimited(share: GpuShare, gpu: Gpu) -> GpuShare:
    """The share, with all of what the container did not ask for: it has no limit there."""
    return GpuShare(
        share.memory_mib or gpu.memory_mib,
        share.percent or ALL_PERCENT,
    )
