"""The stand-in scheduler allocates as the real one does: first fit, rounded capacities, one name for a device."""

from collections.abc import Mapping
from typing import Any

import pytest

from standin.scheduler.allocator import Devices, results

Json = dict[str, Any]

CLASSES = {
    "any": {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "d"'}}]}},
    "isolated": {"spec": {"selectors": [{"cel": {"expression": 'device.attributes["d"].isolated && !false'}}]}},
}
MEMORY = {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
CORES = {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "5", "max": "90"}}}
SHARERS = {"value": "3", "requestPolicy": {"default": "1", "validValues": ["1"]}}


def device(name: str, **more: Any) -> Json:
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "capacity": {"memory": MEMORY, "cores": CORES, "sharers": SHARERS},
        "attributes": {"isolated": {"bool": name == "b"}, "island": {"string": "i" if name in "bc" else name}},
        **more,
    }


def slice_of(*devices: Json, generation: int = 1, name: str = "s", count: int = 1) -> Json:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, "devices": list(devices)}}


def claim(*requests: Json, **more: Any) -> Json:
    return {"spec": {"devices": {"requests": list(requests), **more}}}


def request(amounts: Mapping[str, str] | None = None, name: str = "r", kind: str = "any", **more: Any) -> Json:
    exactly = {"deviceClassName": kind, **({"capacity": {"requests": amounts}} if amounts else {}), **more}
    return {"name": name, "exactly": exactly}


THREE = slice_of(device("a"), device("b"), device("c"))


def got(*requests: Json, claims: list[Json] | None = None, slices: Json = THREE, **more: Any) -> list[str] | None:
    found = Devices([slices], claims or []).allocate(claim(*requests, **more), CLASSES)
    return None if found is None else [one["device"] for one in found]


def allocated(**amounts: str) -> Json:
    found = Devices([THREE], []).allocate(claim(request(amounts or None)), CLASSES)
    return {"status": {"allocation": {"devices": {"results": found}}}}


def consumed(one: Json) -> Json:
    found: Json = results(one)[0]["consumedCapacity"]
    return found


def test_the_first_device_that_fits_is_taken() -> None:
    assert got(request({"memory": "30Gi"})) == ["a"]
    full = [allocated(memory="60Gi")]
    assert got(request({"memory": "20Gi"}), claims=full) == ["a"]
    assert got(request({"memory": "21Gi"}), claims=full) == ["b"]


def test_a_request_without_memory_takes_the_whole_device() -> None:
    assert consumed(allocated()) == {"memory": "80Gi", "cores": "0", "sharers": "1"}
    assert got(request(), claims=[allocated()]) == ["b"]


def test_sharers_are_limited() -> None:
    assert got(request({"memory": "1Gi"}), claims=[allocated(memory="1Gi")] * 3) == ["b"]


def test_amounts_are_rounded_as_the_policy_says() -> None:
    assert consumed(allocated(memory="1500Mi", cores="7")) == {"memory": "2Gi", "cores": "10", "sharers": "1"}


@pytest.mark.parametrize("amounts", [{"memory": "81Gi"}, {"cores": "91"}, {"sharers": "2"}, {"unheard": "1"}])
def test_what_a_policy_or_a_device_has_not_fits_nowhere(amounts: dict[str, str]) -> None:
    assert got(request(amounts)) is None


def test_a_count_takes_different_devices() -> None:
    assert got(request({"memory": "1Gi"}, count=2)) == ["a", "b"]
    assert got(request(count=4)) is None
    assert got(request({"memory": "1Gi"}), request({"memory": "1Gi"}, "other")) == ["a", "a"]


def test_linked_devices_or_else_any() -> None:
    linked, otherwise = {"name": "l", "deviceClassName": "any", "count": 2}, {"name": "o", "deviceClassName": "any"}
    both = {"name": "r", "firstAvailable": [linked, otherwise]}
    same = [{"matchAttribute": "d/island", "requests": ["r/l"]}]
    assert got(both, constraints=same) == ["b", "c"]
    assert got(both, constraints=same, slices=slice_of(device("a"), device("b"))) == ["a"]


