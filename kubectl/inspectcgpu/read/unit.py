"""The size of one unit of `aliyun.com/gpu-mem` on a node, derived from memory and amounts together."""

from dataclasses import dataclass

from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, GPU_CORE, GPU_MEM
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.read.gpu_node import GpuNode

GIB = 1024
MIB = 1
_POWERS_OF_TWO = {2**power for power in range(1, 18)}
_WHOLE_GIB = {GIB * count for count in range(2, 65)}
_CUSTOM_UNITS = tuple(sorted(_POWERS_OF_TWO | _WHOLE_GIB, reverse=True))
"""Custom units that are recognized, in MiB: powers of two, and whole GiB."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How a node counts GPU memory.

    Attributes:
        unit: None where it is not known.
        per_gpu: units of each GPU; None where GPUs differ or it is not known.
        doubt: why only the node's agent can show the unit; "" where labels and amounts suffice.
    """

    unit: MemoryUnit | None
    per_gpu: int | None
    doubt: str = ""


def measure(node: GpuNode) -> Measure:
    """Derive it: compare memory of the first GPU and number of GPUs (labels) with the advertised units (node status).

    A GPU of 143771 MiB with 140 units counts in GiB, one with 143771 units in MiB, one with 561 units in 256MiB.
    """
    units = node.offered(GPU_MEM)
    count = node.gpu_count
    memory_mib = node.first_mib
    if not count:
        return Measure(None, None, "nothing on the node says how many GPUs it has")
    per_gpu = units // count if units % count == 0 else None
    if not memory_mib:
        doubt = "the node has no label aliyun.accelerator/nvidia_mem, so the size of a unit is unknown"
        return Measure(None, per_gpu, doubt)
    usual_unit = _usual_unit(per_gpu, memory_mib, cut=node.agent) if per_gpu else None
    if usual_unit:
        return Measure(usual_unit, per_gpu)
    fewer_gpus = _of_fewer_gpus(units, count, memory_mib)
    custom_unit = _custom_unit(per_gpu, units, count, memory_mib)
    if fewer_gpus is None:
        return custom_unit
    if custom_unit.per_gpu:
        # Both explain the amounts, so neither can be believed.
        return Measure(None, None, f"{custom_unit.doubt}; or else {fewer_gpus.doubt}")
    return fewer_gpus


def part_of_each(node: GpuNode, resource: str) -> int | None:
    """Compute, or whole GPUs, of each GPU; None where the node does not offer all of them, as in a mode switch."""
    each = CORE_PERCENT_PER_GPU if resource == GPU_CORE else 1
    count = node.gpu_count or 0
    return each if node.offered(resource) == each * count else None


def _usual_unit(per_gpu: int, memory_mib: int, *, cut: bool) -> MemoryUnit | None:
    """GiB or MiB, if every GPU has as many as the first. `cut`: only whole GiB count, as with this project's agent."""
    rounded_down = memory_mib // GIB
    rounded_up = -(-memory_mib // GIB)
    # Some plugins round up: they count 15109 MiB as 15 GiB.
    if per_gpu == rounded_down or (per_gpu == rounded_up and not cut):
        return MemoryUnit(GIB)
    return MemoryUnit(MIB) if per_gpu == memory_mib else None


def _of_fewer_gpus(units: int, count: int, memory_mib: int) -> Measure | None:
    """The units are those of fewer GPUs than there are, as in a mode switch or with MIG; None if they are not."""
    for unit_mib in (GIB, MIB):
        of_first = memory_mib // unit_mib
        if not of_first or units % of_first:
            continue
        gpus = units // of_first
        if gpus < count:
            doubt = f"{gpus} of {count} GPUs are advertised, and only the agent can say which"
            return Measure(MemoryUnit(unit_mib), None, doubt)
    return None


def _custom_unit(per_gpu: int | None, units: int, count: int, memory_mib: int) -> Measure:
    """A custom unit, of which every GPU has as many as the first; otherwise the GPUs are of different sizes."""
    if per_gpu:
        for unit_mib in _CUSTOM_UNITS:
            if memory_mib // unit_mib == per_gpu:
                unit = MemoryUnit(unit_mib)
                doubt = f"the unit {unit} follows from the first GPU and is right if all GPUs are alike"
                return Measure(unit, per_gpu, doubt)
    doubt = f"{units} units on {count} GPUs, of which the first has {memory_mib} MiB: the GPUs are not alike"
    return Measure(None, None, doubt)
