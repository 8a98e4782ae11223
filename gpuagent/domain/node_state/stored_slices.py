"""What the API server stored of a ResourceSlice, if that is not what the agent sent.

An API server drops the fields of a feature gate that is off, and answers as if all were well. A webhook can change
them. To write the same again would not help, and each write makes every scheduler read the slice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, text

Json = Mapping[str, Any]

CONSUMABLE, TAINTS, PARTITIONABLE = "DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices"
_GATES = {
    "allowMultipleAllocations": CONSUMABLE,
    "requestPolicy": CONSUMABLE,
    "taints": TAINTS,
    "consumesCounters": PARTITIONABLE,
    "sharedCounters": PARTITIONABLE,
}
"""Name of a field to the feature gate that it belongs to. Source: k8s.io/kubernetes, pkg/registry/resource."""


@dataclass(frozen=True, kw_only=True)
class StoredSlice:
    """A write of a slice that was answered with another content. Both specs are without the times of taints."""

    sent: Json = field(repr=False)
    stored: Json = field(repr=False)

    @cached_property
    def differences(self) -> tuple[str, ...]:
        """Paths of the fields that were dropped, changed or added, each once."""
        return tuple(dict.fromkeys(_differences(self.sent, self.stored, "spec")))

    @cached_property
    def gates(self) -> tuple[str, ...]:
        """The feature gates that are off."""
        names = (path.rpartition(".")[2] for path in _dropped(self.sent, self.stored, "spec"))
        return tuple(sorted({_GATES[name] for name in names if name in _GATES}))


def _differences(sent: object, stored: object, path: str) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(stored, dict):
        for name in dict.fromkeys([*sent, *stored]):
            yield from _differences(sent.get(name), stored.get(name), f"{path}.{name}")
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for item, other in zip(sent, stored, strict=True):
            yield from _differences(item, other, path)
    elif sent != stored:
        yield path


def _dropped(sent: object, stored: object, path: str) -> Iterator[str]:
    """Paths of the fields that were sent and are absent."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            if name in mapping(stored):
                yield from _dropped(value, mapping(stored)[name], f"{path}.{name}")
            elif value:
                yield f"{path}.{name}"
    elif isinstance(sent, list) and isinstance(stored, list):
        for item, other in zip(sent, stored, strict=False):
            yield from _dropped(item, other, path)


def without_times(spec: Json) -> Json:
    """The spec without what every API server adds: when each taint came."""
    return with_taints(spec, lambda _, taint: {name: value for name, value in taint.items() if name != "timeAdded"})


def with_taints(spec: Json, change: Callable[[str, Json], Json]) -> Json:
    """The spec with each taint of each device changed."""
    if "devices" not in spec:
        return spec
    devices = [
        {**device, "taints": [change(text(device.get("name")), taint) for taint in mappings(device["taints"])]}
        if "taints" in device
        else device
        for device in mappings(spec["devices"])
    ]
    return {**spec, "devices": devices}
