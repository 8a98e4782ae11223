"""How much memory of each GPU one more pod gets, by the rule of the cluster's page and of `kubectl inspect cgpu`."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gpuagent.domain.deviceplugin.resizing import withheld_bytes
from gpuagent.domain.fleet.node_summary import GpuUse, free_share
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.reconcile.published_gpus import published_gpus, uuids_by_minor
from gpuagent.domain.sharing.units import MIB
from gpuagent.domain.state import State
from gpuagent.metrics.reading import Labels, Values, labels


@dataclass(slots=True)
class _Held:
    """What pods hold of the GPUs, by the key of each: units of memory, percent of compute, and the pods."""

    memory: Counter[str] = field(default_factory=Counter)
    core: Counter[str] = field(default_factory=Counter)
    pods: defaultdict[str, set[PodName]] = field(default_factory=lambda: defaultdict(set))


def free_memory(state: State) -> Values:
    """Bytes of each GPU. None has a value while the node offers schedulers no GPUs, as in modes `default` and `dra`."""
    published = published_gpus(state)
    uuids = dict(uuids_by_minor(state))
    held = _held(state)
    withheld = withheld_bytes(state)
    unit_bytes = published.unit_mib * MIB
    free: dict[Labels, float] = {}
    for published_gpu in published.gpus:
        gpu = state.gpus.by_uuid[uuids[published_gpu.minor]]
        withheld_units = -(-withheld.get(gpu.uuid, 0) // unit_bytes)
        pods = len(held.pods[gpu.key])
        use = GpuUse(
            minor=gpu.minor,
            memory=published_gpu.memory,
            core=published_gpu.core,
            whole=published_gpu.whole,
            held_memory=held.memory[gpu.key] + withheld_units,
            held_core=held.core[gpu.key],
            pods=pods,
            takes_pods=pods < published.most_pods,
        )
        share = free_share(use)
        whole_bytes = share.gpus * gpu.memory_mib * MIB
        shared_bytes = share.memory * unit_bytes
        free[labels(gpu)] = float(whole_bytes or shared_bytes) if published_gpu.usable else 0.0
    return free


def _held(state: State) -> _Held:
    held = _Held()
    for holding in state.living_holdings:
        for highest, count in holding.units:
            held.pods[highest.gpu_key].add(holding.owner.pod)
            if highest.kind.is_memory:
                held.memory[highest.gpu_key] += count
            elif not highest.kind.is_whole:
                held.core[highest.gpu_key] += count
    return held
