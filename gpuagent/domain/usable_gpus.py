"""The one rule for a usable GPU: it is healthy, not fenced, not in MIG mode, and gives at least one unit in this mode.

In a mode that shares memory, a GPU that became smaller than its units gives none.

Device lists, slices, readiness and reports all ask here, so that they never say different things.
"""

from collections import Counter

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.units import units_of
from gpuagent.domain.state import State, once


def serves_gpus(state: State) -> bool:
    """Whether the mode gives GPUs to containers. Mode `default` may leave them to NVIDIA's own plugin."""
    return state.node.mode is Mode.DRA or bool(state.resource_kinds)


def shares_memory(state: State) -> bool:
    """Whether the mode gives out memory in units."""
    if state.node.mode is Mode.DRA:
        return True
    return any(kind.is_memory for kind in state.resource_kinds.values())


def has_shrunk(gpu: Gpu, state: State) -> bool:
    """Whether the GPU has less memory than when the agent read it first, in a mode that shares memory."""
    memory_mib = state.gpus.resized_mib.get(gpu.uuid, gpu.memory_mib)
    return memory_mib < gpu.memory_mib and shares_memory(state)


def gives_units(gpu: Gpu, state: State) -> bool:
    """Whether the mode can give this GPU to a container, at least while the GPU is healthy and not fenced."""
    unit = state.policy.unit
    if gpu.mig or gpu.uuid in state.layer.left_out:
        return False
    # Its units are those of the former size, so they are more than there is.
    if has_shrunk(gpu, state):
        return False
    if state.node.mode is Mode.DRA:
        return gpu.only_whole or gpu.memory_mib >= unit.mib
    # In mode core_mem a container needs units of both resources, on one GPU.
    return all(units_of(gpu, kind, unit) for kind in state.resource_kinds.values())


@once
def usable_gpus(state: State) -> tuple[Gpu, ...]:
    """The GPUs that a new container can get, in NVML's order. Whether another mode still holds one is not asked."""
    healthy = [gpu for gpu in state.gpus.by_index if gpu.uuid not in state.unhealthy]
    return tuple(gpu for gpu in healthy if gives_units(gpu, state))


def unusable_words(state: State) -> str:
    """How many GPUs are out of use for which reason: ``2 are fenced, 1 is in MIG mode``."""
    usable = {gpu.uuid for gpu in usable_gpus(state)}
    causes = Counter(_cause(gpu, state) for gpu in state.gpus.by_index if gpu.uuid not in usable)
    parts = []
    for cause, count in causes.items():
        verb = "is" if count == 1 else "are"
        parts.append(f"{count} {verb} {cause}")
    return ", ".join(parts)


def _cause(gpu: Gpu, state: State) -> str:
    """Why a GPU is out of use, in words; the worst cause if there are several."""
    causes = (
        (gpu.mig, "in MIG mode"),
        (gpu.uuid in state.health.faults, "unhealthy"),
        (gpu.uuid in state.gpus.fenced, "fenced"),
        (gpu.uuid in state.unhealthy, "not answering"),
        (gpu.uuid in state.layer.left_out, "not isolated"),
        (has_shrunk(gpu, state), "of another memory size than when the agent started"),
    )
    for is_cause, words in causes:
        if is_cause:
            return words
    return f"without a unit of {state.policy.unit} memory"
