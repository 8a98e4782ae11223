"""The GPUs that a node publishes in its ResourceSlices, as far as they matter for the choice of a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import DRA_DRIVER

MIB = 1 << 20
MOST_DEVICES = 128
"""Devices of a slice. The API server takes no more."""
_KEEPS_CLAIMS_OFF = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU, or a set of them that is given as one device.

    Attributes:
        name: of the device.
        memory_mib: of the GPU; 0 if it is not shared out.
        members: of a set, the names of its GPUs; empty for a GPU.
        usable: no taint keeps new claims off.
    """

    name: str
    memory_mib: int = 0
    members: tuple[str, ...] = ()
    usable: bool = True


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """One of a node's ResourceSlices."""

    name: str
    node: str
    devices: tuple[GpuDevice, ...]


def read_slice(found: Mapping[str, Any]) -> SliceFacts | None:
    """Read a ResourceSlice (decoded JSON); None if it is of another driver, or of no node."""
    spec = mapping(found.get("spec"))
    node = text(spec.get("nodeName"))
    if spec.get("driver") != DRA_DRIVER or not node:
        return None
    listed = islice(mappings(spec.get("devices")), MOST_DEVICES)
    devices = tuple(map(_device, listed))
    name = text(mapping_at(found, "metadata").get("name"))
    return SliceFacts(name, node, devices)


def _device(listed: Mapping[str, Any]) -> GpuDevice:
    kind = mapping_at(listed, "attributes", "type").get("string")
    memory = mapping_at(listed, "capacity", "memory").get("value")
    effects = {taint.get("effect") for taint in mappings(listed.get("taints"))}
    is_set = kind == "gpu-set"
    return GpuDevice(
        name=text(listed.get("name")),
        memory_mib=mib_of(memory),
        members=_consumed_gpus(listed) if is_set else (),
        usable=not effects & _KEEPS_CLAIMS_OFF,
    )


def _consumed_gpus(listed: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPUs whose counters a device consumes. A counter has the name of its GPU."""
    names: list[str] = []
    for consumed in islice(mappings(listed.get("consumesCounters")), MOST_DEVICES):
        counters = mapping(consumed.get("counters"))
        names += islice(counters, MOST_DEVICES)
    return tuple(names)


def mib_of(quantity: object) -> int:
    """Whole MiB of a quantity; 0 if it cannot be read."""
    return (amount(text(quantity)) or 0) // MIB
