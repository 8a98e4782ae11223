"""What the API server stored of a ResourceSlice, if that is not what the agent sent.

An API server drops the fields of a feature gate that is off, and answers as if all were well. So the agent asks it
first, by a dry run, and sends no field that would be dropped. A webhook can change fields, too. To write the same again
would not help, and each write makes every scheduler read the slice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, text

Json = Mapping[str, Any]

CONSUMABLE = "DRAConsumableCapacity"
TAINTS = "DRADeviceTaints"
PARTITIONABLE = "DRAPartitionableDevices"
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
        paths = _differences(self.sent, self.stored, "spec")
        return tuple(dict.fromkeys(paths))

    @cached_property
    def gates(self) -> tuple[str, ...]:
        """The feature gates that are off."""
        gates = set()
        for path in _dropped(self.sent, self.stored, "spec"):
            name = path.rpartition(".")[2]
            if name in _GATES:
                gates.add(_GATES[name])
        return tuple(sorted(gates))


def _differences(
    sent: object,
    stored: object,
    path: str,
) -> Iterator[str]:
    """Paths of the fields of which one side lacks something, or has another value."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        names = dict.fromkeys([*sent, *stored])
        for name in names:
            sent_value = sent.get(name)
            stored_value = stored.get(name)
            yield from _differences(sent_value, stored_value, f"{path}.{name}")
        return
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        pairs = zip(sent, stored, strict=True)
        for item, other in pairs:
            yield from _differences(item, other, path)
    elif sent != stored:
        yield path


def _dropped(sent: object, stored: object, path: str) -> Iterator[str]:
    """Paths of the fields that were sent and are absent."""
    if isinstance(sent, dict):
        kept = mapping(stored)
        for name, value in sent.items():
            path_of_field = f"{path}.{name}"
            if name in kept:
                yield from _dropped(value, kept[name], path_of_field)
            elif value:
                # An empty value is as good as an absent field.
                yield path_of_field
    elif isinstance(sent, list) and isinstance(stored, list):
        pairs = zip(sent, stored, strict=False)
        for item, other in pairs:
            yield from _dropped(item, other, path)


def comparable(spec: Json) -> Json:
    """The spec without what every API server changes: it adds when each taint came, and omits an empty list."""
    untimed = with_taints(spec, _without_time)
    return {name: value for name, value in untimed.items() if value != []}


def _without_time(_: str, taint: Json) -> Json:
    return {name: value for name, value in taint.items() if name != "timeAdded"}


def with_taints(spec: Json, change: Callable[[str, Json], Json]) -> Json:
    """The spec with each taint of each device changed."""
    if "devices" not in spec:
        return spec
    devices = []
    for device in mappings(spec["devices"]):
        if "taints" not in device:
            devices.append(device)
            continue
        name = text(device.get("name"))
        taints = [change(name, taint) for taint in mappings(device["taints"])]
        devices.append({**device, "taints": taints})
    return {**spec, "devices": devices}
