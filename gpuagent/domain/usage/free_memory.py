"""How much memory of each GPU one more pod gets, by the rule of the cluster's page and of `kubectl inspect cgpu`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.domain.fleet.node_summary import GpuUse, free_share
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.placed_units import Blocks, placed_kinds, placed_units
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.domain.sharing.units import MIB
from gpuagent.domain.state import State
from gpuagent.domain.status.problems import is_ready
from gpuagent.domain.usage.guarantee import memory_limit


@dataclass(slots=True)
class _Held:
    """What containers hold of one GPU: units of memory, percent of compute, and who they are."""

    memory: int = 0
    core: int = 0
    pods: set[PodName] = field(default_factory=set)
    containers: set[ContainerRef] = field(default_factory=set)


def free_memory(state: State) -> Mapping[str, int | None]:
    """The bytes of each GPU that one more pod gets, by the UUID of the GPU.

    Returns:
        Nothing in a mode that offers schedulers no GPUs: `default` and `dra`. 0 for a GPU of which a pod gets nothing.
        None for a free GPU that is given whole, if the driver does not report its memory.
    """
    if not placed_kinds(state):
        return {}
    free: dict[str, int | None] = dict.fromkeys(state.gpus.by_uuid, 0)
    # For example, isolation is switched off: kubelet still gives units, and not with what the mode promises.
    if not is_ready(state):
        return free
    held = _held(state)
    for uuid, blocks in placed_units(state).items():
        gpu = state.gpus.by_uuid.get(uuid)
        is_healthy = all(block.healthy for block in blocks.values())
        if gpu is not None and is_healthy:
            free[uuid] = _free_bytes(gpu, blocks, held[gpu.key], state)
    return free


def _held(state: State) -> Mapping[str, _Held]:
    """By the key of the GPU, with an empty value for one of which nothing is held."""
    held: defaultdict[str, _Held] = defaultdict(_Held)
    for holding in state.living_holdings:
        for highest, count in holding.units:
            on_gpu = held[highest.gpu_key]
            on_gpu.pods.add(holding.owner.pod)
            on_gpu.containers.add(holding.owner)
            if highest.kind.is_memory:
                on_gpu.memory += count
            elif not highest.kind.is_whole:
                on_gpu.core += count
    return held


def _free_bytes(gpu: Gpu, blocks: Blocks, held: _Held, state: State) -> int | None:
    # The units that are withheld for resized pods are not offered any more.
    offered = {name: block.offered for name, block in blocks.items()}
    use = GpuUse(
        minor=gpu.minor,
        memory=offered.get(GPU_MEM, 0),
        core=offered.get(GPU_CORE, 0),
        whole=GPU_WHOLE in blocks,
        held_memory=held.memory,
        held_core=held.core,
        pods=len(held.pods),
        takes_pods=_takes_pods(held, state),
    )
    share = free_share(use)
    if share.gpus:
        return gpu.memory_mib * MIB or None
    if not share.memory:
        return 0
    return memory_limit(gpu, blocks[GPU_MEM].kind, share.memory, state.policy.unit)


def _takes_pods(held: _Held, state: State) -> bool:
    """Whether fewer pods than allowed share the GPU, and fewer containers than its isolation driver takes."""
    most_containers = state.layer.max_sharers
    if most_containers is not None and len(held.containers) >= most_containers:
        return False
    return len(held.pods) < state.policy.max_pods_per_gpu
