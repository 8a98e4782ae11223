"""The size of one unit of `aliyun.com/gpu-mem` on a node, derived from memory and amounts together."""

from dataclasses import dataclass

from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, GPU_CORE, GPU_MEM
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.read.gpu_node import GpuNode

GIB, MIB = 1024, 1
_BLOCKS = tuple(sorted({*(2**power for power in range(1, 18)), *(GIB * n for n in range(2, 65))}, reverse=True))
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
    units, count, memory = node.offered(GPU_MEM), node.gpu_count, node.first_mib
    if not count:
        return Measure(None, None, "nothing on the node says how many GPUs it has")
    each = units // count if units % count == 0 else None
    if not memory:
        return Measure(
            None, each, "the node has no label aliyun.accelerator/nvidia_mem, so the size of a unit is unknown"
        )
    if each and (alike := _alike(each, memory, cut=node.agent)):
        return alike
    some, odd = _some_offered(units, count, memory), _odd(each, units, count, memory)
    if some and odd.per_gpu:
        return Measure(None, None, f"{odd.doubt}; or else {some.doubt}")
    return some or odd


def part_of_each(node: GpuNode, resource: str) -> int | None:
    """Compute, or whole GPUs, of each GPU; None where the node does not offer all of them, as in a mode switch."""
    each = CORE_PERCENT_PER_GPU if resource == GPU_CORE else 1
    return each if node.offered(resource) == each * (node.gpu_count or 0) else None


def _alike(each: int, memory: int, *, cut: bool) -> Measure | None:
    """Every GPU has the units of the first. `cut`: only whole ones count, as with this project's agent."""
    # Some plugins round up: they count 15109 MiB as 15 GiB.
    if each == memory // GIB or (not cut and each == -(-memory // GIB)):
        return Measure(MemoryUnit(GIB), each)
    return Measure(MemoryUnit(MIB), each) if each == memory else None


def _some_offered(units: int, count: int, memory: int) -> Measure | None:
    """The units are those of fewer GPUs than there are: a mode switch, MIG."""
    for block in (GIB, MIB):
        if (whole := memory // block) and units % whole == 0 and units // whole < count:
            text = f"{units // whole} of {count} GPUs are advertised, and only the agent can say which"
            return Measure(MemoryUnit(block), None, text)
    return None


def _odd(each: int | None, units: int, count: int, memory: int) -> Measure:
    """A custom unit, or GPUs of different sizes."""
    for block in _BLOCKS if each else ():
        if memory // block == each:
            text = f"the unit {MemoryUnit(block)} follows from the first GPU and is right if all GPUs are alike"
            return Measure(MemoryUnit(block), each, text)
    text = f"{units} units on {count} GPUs, of which the first has {memory} MiB: the GPUs are not alike"
    return Measure(None, None, text)