def test_selectors_and_taints_leave_devices_out() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    tainted = slice_of(device("a", taints=[taint]), device("b"))
    assert got(request({"memory": "1Gi"}), slices=tainted) == ["b"]
    assert got(request({"memory": "1Gi"}, tolerations=[{"operator": "Exists"}]), slices=tainted) == ["a"]
    assert got(request({"memory": "1Gi"}, kind="isolated")) == ["b"]


def test_a_device_that_is_not_shareable_is_taken_once() -> None:
    alone = slice_of({"name": "a"})
    first = Devices([alone], []).allocate(claim(request()), CLASSES)
    assert first == [{"request": "r", "driver": "d", "pool": "n", "device": "a"}]
    assert got(request(), claims=[{"status": {"allocation": {"devices": {"results": first}}}}], slices=alone) is None


def test_devices_that_share_counters_exclude_each_other() -> None:
    """A set of two GPUs, and each GPU: of a GPU, several shares consume its counter once."""

    def of(body: Json, *gpus: str) -> Json:
        used = {"counterSet": "gpus", "counters": {gpu: {"value": "1"} for gpu in gpus}}
        return {**body, "consumesCounters": [used]}

    counters = slice_of(name="0", count=2)
    counters["spec"]["sharedCounters"] = [{"name": "gpus", "counters": {gpu: {"value": "1"} for gpu in "ab"}}]
    devices = slice_of(of(device("a"), "a"), of(device("b"), "b"), of({"name": "ab"}, "a", "b"), count=2)
    share = request({"memory": "1Gi"})

    def left(*claims: Json, one: Json = share) -> list[str] | None:
        found = Devices([counters, devices], claims).allocate(claim(one), CLASSES)
        return None if found is None else [result["device"] for result in found]

    first = {"status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "n", "device": "a"}]}}}}
    both = {"status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "n", "device": "ab"}]}}}}
    pair = request(selectors=[{"cel": {"expression": "!device.allowMultipleAllocations"}}])
    assert (left(), left(one=pair)) == (["a"], ["ab"])
    assert (left(first), left(first, one=pair)) == (["a"], None)
    assert left(both) is None


def test_a_pool_counts_when_all_slices_of_its_newest_generation_are_there() -> None:
    old, half = slice_of(device("a")), slice_of(device("b"), generation=2, name="1", count=2)
    other = slice_of(device("c"), generation=2, name="0", count=2)
    assert Devices([old, half], []).allocate(claim(request()), CLASSES) is None
    found = Devices([old, half, other], []).allocate(claim(request(count=2)), CLASSES)
    assert [one["device"] for one in found or ()] == ["c", "b"]


def test_a_monitor_gets_all_devices_that_have_room_and_uses_none() -> None:
    watched = request({"memory": "1Gi"}, allocationMode="All", adminAccess=True)
    found = Devices([THREE], [allocated()]).allocate(claim(watched), CLASSES)
    assert found is not None
    assert [(one["device"], one["adminAccess"]) for one in found] == [("b", True), ("c", True)]
    monitor = {"status": {"allocation": {"devices": {"results": found}}}}
    assert got(request(), claims=[monitor]) == ["a"]
    assert got(request(), claims=[allocated(), monitor]) == ["b"]


def test_all_devices_are_those_of_a_class_and_no_claim_waits_for_the_others() -> None:
    assert got(request(kind="isolated", allocationMode="All")) == ["b"]
    assert got(request({"memory": "81Gi"}, allocationMode="All")) is None
    # A request that watches and one that uses may have one device.
    assert got(request(allocationMode="All", adminAccess=True), request(name="s")) == ["a", "b", "c", "a"]


def test_a_monitor_of_a_device_that_others_have_alone() -> None:
    alone = slice_of(device("a", allowMultipleAllocations=False))
    taken = Devices([alone], []).allocate(claim(request()), CLASSES)
    holder = {"status": {"allocation": {"devices": {"results": taken}}}}
    assert got(request(), claims=[holder], slices=alone) is None
    assert got(request(adminAccess=True), claims=[holder], slices=alone) == ["a"]
