"""An API server's rules for ResourceSlices: how many devices, and what capacity they can have.

Source: k8s.io/kubernetes v1.36.3, pkg/apis/resource/validation/validation.go; the texts are shortened.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from gpuagent.domain.pods.quantity import amount
from standin.api.refusal import Refusal
from standin.api.timestamps import timestamp

Json = dict[str, Any]

_MOST_DEVICES, _MOST_SPECIAL, _MOST_VALUES, _MOST_TEXT = 128, 64, 32, 64


def check_slice(found: Json) -> None:
    """Raise Refusal 422 for a slice that breaks a rule; note when each taint came."""
    devices = found["spec"].get("devices") or []
    if devices and found["spec"].get("sharedCounters"):
        raise Refusal(422, "Invalid", "spec: Invalid value: only one of sharedCounters or devices may be set")
    for device in devices:
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", timestamp())
    if problems := [*_problems(devices)]:
        text = f'ResourceSlice "{found["metadata"]["name"]}" is invalid: {"; ".join(problems)}'
        raise Refusal(422, "Invalid", text)


_OF_GATES = {
    "DRAConsumableCapacity": ("allowMultipleAllocations", "requestPolicy"),
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "sharedCounters"),
}


def gates_in_use(found: Json | None) -> set[str]:
    """The feature gates of whose fields a slice has some: updates of it keep them, also while the gate is off."""
    places = _places(found) if found else []
    return {gate for gate, fields in _OF_GATES.items() for place in places if place.keys() & set(fields)}


def drop_fields(found: Json, gates_off: Iterable[str]) -> None:
    """Drop the fields of feature gates that are off, in silence. Source: pkg/registry/resource/resourceslice."""
    dropped = {field for gate in gates_off for field in _OF_GATES[gate]}
    for place in _places(found):
        for field in dropped:
            place.pop(field, None)


def _places(found: Json) -> list[Json]:
    """Where a slice can have fields of gates: in the spec, its devices and their capacities."""
    places = [found["spec"], *(found["spec"].get("devices") or ())]
    places += [value for device in places[1:] for value in (device.get("capacity") or {}).values()]
    return places


def _problems(devices: list[Json]) -> Iterator[str]:
    is_special = any(one.get("taints") or one.get("consumesCounters") for one in devices)
    most = _MOST_SPECIAL if is_special else _MOST_DEVICES
    if len(devices) > most:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {most} items"
    if len({one["name"] for one in devices}) < len(devices):
        yield "spec.devices: Duplicate value"
    for number, device in enumerate(devices):
        where = f"spec.devices[{number}]"
        attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
        if len(attributes) + len(capacity) > _MOST_VALUES:
            yield f"{where}: the total number of attributes and capacities must not exceed {_MOST_VALUES}"
        for name, value in attributes.items():
            if len(value.get("string", "")) > _MOST_TEXT:
                yield f"{where}.attributes[{name}].string: Too long: may not be more than {_MOST_TEXT} bytes"
        for name, value in capacity.items():
            policy = value.get("requestPolicy")
            if policy and not device.get("allowMultipleAllocations"):
                yield f"{where}.capacity[{name}].requestPolicy: Forbidden: needs allowMultipleAllocations"
            if policy and not _is_consistent(policy, value["value"]):
                yield f"{where}.capacity[{name}].requestPolicy: Invalid value: {policy} for {value['value']}"


def _is_consistent(policy: Json, value: str) -> bool:
    """Whether default and maximum can be requested, and the device has as much. Source: validateRequestPolicyRange."""
    whole = _read(value)
    default = _read(policy["default"])
    if valid_range := policy.get("validRange"):
        return _is_in_range(valid_range, default, whole)
    valid_values = {_read(valid_value) for valid_value in policy.get("validValues") or ()}
    return default in valid_values and default <= whole


def _is_in_range(valid_range: Json, default: int, whole: int) -> bool:
    """Whether a device of `whole` may have this range: its default and its maximum are whole steps above the least."""
    least = _read(valid_range["min"])
    most = _read(valid_range["max"]) if "max" in valid_range else whole
    if not least <= default <= most <= whole:
        return False
    if "step" not in valid_range:
        return True
    step = _read(valid_range["step"])
    if least + step > whole:
        return False
    default_is_a_step = (default - least) % step == 0
    most_is_a_step = (most - least) % step == 0
    return default_is_a_step and most_is_a_step


def _read(text: str) -> int:
    found = amount(text)
    if found is None:
        raise Refusal(400, "BadRequest", f"quantities must match the regular expression: {text}")
    return found
