"""Which devices a ResourceClaim gets: the first ones that fit, in the order of pools, slices and devices.

Source: k8s.io/dynamic-resource-allocation v0.36.3, structured/internal/incubating. Left out: ``distinctAttribute``.
"""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.pods.quantity import amount
from standin.scheduler.selectors import attribute, selects

Json = Mapping[str, Any]
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a ResourceSlice."""

    driver: str
    pool: str
    body: Json = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """Driver, pool and name, as allocations have them."""
        return self.driver, self.pool, self.body["name"]


@dataclass(frozen=True, slots=True)
class _Chosen:
    request: Json
    name: str
    device: Device
    consumed: Mapping[str, int]


class Devices:
    """The devices that one node can use, and how much of them all claims consume."""

    def __init__(self, slices: Iterable[Json], claims: Iterable[Json]) -> None:
        newest: dict[tuple[str, str], list[Json]] = {}
        for one in slices:
            pool = newest.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), [one])
            known, generation = (each["spec"]["pool"]["generation"] for each in (pool[0], one))
            if generation > known:
                pool[:] = [one]
            elif generation == known and one is not pool[0]:
                pool.append(one)
        self._devices = [
            Device(driver, pool, device)
            for (driver, pool), found in sorted(newest.items(), key=lambda entry: entry[0][::-1])
            if len(found) == found[0]["spec"]["pool"]["resourceSliceCount"]
            for one in sorted(found, key=lambda each: each["metadata"]["name"])
            for device in one["spec"].get("devices") or ()
        ]
        self._counters = {
            (pool, shared["name"], name): _read(value["value"])
            for (_, pool), found in newest.items()
            for one in found
            for shared in one["spec"].get("sharedCounters") or ()
            for name, value in shared["counters"].items()
        }
        self._consumed: dict[tuple[str, str, str], Counter[str]] = {}
        for claim in claims:
            for result in results(claim):
                if result.get("adminAccess"):
                    continue  # what is only looked at is not consumed
                self._consume(key_of(result), {k: _read(v) for k, v in result.get("consumedCapacity", {}).items()})

    def allocate(self, claim: Json, classes: Mapping[str, Json]) -> list[dict[str, Any]] | None:
        """Results for the status of a claim; None while it has to wait."""
        spec = claim["spec"]["devices"]
        for chosen in self._choices([*spec["requests"]], spec.get("constraints") or (), classes, ()):
            return [_result(one) for one in chosen]
        return None

    def taints(self, result: Json) -> Iterator[Json]:
        """Taints of an allocated device that its request does not tolerate."""
        for device in self._devices:
            if device.key == key_of(result):
                yield from _untolerated(device.body, result.get("tolerations") or ())

    def _choices(
        self,
        requests: list[Json],
        constraints: Iterable[Json],
        classes: Mapping[str, Json],
        so_far: tuple[_Chosen, ...],
    ) -> Iterator[tuple[_Chosen, ...]]:
        """All ways to serve the requests, best first."""
        if not requests:
            yield so_far
            return
        first, *others = requests
        exact = [(first["name"], first["exactly"])] if "exactly" in first else []
        for name, request in exact or [(f"{first['name']}/{sub['name']}", sub) for sub in first["firstAvailable"]]:
            ways = self._ways(name, request, constraints, classes, so_far)
            for chosen in ways:
                yield from self._choices(others, constraints, classes, chosen)

    def _ways(
        self,
        name: str,
        request: Json,
        constraints: Iterable[Json],
        classes: Mapping[str, Json],
        so_far: tuple[_Chosen, ...],
    ) -> Iterator[tuple[_Chosen, ...]]:
        """All ways to serve one request."""
        if request.get("allocationMode") != "All":
            yield from self._combinations(name, request, request.get("count", 1), constraints, classes, so_far)
            return
        chosen = so_far
        for device in self._devices:
            # A device that has too little left is not one of all.
            consumed = self._fit(device, request, classes, chosen)
            if consumed is not None:
                chosen = (*chosen, _Chosen(request, name, device, consumed))
        holds = all(_holds(constraint, chosen) for constraint in constraints)
        if len(chosen) > len(so_far) and holds:
            yield chosen

    def _combinations(
        self,
        name: str,
        request: Json,
        count: int,
        constraints: Iterable[Json],
        classes: Mapping[str, Json],
        so_far: tuple[_Chosen, ...],
        start: int = 0,
    ) -> Iterator[tuple[_Chosen, ...]]:
        if not count:
            yield so_far
            return
        for index, device in enumerate(self._devices[start:], start + 1):
            consumed = self._fit(device, request, classes, so_far)
            if consumed is not None:
                chosen = (*so_far, _Chosen(request, name, device, consumed))
                if all(_holds(one, chosen) for one in constraints):
                    yield from self._combinations(name, request, count - 1, constraints, classes, chosen, index)

    def _fit(
        self, device: Device, request: Json, classes: Mapping[str, Json], so_far: tuple[_Chosen, ...]
    ) -> Mapping[str, int] | None:
        """The amounts that the request would consume of the device; None if that is impossible."""
        body = device.body
        selectors = [*classes[request["deviceClassName"]]["spec"].get("selectors", ()), *request.get("selectors", ())]
        if not all(selects(one["cel"]["expression"], device.driver, body) for one in selectors):
            return None
        if any(one["effect"] != "None" for one in _untolerated(body, request.get("tolerations") or ())):
            return None
        used = Counter(self._consumed.get(device.key, {}))
        users = [one for one in so_far if not one.request.get("adminAccess")]
        for one in users:
            if one.device.key == device.key:
                used.update(one.consumed)
        every = {*self._consumed, *(one.device.key for one in users)}
        watches = bool(request.get("adminAccess"))
        taken = device.key in every and not watches
        if not taken and not watches and not self._has_counters(device, every):
            return None
        wanted = (request.get("capacity") or {}).get("requests") or {}
        capacity = body.get("capacity") or {}
        if (taken and not body.get("allowMultipleAllocations")) or not wanted.keys() <= capacity.keys():
            return None
        consumed = {name: _consumed(wanted.get(name), one) for name, one in capacity.items()}
        for name, value in consumed.items():
            if value is None or used[name] + value > _read(capacity[name]["value"]):
                return None
        return {name: value for name, value in consumed.items() if value is not None}

    def _has_counters(self, device: Device, taken: Collection[tuple[str, str, str]]) -> bool:
        """Whether the counters of the pool are enough for the device beside those that are taken."""
        left = Counter(self._counters)
        for one in self._devices:
            if one.key in taken:
                left.subtract(_counters(one))
        return all(left[name] >= value for name, value in _counters(device).items())

    def _consume(self, key: tuple[str, str, str], consumed: Mapping[str, int]) -> None:
        self._consumed.setdefault(key, Counter()).update(consumed)


def results(claim: Json) -> list[dict[str, Any]]:
    """The allocated devices of a claim."""
    found: list[dict[str, Any]] = (
        ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
    )
    return found


def key_of(result: Json) -> tuple[str, str, str]:
    """The device of a result."""
    return result["driver"], result["pool"], result["device"]


def _counters(device: Device) -> dict[tuple[str, str, str], int]:
    """Counters that a device consumes, once: further shares of it consume none."""
    return {
        (device.pool, shared["counterSet"], name): _read(value["value"])
        for shared in device.body.get("consumesCounters") or ()
        for name, value in shared["counters"].items()
    }


def _result(chosen: _Chosen) -> dict[str, Any]:
    driver, pool, device = chosen.device.key
    found: dict[str, Any] = {"request": chosen.name, "driver": driver, "pool": pool, "device": device}
    if chosen.request.get("tolerations"):
        found["tolerations"] = chosen.request["tolerations"]
    if chosen.request.get("adminAccess"):
        found["adminAccess"] = True
    if chosen.device.body.get("allowMultipleAllocations"):
        found["shareID"] = str(uuid.uuid4())
        found["consumedCapacity"] = {name: _written(value) for name, value in chosen.consumed.items()}
    return found


def _consumed(wanted: str | None, capacity: Json) -> int | None:
    """The amount that a request consumes, rounded as the policy says; None if the policy has no such amount."""
    policy = capacity.get("requestPolicy") or {}
    if wanted is None:
        return _read(policy.get("default") or capacity["value"])
    value, within = _read(wanted), policy.get("validRange")
    if within:
        least, step = _read(within["min"]), _read(within.get("step", "1"))
        value = least + max(0, -(-(value - least) // step)) * step
        return value if value <= _read(within.get("max", capacity["value"])) else None
    if "validValues" in policy:
        return next((one for one in map(_read, policy["validValues"]) if one >= value), None)
    return value


def _holds(constraint: Json, chosen: tuple[_Chosen, ...]) -> bool:
    """Whether the devices have one value of the attribute that has to match."""
    names = constraint.get("requests") or ()
    bound = [one for one in chosen if not names or {one.name, one.name.partition("/")[0]} & {*names}]
    values = {attribute(one.device.driver, one.device.body, constraint["matchAttribute"]) for one in bound}
    return not bound or (len(values) == 1 and None not in values)


def _untolerated(body: Json, tolerations: Iterable[Json]) -> Iterator[Json]:
    for taint in body.get("taints") or ():
        if not any(_tolerates(one, taint) for one in tolerations):
            yield taint


def _tolerates(toleration: Json, taint: Json) -> bool:
    same_value: bool = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    same_key: bool = toleration.get("key", taint["key"]) == taint["key"]
    return same_key and same_value and toleration.get("effect") in (None, taint["effect"])


def _read(text: str) -> int:
    found = amount(text)
    if found is None:
        raise ValueError(f"not a quantity: {text}")
    return found


def _written(value: int) -> str:
    """In the largest binary unit without a fraction."""
    power = 0
    while value and not value % 1024 and power < len(_SUFFIXES) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_SUFFIXES[power]}"
