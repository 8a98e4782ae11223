"""The stand-in API server refuses the ResourceSlices that kube-apiserver 1.36.3 refuses."""

from typing import Any

import pytest

from standin.api.refusal import Refusal
from standin.api.slices import check_slice

Json = dict[str, Any]
TAINT = {"key": "k", "effect": "NoSchedule"}


def slice_of(devices: list[Json]) -> Json:
    return {"metadata": {"name": "s"}, "spec": {"devices": devices}}


def capacity(value: str, most: str, **more: Any) -> Json:
    policy = {"default": most, "validRange": {"min": "1Gi", "step": "1Gi", "max": most}}
    return {"name": "a", "capacity": {"memory": {"value": value, "requestPolicy": policy}}, **more}


def test_what_the_real_one_takes() -> None:
    found = slice_of([capacity("81559Mi", "79Gi", allowMultipleAllocations=True, taints=[dict(TAINT)])])
    check_slice(found)
    assert found["spec"]["devices"][0]["taints"][0].keys() == {"key", "effect", "timeAdded"}
    check_slice(slice_of([{"name": f"{n}"} for n in range(128)]))


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([{"name": f"{n}"} for n in range(129)], "must have at most 128"),
        ([{"name": f"{n}", "taints": [dict(TAINT)]} for n in range(65)], "must have at most 64"),
        ([{"name": "a"}, {"name": "a"}], "Duplicate value"),
        ([{"name": "a", "attributes": {f"{n}": {"int": n} for n in range(33)}}], "must not exceed 32"),
        ([{"name": "a", "attributes": {"t": {"string": "x" * 65}}}], "Too long"),
        ([capacity("80Gi", "80Gi")], "needs allowMultipleAllocations"),
        ([capacity("81559Mi", "81559Mi", allowMultipleAllocations=True)], "Invalid value"),
        ([capacity("1Gi", "1Gi", allowMultipleAllocations=True)], "Invalid value"),
        ([capacity("0Gi", "0Gi", allowMultipleAllocations=True)], "Invalid value"),
        ([capacity("80Gi", "81Gi", allowMultipleAllocations=True)], "Invalid value"),
    ],
)
def test_what_it_refuses(devices: list[Json], text: str) -> None:
    with pytest.raises(Refusal, match=text):
        check_slice(slice_of(devices))
