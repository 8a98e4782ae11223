"""Claims of several requests, of compute, with alternatives or for monitors, and what containers name of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WHOLE_CLASS = "gpu.gpuagent.io"
SHARE_CLASS = "gpu-share.gpuagent.io"
CORE_CLASS = "gpu-core.gpuagent.io"
SET_CLASS = "gpu-set.gpuagent.io"
LINKED = "gpu.gpuagent.io/nvlinkDomain"
"""The attribute that GPUs of one value reach each other by."""
LARGE_GIB = 70
"""What an alternative asks for first: a GPU has no room for two of it."""
GIB_MORE = 2
"""By how much the sizes of two shares differ."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Amount:
    """What a share asks for.

    Attributes:
        gib: of memory.
        cores: percent of compute; 0 for none.
        is_isolated: the class promises isolation where the share has compute.
    """

    gib: int
    cores: int = 0
    is_isolated: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """The claims of a pod, and what its containers name.

    Attributes:
        claims: requests of each claim, by the pod's name for it.
        containers: what each container names: a claim, or `claim/request`.
        refused: the pod never runs, because the runtime would mix up the variables of its containers.
        is_linked: the GPUs of all requests of a claim have to be linked.
        watches_all: the pod has to see all GPUs of its node.
    """

    claims: dict[str, Sequence[Json]]
    containers: Sequence[Sequence[str]]
    refused: bool = False
    is_linked: bool = False
    watches_all: bool = False


def share(name: str, amount: Amount) -> Json:
    """A request for a share."""
    return {"name": name, "exactly": _share(amount)}


def _share(amount: Amount) -> Json:
    device_class = CORE_CLASS if amount.cores and amount.is_isolated else SHARE_CLASS
    requests = {"memory": f"{amount.gib}Gi"}
    if amount.cores:
        requests["cores"] = str(amount.cores)
    return {"deviceClassName": device_class, "capacity": {"requests": requests}}


def _whole(name: str) -> Json:
    return {"name": name, "exactly": {"deviceClassName": WHOLE_CLASS}}


def _watched(name: str) -> Json:
    """All GPUs on which a unit is free, to look at."""
    exactly = {**_share(Amount(1)), "allocationMode": "All", "adminAccess": True}
    return {"name": name, "exactly": exactly}


def _one_share(amount: Amount) -> Shape:
    return Shape({"gpu": [share("share", amount)]}, [["gpu"]])


def _a_request_each(amount: Amount) -> Shape:
    return Shape({"gpu": [share("share", amount), _whole("whole")]}, [["gpu/share"], ["gpu/whole"]])


def _two_shares(amount: Amount) -> Shape:
    """Two containers, of which each has a share of its own."""
    return Shape({"gpu": [share("first", amount), share("second", amount)]}, [["gpu/first"], ["gpu/second"]])


def _the_claim_and_a_request(amount: Amount) -> Shape:
    """A container has both shares of a claim, which may be on one GPU, and the other container has one of them."""
    return Shape({"gpu": [share("first", amount), share("second", amount)]}, [["gpu"], ["gpu/second"]])


def _two_claims(amount: Amount) -> Shape:
    """A container has two claims, and the other one has none."""
    requests = [share("share", amount)]
    return Shape({"gpu": requests, "more": requests}, [["gpu", "more"], []])


def _two_sizes(amount: Amount) -> Shape:
    """With an isolation driver, it is refused if the shares are on two GPUs."""
    larger = Amount(amount.gib + GIB_MORE, amount.cores, amount.is_isolated)
    return Shape({"gpu": [share("small", amount), share("large", larger)]}, [["gpu"]])


def _alternatives(amount: Amount) -> Shape:
    """A large share, and where there is none, a whole GPU or a small share."""
    large = Amount(LARGE_GIB, amount.cores, amount.is_isolated)
    alternatives = [
        {"name": "large", **_share(large)},
        {"name": "small", **_share(amount)},
    ]
    return Shape({"gpu": [{"name": "any", "firstAvailable": alternatives}]}, [["gpu/any"]])


def _linked_or_one(_amount: Amount) -> Shape:
    alternatives = [
        {"name": "two", "deviceClassName": WHOLE_CLASS, "count": 2},
        {"name": "one", "deviceClassName": WHOLE_CLASS},
    ]
    return Shape({"gpu": [{"name": "any", "firstAvailable": alternatives}]}, [["gpu"]])


def _monitor(_amount: Amount) -> Shape:
    return Shape({"gpu": [_watched("all")]}, [["gpu"]])


