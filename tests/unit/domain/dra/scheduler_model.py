"""The rules by which kube-scheduler gives devices to claims: the first that fits, in the order of the slices.

Source: k8s.io/dynamic-resource-allocation v0.36.3, structured/internal/incubating.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import DRA_DRIVER

Json = dict[str, Any]


@dataclass
class Scheduler:
    """Allocations by claim, each a result of the claim's status."""

    results: dict[str, list[Json]] = field(default_factory=dict)

    def allocate(self, uid: str, slices: dict[str, Json], wanted: Json) -> bool:
        """Give the first device that fits; False if none does.

        `wanted` has the attributes that the device must have, and in `capacity` the amounts.
        """
        for name in sorted(slices):
            for device in slices[name].get("devices", ()):
                if self._fits(device, slices, wanted):
                    result = {"request": "gpu", "driver": DRA_DRIVER, "pool": "n", "device": device["name"]}
                    if device.get("allowMultipleAllocations"):
                        result |= {"shareID": f"share-{uid}", "consumedCapacity": _texts(_consumed(device, wanted))}
                    self.results[uid] = [result]
                    return True
        return False

    def release(self, uid: str) -> None:
        del self.results[uid]

    def claim(self, uid: str) -> Json:
        return {"metadata": {"uid": uid}, "status": {"allocation": {"devices": {"results": self.results[uid]}}}}

    def _fits(self, device: Json, slices: dict[str, Json], wanted: Json) -> bool:
        attributes = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        if device.get("taints") or any(attributes.get(name) != value for name, value in wanted["attributes"].items()):
            return False
        mine = [one for results in self.results.values() for one in results if one["device"] == device["name"]]
        if not mine:
            return self._has_counters(device, slices) and self._has_capacity(device, mine, wanted)
        return bool(device.get("allowMultipleAllocations")) and self._has_capacity(device, mine, wanted)

    def _has_capacity(self, device: Json, mine: list[Json], wanted: Json) -> bool:
        if not device.get("allowMultipleAllocations"):
            return True
        used = Counter(_consumed(device, wanted))
        for one in mine:
            used.update({name: int(text) for name, text in one["consumedCapacity"].items()})
        return all(used[name] <= (amount(one["value"]) or 0) for name, one in device["capacity"].items())

    def _has_counters(self, device: Json, slices: dict[str, Json]) -> bool:
        left = Counter(counters(slices))
        taken = {one["device"] for results in self.results.values() for one in results}
        for other in (one for found in slices.values() for one in found.get("devices", ()) if one["name"] in taken):
            left.subtract(consumes(other))
        left.subtract(consumes(device))
        return min(left.values(), default=0) >= 0


def counters(slices: dict[str, Json]) -> dict[str, int]:
    """The pool's counters by name."""
    sets = [one for found in slices.values() for one in found.get("sharedCounters", ())]
    return {name: int(value["value"]) for one in sets for name, value in one["counters"].items()}


def consumes(device: Json) -> dict[str, int]:
    """What a device takes of them."""
    return {
        name: int(value["value"])
        for one in device.get("consumesCounters", ())
        for name, value in one["counters"].items()
    }


def _consumed(device: Json, wanted: Json) -> dict[str, int]:
    """Amounts by name; of those that are not asked for, the default."""
    asked = wanted.get("capacity", {})
    return {
        name: asked.get(name, amount(one["requestPolicy"]["default"]) or 0) for name, one in device["capacity"].items()
    }


def _texts(amounts: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in amounts.items()}
