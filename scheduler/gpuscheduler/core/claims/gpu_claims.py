"""ResourceClaims for GPUs: what they ask for, and what they have."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpuagent.domain.dra.device_classes import CLASSES, SET_CLASS
from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER
from gpuscheduler.core.claims.gpu_devices import mib_of

MOST_REQUESTS = 32
"""Requests, results or claims that are read. The API server takes no more of them."""
MOST_ALTERNATIVES = 8
"""Of one request. The API server takes no more."""
MOST_GPUS = 128
_SIZE_OF_SET = re.compile(r"\.gpus\s*==\s*(\d{1,3})\b")
_MOST_EXPRESSION = 10 * 1024


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """What a request asks for.

    Attributes:
        gpus: number of GPUs.
        memory_mib: of each; 0 for all of it.
        cores: percent of the compute of each; 0 for no guarantee.
        fallback: the next alternative, which is given where this one is not free; None without one.
    """

    gpus: int
    memory_mib: int = 0
    cores: int = 0
    fallback: "ClaimDemand | None" = None

    @property
    def alternatives(self) -> "tuple[ClaimDemand, ...]":
        """This one and those after it, best first."""
        later = self.fallback.alternatives if self.fallback else ()
        return (self, *later)


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that a claim has.

    Attributes:
        node: that publishes it.
        device: its name.
        memory_mib: consumed; 0 for all of it.
        cores: percent consumed.
    """

    node: str
    device: str
    memory_mib: int = 0
    cores: int = 0


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """A claim of which at least one request is for our devices.

    Attributes:
        uid: of the claim.
        name: namespace and name.
        demands: of its requests for our devices.
        held: our devices that it has; empty until it is allocated.
    """

    uid: str
    name: PodName
    demands: tuple[ClaimDemand, ...]
    held: tuple[HeldDevice, ...] = ()


def read_claim(found: Mapping[str, Any]) -> GpuClaim | None:
    """Read a ResourceClaim (decoded JSON); None if it neither asks for our devices nor has one."""
    metadata = mapping(found.get("metadata"))
    demands = tuple(_demands(mapping_at(found, "spec", "devices")))
    held = tuple(_held(mapping_at(found, "status", "allocation", "devices")))
    if not demands and not held:
        return None
    name = PodName(text(metadata.get("namespace")), text(metadata.get("name")))
    return GpuClaim(text(metadata.get("uid")), name, demands, held)


def pod_claims(pod: Mapping[str, Any]) -> tuple[PodName, ...]:
    """The claims of a pod (decoded JSON), as far as they are made."""
    namespace = text(mapping_at(pod, "metadata").get("namespace"))
    made: dict[str, str] = {}
    listed = mappings(mapping_at(pod, "status").get("resourceClaimStatuses"))
    for entry in islice(listed, MOST_REQUESTS):
        made[text(entry.get("name"))] = text(entry.get("resourceClaimName"))
    names: list[PodName] = []
    named = mappings(mapping_at(pod, "spec").get("resourceClaims"))
    for entry in islice(named, MOST_REQUESTS):
        name = text(entry.get("resourceClaimName")) or made.get(text(entry.get("name")), "")
        if name:
            names.append(PodName(namespace, name))
    return tuple(names)


def _demands(devices: Mapping[str, Any]) -> Iterator[ClaimDemand]:
    for request in islice(mappings(devices.get("requests")), MOST_REQUESTS):
        alternatives = list(islice(mappings(request.get("firstAvailable")), MOST_ALTERNATIVES))
        demand: ClaimDemand | None = None
        # From the last one on, because each has the next.
        for wanted in reversed(alternatives or [mapping(request.get("exactly"))]):
            is_ours = text(wanted.get("deviceClassName")) in CLASSES
            only_watches = wanted.get("adminAccess") is True
            if is_ours and not only_watches:
                demand = _demand(wanted, demand)
        if demand:
            yield demand


def _demand(wanted: Mapping[str, Any], fallback: ClaimDemand | None) -> ClaimDemand:
    is_set = wanted.get("deviceClassName") == SET_CLASS
    gpus = _size_of_set(wanted) if is_set else number(wanted.get("count")) or 1
    amounts = mapping_at(wanted, "capacity", "requests")
    return ClaimDemand(
        gpus=min(max(gpus, 1), MOST_GPUS),
        memory_mib=mib_of(_capacity(amounts, "memory")),
        cores=_percent(_capacity(amounts, "cores")),
        fallback=fallback,
    )


def _size_of_set(wanted: Mapping[str, Any]) -> int:
    """How many GPUs the set has, by the selector that the documentation has; otherwise the smallest set."""
    for selector in islice(mappings(wanted.get("selectors")), MOST_REQUESTS):
        expression = text(mapping_at(selector, "cel").get("expression"))
        size = _SIZE_OF_SET.search(expression[:_MOST_EXPRESSION])
        if size:
            return max(int(size[1]), 1)
    return 2


def _held(devices: Mapping[str, Any]) -> Iterator[HeldDevice]:
    for result in islice(mappings(devices.get("results")), MOST_REQUESTS):
        if result.get("driver") != DRA_DRIVER or result.get("adminAccess") is True:
            continue
        consumed = mapping(result.get("consumedCapacity"))
        yield HeldDevice(
            node=text(result.get("pool")),
            device=text(result.get("device")),
            memory_mib=mib_of(_capacity(consumed, "memory")),
            cores=_percent(_capacity(consumed, "cores")),
        )


def _capacity(amounts: Mapping[str, Any], name: str) -> object:
    """The amount of a capacity, which may be written with the driver's name before it."""
    return amounts.get(name, amounts.get(f"{DRA_DRIVER}/{name}"))


def _percent(quantity: object) -> int:
    percent = amount(text(quantity)) or 0
    return min(percent, CORE_PERCENT_PER_GPU)
