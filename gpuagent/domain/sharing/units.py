"""Units that kubelet counts: device ids, the memory unit, and the size of a device list on the wire."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuagent.domain.gpus.gpu import KEY_CHARS, Gpu
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, GPU_MEM, Kind

MIB = 2**20
"""Bytes."""

MAX_LIST_BYTES = 4_000_000
"""Kubelet's gRPC client receives 4,194,304 bytes at most; a larger list leaves the resource at 0 forever."""

MANY_DEVICES = 5_000
"""Above this number of devices of one resource, kubelet's restarts and pod status become slow."""

MORE_THAN_A_NODE = 2**20
"""Units of one resource that no node has: their list would exceed `MAX_LIST_BYTES` several times."""

KINDS = {kind.value: kind for kind in Kind}
"""Middle part of a device id to its kind."""

_ID = re.compile(rf"([a-z2-7]{{{KEY_CHARS}}})-([a-z]{{2}})-(0|[1-9][0-9]{{0,6}})")

MEMORY_UNIT = re.compile(r"([1-9][0-9]{0,6})?(MiB|GiB)")
"""A whole block of MiB or GiB. The chart's schema has the same pattern, so RE2 must support it."""


@dataclass(frozen=True, slots=True)
class UnitId:
    """The parts of a device id, ``<gpu key>-<kind>-<n>``: ``hbw464wgz6-mc-12``."""

    gpu_key: str
    kind: Kind
    n: int

    def __str__(self) -> str:
        return f"{self.gpu_key}-{self.kind.value}-{self.n}"


def device_ids(gpu_key: str, kind: Kind, count: int) -> Iterator[str]:
    """The device ids of a GPU, in order. There may be many, so the common prefix is formatted once."""
    prefix = str(UnitId(gpu_key, kind, 0)).removesuffix("0")
    return (f"{prefix}{n}" for n in range(count))


def parse_id(device_id: str) -> UnitId | None:
    """The parts of an id of this agent; None for any other text."""
    match = _ID.fullmatch(device_id)
    if match is None:
        return None
    gpu_key, kind_text, number = match.groups()
    kind = KINDS.get(kind_text)
    if kind is None:
        return None
    return UnitId(gpu_key, kind, int(number))


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """The amount of GPU memory of one device of `aliyun.com/gpu-mem`. Its `name` is ``GiB`` or ``256MiB``."""

    mib: int = 1024
    name: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        is_whole_gib = self.mib % 1024 == 0
        count = self.mib // 1024 if is_whole_gib else self.mib
        name = "GiB" if is_whole_gib else "MiB"
        if count != 1:
            name = f"{count}{name}"
        object.__setattr__(self, "name", name)

    @classmethod
    def parse(cls, text: str) -> "MemoryUnit":
        """Read ``GiB``, ``MiB``, ``2GiB`` or ``256MiB``.

        Raises:
            ValueError: other text, or a block of size 0.
        """
        match = MEMORY_UNIT.fullmatch(text.strip())
        if not match:
            msg = f"memory unit {text!r} is not a whole block of MiB or GiB, such as GiB, 2GiB or 256MiB"
            raise ValueError(msg)
        count = int(match[1] or "1")
        mib_each = 1024 if match[2] == "GiB" else 1
        return cls(count * mib_each)

    @property
    def phrase(self) -> str:
        """The words after a number of units in a sentence: ``GiB``, ``x 256MiB``."""
        is_single = self.mib in {1, 1024}
        return str(self) if is_single else f"x {self}"

    @property
    def size(self) -> str:
        """The amount of one unit in a sentence: ``1 GiB``, ``256 MiB``."""
        if self.mib % 1024 == 0:
            return f"{self.mib // 1024} GiB"
        return f"{self.mib} MiB"

    def __str__(self) -> str:
        return self.name


def units_of(gpu: Gpu, kind: Kind, unit: MemoryUnit) -> int:
    """How many units of `kind` one GPU has."""
    if kind.is_whole:
        return 1
    if kind.is_memory:
        return gpu.memory_mib // unit.mib
    return CORE_PERCENT_PER_GPU


def list_bytes(gpus: Iterable[Gpu], kind: Kind, unit: MemoryUnit) -> int:
    """Encoded size of the full device list in bytes, every device at its largest (Unhealthy)."""
    total = 0
    for gpu in gpus:
        without_number = len(gpu.key) + len(kind.value) + len("--")
        # Field headers: 2 for the device in the list, 2 for the id, 2 + 9 for "Unhealthy". A device of 128 bytes or
        # more would need one more byte, but devices with these ids are always shorter.
        headers = 2 + 2 + 11
        per_device = headers + without_number + _topology_bytes(gpu)
        count = units_of(gpu, kind, unit)
        total += count * per_device
        total += _digits_below(count)
    return total


def _topology_bytes(gpu: Gpu) -> int:
    """Encoded size of a device's NUMA node. Node 0 needs no number."""
    if gpu.numa_node is None:
        return 0
    return 6 if gpu.numa_node else 4


def _digits_below(count: int) -> int:
    """The digits of all numbers from 0 up to `count`, which is not included."""
    total = 0
    low = 0
    digits = 1
    while low < count:
        high = min(count, 10**digits)
        total += (high - low) * digits
        low = high
        digits += 1
    return total


def smallest_unit_that_fits(gpus: tuple[Gpu, ...], kind: Kind) -> MemoryUnit:
    """The smallest power-of-two block of MiB with which the list of these GPUs stays below the limit."""
    mib = 1
    while list_bytes(gpus, kind, MemoryUnit(mib)) > MAX_LIST_BYTES:
        mib *= 2
    return MemoryUnit(mib)


def largest_unit(memory_mib: int) -> MemoryUnit | None:
    """The largest unit that fits a GPU: of whole GiB, or of MiB below that; None for a GPU without memory."""
    gib = memory_mib // 1024
    if gib:
        return MemoryUnit(gib * 1024)
    if memory_mib > 0:
        return MemoryUnit(memory_mib)
    return None


def if_bytes(units: int, unit: MemoryUnit | None = None) -> str:
    """What to write in place of an amount of bytes, such as ``8Gi``; empty for an amount that a node may have.

    `unit` is that of the node; None where the node is not known.
    """
    if units < MORE_THAN_A_NODE:
        return ""
    each = unit or MemoryUnit()
    is_of_node = unit is not None
    size = each.size if is_of_node else f"{each.size} by default"
    bytes_per_unit = each.mib * 2**20
    # Rounded up: with less, the pod would not get the bytes that it asks for.
    write = -(-units // bytes_per_unit)
    lead = f"an amount of {GPU_MEM} is a number of units, each of {size}, and not of bytes"
    return f"{lead}: write {write}"
