"""CPU, memory, number of pods and other resources: what a pod asks for as Kubernetes counts it, and what a node has.

All amounts are integers, as in kube-scheduler, so that forty pods of 100m fit on four cores.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.quantity import MOST, amount
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_MEM, GPU_WHOLE

MOST_OTHERS = 64
"""Other resources of a pod or a node that are kept: any author of pods may name thousands of them."""
MILLI = 1000
GIB = 2**30
_CPU = re.compile(
    r"\+?(?P<whole>[0-9]{0,12})(?:\.(?P<part>[0-9]{0,12}))?(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[num]?))",
    re.ASCII,
)
_MILLI_POWERS = {"": 3, "m": 0, "u": -3, "n": -6}
"""Suffix to the power of ten of one unit, in thousandths of a core."""
_LONGEST_KEPT = 32
"""Characters of a quantity whose value is kept, because many pods have it."""
_OF_GPUS = frozenset({GPU_CORE, GPU_COUNT, GPU_MEM, GPU_WHOLE})
_POD_LEVEL = ("cpu", "memory")
"""Resources that a pod may ask for as a whole, besides huge pages."""
_InUse = Mapping[str, list[Mapping[str, Any]]]
_Others = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of the resources of a node.

    Attributes:
        cpu: thousandths of a core.
        memory: bytes.
        pods: how many pods.
        others: name and amount of each other resource, by name, such as ephemeral storage and extended resources.
    """

    cpu: int = 0
    memory: int = 0
    pods: int = 0
    others: _Others = ()

    @property
    def cores(self) -> float:
        """CPU in cores, as policies rate it."""
        return self.cpu / MILLI

    def __add__(self, other: "Resources") -> "Resources":
        return self.plus(other, 1)

    def __sub__(self, other: "Resources") -> "Resources":
        return self.plus(other, -1)

    def plus(self, other: "Resources", times: int) -> "Resources":
        """The sum with other amounts, so many times; -1 takes them away."""
        others = _sum(self.others, other.others, times) if other.others else self.others
        return Resources(
            self.cpu + times * other.cpu,
            self.memory + times * other.memory,
            self.pods + times * other.pods,
            others,
        )

    def without(self, names: Collection[str]) -> "Resources":
        """The amounts of other resources than these."""
        others = tuple((name, units) for name, units in self.others if name not in names)
        return self if others == self.others else replace(self, others=others)

    def absent_from(self, allocatable: "Resources") -> set[str]:
        """The other resources that are asked for, and of which a node has none in all."""
        there = {name for name, _ in allocatable.others}
        return {name for name, _ in self.others if name not in there and name not in _OF_GPUS}

    def names(self) -> set[str]:
        """The resources that are asked for."""
        asked = {name for name, _ in self.others}
        known = (("cpu", self.cpu), ("memory", self.memory), ("pods", self.pods))
        asked.update(name for name, units in known if units)
        return asked

    def amounts(self, names: Sequence[str]) -> tuple[int, ...]:
        """The amounts of these resources."""
        amounts = dict(self.others)
        amounts |= {"cpu": self.cpu, "memory": self.memory, "pods": self.pods}
        return tuple(amounts.get(name, 0) for name in names)

    def short_in(self, allocatable: "Resources", used: "Resources") -> str:
        """The first resource of which a node has less free than is asked for; empty if it has enough."""
        names = sorted(self.names())
        free = free_amounts(allocatable, used, names)
        for name, wanted, units in zip(names, self.amounts(names), free, strict=True):
            if units < wanted:
                return name
        return ""

    def words(self, name: str) -> str:
        """How much of a resource is asked for."""
        (wanted,) = self.amounts([name])
        match name:
            case "cpu":
                return f"{wanted / MILLI:g} CPU"
            case "memory":
                return f"{wanted / GIB:.4g} GiB of memory"
            case _ if _is_in_bytes(name):
                return f"{wanted / GIB:.4g} GiB of {name}"
            case _:
                return f"{wanted} of {name}"

    def times_in(self, allocatable: "Resources", used: "Resources", most: int) -> int:
        """How many times a node has this free, at most `most`."""
        times = most
        # Without loops and calls, because thousands of nodes are asked for each plan.
        if self.cpu:
            times = min(times, (allocatable.cpu - used.cpu) // self.cpu)
        if self.memory:
            times = min(times, (allocatable.memory - used.memory) // self.memory)
        if self.pods:
            times = min(times, (allocatable.pods - used.pods) // self.pods)
        if self.others:
            names = [name for name, _ in self.others]
            free = free_amounts(allocatable, used, names)
            for (_, wanted), units in zip(self.others, free, strict=True):
                times = min(times, units // wanted)
        return max(times, 0)


NO_RESOURCES = Resources()


def free_amounts(allocatable: Resources, used: Resources, names: Sequence[str]) -> tuple[int, ...]:
    """How much of these resources a node has free.

    As for kube-scheduler, a node has none of what its status does not name. The units of GPUs are different: a node
    that names none of a kind is not limited in them, because they are counted GPU by GPU.
    """
    there = allocatable.amounts(names)
    taken = used.amounts(names)
    stated = {name for name, _ in allocatable.others}
    free: list[int] = []
    for name, units, of_pods in zip(names, there, taken, strict=True):
        is_counted_by_gpu = name in _OF_GPUS and name not in stated
        free.append(MOST if is_counted_by_gpu else units - of_pods)
    return tuple(free)


def _sum(first: _Others, second: _Others, times: int) -> _Others:
    total = dict(first)
    for name, units in second:
        total[name] = total.get(name, 0) + times * units
    by_name = sorted(total.items())
    return tuple((name, units) for name, units in by_name if units)


def node_resources(allocatable: Mapping[str, Any]) -> Resources:
    """What the pods of a node may use in all, from its status."""
    return _resources(_amounts(allocatable), pods=_units(allocatable.get("pods", "0")))


def pod_resources(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Resources:
    """What kube-scheduler counts for a pod on its node.

    These are the containers and sidecars together, or an init container with the sidecars before it where that is more,
    and the overhead of the pod. What is being resized counts with the larger amounts; if kubelet can never resize it,
    with those that it has.
    """
    in_use = _in_use(status)
    can_be_resized = not _is_resize_infeasible(status)
    total: dict[str, int] = {}
    for container in mappings(spec.get("containers")):
        _add(total, _requested(container, in_use, can_be_resized=can_be_resized))
    before: dict[str, int] = {}
    at_start: dict[str, int] = {}
    for container in mappings(spec.get("initContainers")):
        is_sidecar = container.get("restartPolicy") == "Always"
        # Only what runs beside the containers can be resized.
        requested = _requested(container, in_use if is_sidecar else {}, can_be_resized=can_be_resized)
        if is_sidecar:
            _add(total, requested)
            _add(before, requested)
            _raise(at_start, before)
        else:
            _add(requested, before)
            _raise(at_start, requested)
    _raise(total, at_start)
    total |= _of_pod(spec, status, can_be_resized=can_be_resized)
    _add(total, _amounts(mapping(spec.get("overhead"))))
    return _resources(total, pods=1)


def _of_pod(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    *,
    can_be_resized: bool,
) -> dict[str, int]:
    """What the pod asks for as a whole, or has where that is more."""
    requests = mapping(mapping(spec.get("resources")).get("requests"))
    asked = {name: units for name, units in _amounts(requests).items() if _is_of_pods(name)}
    resources = status.get("resources")
    if not asked or not isinstance(resources, Mapping):
        return asked
    has = _amounts(mapping(resources.get("requests")))
    _raise(has, _amounts(mapping(status.get("allocatedResources"))))
    if can_be_resized:
        _raise(has, asked)
    return {name: has.get(name, 0) for name in asked}


def _is_resize_infeasible(status: Mapping[str, Any]) -> bool:
    """Whether kubelet says that the pod's node can never have what the pod asks for by now."""
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == "PodResizePending":
            return bool(condition.get("reason") == "Infeasible")
    return False


def _is_of_pods(name: str) -> bool:
    """Whether a pod may ask for the resource as a whole."""
    return name in _POD_LEVEL or name.startswith("hugepages-")


def _is_in_bytes(name: str) -> bool:
    """Whether the amounts of the resource are bytes."""
    return name in {"ephemeral-storage", "storage"} or name.startswith("hugepages-")


def _resources(amounts: Mapping[str, int], pods: int) -> Resources:
    others = []
    for name, units in amounts.items():
        if units and name not in {"cpu", "memory", "pods"}:
            others.append((name, units))
    others.sort()
    return Resources(
        cpu=amounts.get("cpu", 0),
        memory=amounts.get("memory", 0),
        pods=pods,
        others=tuple(others[:MOST_OTHERS]),
    )


def _in_use(status: Mapping[str, Any]) -> _InUse:
    """Name of each container to the amounts that it has, which may differ from its spec while they are changed."""
    in_use: dict[str, list[Mapping[str, Any]]] = {}
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in mappings(status.get(key)):
            resources = container.get("resources")
            if isinstance(resources, Mapping):
                requests = mapping(mapping(resources).get("requests"))
                allocated = mapping(container.get("allocatedResources"))
                in_use[text(container.get("name"))] = [requests, allocated]
    return in_use


def _requested(
    container: Mapping[str, Any],
    in_use: _InUse,
    *,
    can_be_resized: bool,
) -> dict[str, int]:
    """What a container asks for, or has where that is more or it cannot get what it asks for."""
    requests = mapping(mapping(container.get("resources")).get("requests"))
    has = in_use.get(text(container.get("name")), ())
    requested: dict[str, int] = {}
    if has and not can_be_resized:
        for other in has:
            _raise(requested, _amounts(other))
        return requested
    requested = _amounts(requests)
    for other in has:
        # Most containers have what their spec says, and need not be read again.
        if other != requests:
            _raise(requested, _amounts(other))
    return requested


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, units in amounts.items():
        total[name] = total.get(name, 0) + units


def _raise(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, units in amounts.items():
        total[name] = max(total.get(name, 0), units)


def _amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Name to amount; CPU in thousandths of a core."""
    amounts: dict[str, int] = {}
    for name, quantity in quantities.items():
        amounts[name] = milli_cpu(quantity) if name == "cpu" else _units(quantity)
    return amounts


def milli_cpu(quantity: object) -> int:
    """A quantity of CPU (``4``, ``0.5``, ``3920m``) in thousandths of a core, rounded up; 0 if it is not one."""
    written = str(quantity)
    return _kept_milli_cpu(written) if len(written) <= _LONGEST_KEPT else _milli_cpu(written)


def _units(quantity: object) -> int:
    """The amount of another resource, rounded up; 0 if it is not one."""
    written = str(quantity)
    return _kept_units(written) if len(written) <= _LONGEST_KEPT else amount(written) or 0


@lru_cache(maxsize=4096)
def _kept_milli_cpu(quantity: str) -> int:
    return _milli_cpu(quantity)


@lru_cache(maxsize=4096)
def _kept_units(quantity: str) -> int:
    return amount(quantity) or 0


def _milli_cpu(quantity: str) -> int:
    match = _CPU.fullmatch(quantity)
    if match is None or not (match["whole"] or match["part"]):
        whole_cores = amount(quantity) or 0
        return min(whole_cores * MILLI, MOST)
    part = match["part"] or ""
    suffix = match["suffix"]
    exponent = 3 + int(match["exponent"]) if match["exponent"] else _MILLI_POWERS[suffix]
    power = exponent - len(part)
    digits = int(match["whole"] + part)
    if power >= 0:
        return min(digits * int(10**power), MOST)
    # Twice negative, because `//` rounds down.
    return -(-digits // int(10**-power))
