"""Warnings where other programs would misread this node's amounts.

The gpushare scheduler extender and the inspect tools read two amounts of a node, `aliyun.com/gpu-mem` and
`aliyun.com/gpu-count`. They divide one by the other, number the GPUs from 0, and count the pods' units by annotations.
"""

from collections.abc import Iterator

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import GPU_COUNT, GPU_MEM, Kind
from gpuagent.domain.sharing.units import units_of
from gpuagent.domain.state import State
from gpuagent.system.printable import first_of

MANY_PODS = 8
"""Maximum number of pods that one message names."""


def warn_of_unequal_gpus(state: State) -> Iterator[str]:
    """A warning if the GPUs differ in size, in a mode that advertises memory: other programs assume equal GPUs."""
    kind = state.resource_kinds.get(GPU_MEM)
    if kind is None or not state.gpus.by_uuid:
        return
    gpus = list(state.gpus.by_uuid.values())
    gpus.sort(key=lambda gpu: gpu.minor)
    counts = [_advertised_units(gpu, kind, state) for gpu in gpus]
    if len(set(counts)) <= 1:
        return
    # What such a program makes of the node.
    share = sum(counts) // len(gpus)
    amounts = []
    for gpu, count in zip(gpus, counts, strict=True):
        amounts.append(f"GPU {gpu.minor} {count}")
    each = ", ".join(amounts)
    yield (
        f"the GPUs differ ({GPU_MEM}: {each}): kubelet and this agent count each as it is. But a scheduler or tool "
        f"that divides {GPU_MEM} by {GPU_COUNT}, as the gpushare scheduler extender does, takes each for {share}. "
        "It may send pods here that are refused, and leave memory unused; give it nodes of equal GPUs"
    )


def _advertised_units(gpu: Gpu, kind: Kind, state: State) -> int:
    is_left_out = gpu.mig or gpu.uuid in state.layer.left_out
    if is_left_out:
        return 0
    return units_of(gpu, kind, state.policy.unit)


def warn_of_minor_numbers(state: State) -> Iterator[str]:
    """A warning if the GPUs are not numbered from 0."""
    if GPU_MEM not in state.resource_kinds:
        return
    numbers = sorted(gpu.minor for gpu in state.gpus.by_uuid.values())
    count = len(numbers)
    if numbers == list(range(count)):
        return
    listed = ", ".join(map(str, numbers))
    yield (
        f"the minor numbers of the GPUs are {listed}: the gpushare scheduler extender takes "
        f"them for 0 to {count - 1}, and does not find the others. Load the driver again, or reboot the node"
    )


def warn_of_former_units(state: State) -> Iterator[str]:
    """Warnings of pods whose units are from a time with another unit size or another size of their GPU."""
    unit = state.policy.unit
    affected = [state.gpus.by_uuid[uuid] for uuid in state.former_units]
    affected.sort(key=lambda gpu: gpu.minor)
    for gpu in affected:
        former = state.former_units[gpu.uuid]
        count = gpu.memory_mib // unit.mib
        names = first_of(former.pods, MANY_PODS)
        withheld = ""
        if former.withheld:
            withheld = f". Until then, {former.withheld} of its units are not advertised, or they would be sold twice"
        yield (
            f"{gpu} has {count} units of {unit} now; "
            f"these pods were given units of it when it had another number: {names}. "
            "Kubelet and schedulers count them as units of today: end these pods, or give the GPU its former units "
            f"back (--memory-unit, or the size of its memory){withheld}"
        )