def _monitor_of_all(_amount: Amount) -> Shape:
    """All GPUs, in whatever condition and whoever has them: it asks for none of their memory, as the documents say."""
    exactly: Json = {
        "deviceClassName": WHOLE_CLASS,
        "allocationMode": "All",
        "adminAccess": True,
        "capacity": {"requests": {"memory": "0", "sharers": "0"}},
        "tolerations": [{"operator": "Exists"}],
    }
    return Shape({"gpu": [{"name": "all", "exactly": exactly}]}, [["gpu"]], watches_all=True)


def _overlapping_requests(amount: Amount) -> Shape:
    requests = [share("first", amount), share("second", amount), share("third", amount)]
    return Shape({"gpu": requests}, [["gpu/first", "gpu/second"], ["gpu/first"]], refused=True)


def _monitor_with_a_share(amount: Amount) -> Shape:
    """It is refused where there are further GPUs: a container has GPUs to use, or GPUs to watch."""
    return Shape({"gpu": [share("share", amount)], "more": [_watched("all")]}, [["gpu", "more"]])


def _set_of(gpus: int) -> Json:
    """What asks for a set of linked GPUs."""
    selector = f'device.attributes["gpu.gpuagent.io"].gpus == {gpus}'
    return {"deviceClassName": SET_CLASS, "selectors": [{"cel": {"expression": selector}}]}


def _pair(_amount: Amount) -> Shape:
    return Shape({"gpu": [{"name": "pair", "exactly": _set_of(2)}]}, [["gpu"]])


def _all_four(_amount: Amount) -> Shape:
    return Shape({"gpu": [{"name": "four", "exactly": _set_of(4)}]}, [["gpu"], ["gpu"]])


def _pair_or_one(_amount: Amount) -> Shape:
    alternatives = [{"name": "pair", **_set_of(2)}, {"name": "one", "deviceClassName": WHOLE_CLASS}]
    return Shape({"gpu": [{"name": "any", "firstAvailable": alternatives}]}, [["gpu"]])


def _pair_and_share(amount: Amount) -> Shape:
    requests = [{"name": "pair", "exactly": _set_of(2)}, share("share", amount)]
    return Shape({"gpu": requests}, [["gpu/pair"], ["gpu/share"]])


def _two_linked(_amount: Amount) -> Shape:
    exactly = {"deviceClassName": WHOLE_CLASS, "count": 2}
    return Shape({"gpu": [{"name": "two", "exactly": exactly}]}, [["gpu"]], is_linked=True)


def _share_linked_to_one(amount: Amount) -> Shape:
    return Shape({"gpu": [share("share", amount), _whole("whole")]}, [["gpu/share"], ["gpu/whole"]], is_linked=True)


def devices_of(shape: Shape) -> dict[str, Json]:
    """What the spec of each claim of a pod says about devices, by the pod's name for it."""
    constraints = {"constraints": [{"matchAttribute": LINKED}]} if shape.is_linked else {}
    return {claim: {"requests": requests, **constraints} for claim, requests in shape.claims.items()}


def shape_of(name: str, amount: Amount) -> Shape:
    """The pod of a shape."""
    shapes = _SHAPES | _LINKED_SHAPES | {MONITOR: _monitor_of_all}
    return shapes[name](amount)


_SHAPES: dict[str, Callable[[Amount], Shape]] = {
    "one_share": _one_share,
    "a_request_each": _a_request_each,
    "two_shares": _two_shares,
    "the_claim_and_a_request": _the_claim_and_a_request,
    "two_claims": _two_claims,
    "two_sizes": _two_sizes,
    "alternatives": _alternatives,
    "two_or_one": _linked_or_one,
    "monitor": _monitor,
    "overlapping_requests": _overlapping_requests,
    "monitor_with_a_share": _monitor_with_a_share,
}
SHAPES = tuple(_SHAPES)
"""Their names."""
_LINKED_SHAPES: dict[str, Callable[[Amount], Shape]] = {
    "pair": _pair,
    "all_four": _all_four,
    "pair_or_one": _pair_or_one,
    "pair_and_share": _pair_and_share,
    "two_linked": _two_linked,
    "share_linked_to_one": _share_linked_to_one,
}
LINKED_SHAPES = tuple(_LINKED_SHAPES)
"""Names of those for nodes with four GPUs that are linked in pairs."""
MONITOR = "monitor_of_all"
"""The name of one that works where the API server knows consumable capacity."""
