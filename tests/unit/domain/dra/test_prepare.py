"""What the containers of a claim get."""

from dataclasses import replace

import pytest

from gpuagent.domain.dra.cdi_spec import CdiDevice, cdi_name, cdi_spec
from gpuagent.domain.dra.containers.union import merged
from gpuagent.domain.dra.gpu_sets import set_name
from gpuagent.domain.dra.prepare import (
    claimed_gpus,
    grants,
    has_device,
    has_device_of,
    must_isolate,
    reserved_for,
)
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, Mount
from gpuagent.domain.sharing.mode import DRA_DRIVER, Isolates, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from tests.unit.domain.builders import box, gpu, nodes

GPUS = {one.uuid: one for one in box(4, 16)}
UNIT = MemoryUnit()


def result(index, memory="4Gi", cores=None, **changes):
    consumed = {"memory": memory, "sharers": "1"} | ({"cores": cores} if cores else {})
    device = device_name(list(GPUS.values())[index])
    given = {"request": "gpu", "driver": DRA_DRIVER, "pool": "n", "device": device, "shareID": f"s{index}"}
    return given | {"consumedCapacity": consumed} | changes


def claim(*results, device_class="gpu-isolated.gpuagent.io"):
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}
    return {"spec": spec, "status": {"allocation": {"devices": {"results": list(results)}}}}


def read(*results):
    return claimed_gpus(claim(*results), "n", GPUS, UNIT)


def test_a_share_gets_its_gpu_its_device_nodes_and_its_amount():
    (one,) = read(result(1))
    assert (one.memory_mib, one.cores, one.whole, one.share_id) == (4096, 0, False, "s1")
    (grant,) = grants((one,), Mode.SHARE, GPUS, DeviceAccess(unit=UNIT, device_nodes=nodes(4)))
    assert grant.env["NVIDIA_VISIBLE_DEVICES"] == list(GPUS)[1]
    assert (grant.env["ALIYUN_COM_GPU_MEM_CONTAINER"], grant.env["ALIYUN_COM_GPU_MEM_DEV"]) == ("4", "16")
    assert "/dev/nvidia1" in grant.device_nodes


def test_a_claim_of_all_memory_is_a_whole_gpu():
    (one,) = read(result(0, memory="16Gi"))
    assert one.whole
    (grant,) = grants((one,), Mode.SHARE, GPUS, DeviceAccess(unit=UNIT, device_nodes=nodes(4)))
    assert not any(name.startswith("ALIYUN") for name in grant.env)


@pytest.mark.parametrize(
    ("memory", "is_whole"), [("15Gi", False), ("15873Mi", True), ("15361Mi", True), ("16Gi", True)]
)
def test_a_gpu_is_whole_if_less_than_a_unit_of_it_is_left(memory, is_whole):
    """With a whole unit left, another claim may have that one."""
    (claimed,) = read(result(0, memory=memory))
    assert claimed.whole is is_whole


def test_the_least_share_and_all_of_the_compute_are_served():
    (claimed,) = read(result(0, memory="1Gi", cores="100"))
    assert (claimed.memory_mib, claimed.cores) == (UNIT.mib, 100)


def test_whole_gpus_of_two_sizes_are_one_claim():
    """Their containers have no limits, so there is nothing in which they could differ."""
    gpus = {one.uuid: one for one in (gpu(0, 16), gpu(1, 32))}
    both = claim(result(0, "16Gi"), result(1, "32Gi"))
    claimed = claimed_gpus(both, "n", gpus, UNIT)
    assert [(one.memory_mib, one.whole) for one in claimed] == [(16384, True), (32768, True)]


def test_a_claim_still_has_a_device_only_of_the_same_pool():
    """Two nodes have devices of the same names: the pool tells them apart."""
    claimed = read(result(1))
    assert [one.pool for one in claimed] == ["n"]
    kept = PreparedClaim(uid="u", namespace="ml", name="c", layer="none", gpus=claimed)
    assert has_device_of(claim(result(1)), kept)
    assert not has_device_of(claim(result(1, pool="m")), kept)
    assert not has_device_of(claim(result(2)), kept)


def test_several_gpus_are_in_bus_order():
    found = read(result(3, "16Gi"), result(1, "16Gi"))
    (grant,) = grants(found, Mode.SHARE, GPUS, DeviceAccess(unit=UNIT, device_nodes=nodes(4)))
    assert [gpu.index for gpu in grant.gpus] == [1, 3]


def test_compute_is_a_second_grant_and_one_environment():
    found = read(result(0, cores="30"))
    both = list(grants(found, Mode.CORE_MEM, GPUS, DeviceAccess(unit=UNIT, device_nodes=nodes(4))))
    assert [one.units for one in both] == [4, 30]
    assert merged(both).env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"


def test_a_set_is_its_gpus_whole_in_the_order_of_the_bus():
    name = set_name(list(GPUS)[1:3])
    found = read(result(0, device=name, consumedCapacity=None))
    assert [(one.device, one.uuid, one.memory_mib, one.whole) for one in found] == [
        (name, uuid, 16384, True) for uuid in list(GPUS)[1:3]
    ]
    assert must_isolate(claim(), found) == frozenset()
    (grant,) = grants(found, Mode.SHARE, GPUS, DeviceAccess(unit=UNIT, device_nodes=nodes(4)))
    assert grant.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(list(GPUS)[1:3])
    with pytest.raises(Refusal, match="not on this node"):
        claimed_gpus(claim(result(0, device=name)), "n", {uuid: GPUS[uuid] for uuid in list(GPUS)[:2]}, UNIT)


@pytest.mark.parametrize(
    ("results", "reason", "words"),
    [
        ([], Reason.UNKNOWN_DEVICE, "no device of gpu.gpuagent.io"),
        ([result(0, driver="gpu.nvidia.com")], Reason.UNKNOWN_DEVICE, "no device of gpu.gpuagent.io"),
        ([result(0, pool="m")], Reason.UNKNOWN_DEVICE, "not on this node"),
        ([result(0, device="gpu-7")], Reason.UNKNOWN_DEVICE, "not on this node"),
        ([result(0, memory="0")], Reason.INTERNAL, "does not say"),
        ([result(0, consumedCapacity=None)], Reason.INTERNAL, "does not say"),
        ([result(0, "9Gi"), result(0, "8Gi")], Reason.CLAIM_INVALID, "2 shares of GPU 0, which are more than the GPU"),
        ([result(0, cores="60"), result(0, cores="50")], Reason.CLAIM_INVALID, "more than the GPU"),
        ([result(0), result(0, memory="16Gi")], Reason.CLAIM_INVALID, "more than the GPU"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(results, reason, words):
    with pytest.raises(Refusal, match=words) as caught:
        read(*results)
    assert caught.value.reason is reason


def test_a_share_of_gpu_core_has_to_name_its_compute():
    core = {"device_class": "gpu-core.gpuagent.io"}
    with pytest.raises(Refusal, match="name cores beside memory") as caught:
        claimed_gpus(claim(result(0), **core), "n", GPUS, UNIT)
    assert caught.value.reason is Reason.CORE_MEM_BOTH
    for given in (result(0, cores="30"), result(0, "16Gi")):
        assert len(claimed_gpus(claim(given, **core), "n", GPUS, UNIT)) == 1


def test_a_share_of_gpu_core_has_to_name_its_compute_also_beside_one_of_another_class():
    both = claim(result(0), result(1, request="other"), device_class="gpu-core.gpuagent.io")
    other = {"name": "other", "exactly": {"deviceClassName": "gpu-share.gpuagent.io"}}
    both["spec"]["devices"]["requests"].append(other)
    with pytest.raises(Refusal, match="name cores beside memory"):
        claimed_gpus(both, "n", GPUS, UNIT)


@pytest.mark.parametrize("odd", [{}, {"status": []}, {"status": {"allocation": {"devices": {"results": [1, "x"]}}}}])
def test_an_odd_claim_has_no_device(odd):
    assert not has_device(odd)


def test_the_class_says_what_has_to_be_isolated():
    share, both, whole = read(result(0)), read(result(0, cores="30")), read(result(0, "16Gi"))
    of_a_share = claim(result(0), device_class="gpu-share.gpuagent.io")
    assert must_isolate(of_a_share, share) == frozenset()
    assert must_isolate(claim(result(0)), share) == {Isolates.MEMORY}
    assert must_isolate(claim(result(0)), both) == {Isolates.MEMORY, Isolates.COMPUTE}
    assert must_isolate(claim(result(0)), whole) == frozenset()
    other = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
    of_a_share["spec"]["devices"]["requests"].append(other)
    of_a_share["status"]["allocation"]["devices"]["results"].append(result(1, request="nic", driver="nic.example.com"))
    assert must_isolate(of_a_share, share) == frozenset()


@pytest.mark.parametrize(
    ("chosen", "promised"), [("gpu/isolated", frozenset({Isolates.MEMORY})), ("gpu/any", frozenset())]
)
def test_of_alternatives_the_chosen_one_says_what_has_to_be_isolated(chosen, promised):
    alternatives = [
        {"name": "isolated", "deviceClassName": "gpu-isolated.gpuagent.io"},
        {"name": "any", "deviceClassName": "gpu-share.gpuagent.io"},
    ]
    found = claim(result(0, request=chosen))
    found["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    claimed = claimed_gpus(found, "n", GPUS, UNIT)
    assert must_isolate(found, claimed) == promised
    assert [gpu.request for gpu in claimed] == ["gpu"], "kubelet names the request, without the alternative"


def test_the_cdi_specification_has_what_the_grant_has():
    (grant,) = grants(read(result(1)), Mode.SHARE, GPUS, DeviceAccess(unit=UNIT, device_nodes=nodes(4)))
    given = [CdiDevice("gpu-a", grant.device_nodes, grant), CdiDevice("gpu-b", ("/dev/b",), None)]
    spec = cdi_spec("u-1", given)
    assert cdi_name("u-1", "gpu-a") == "gpu.gpuagent.io/claim=u-1-gpu-a"
    assert (spec["kind"], [device["name"] for device in spec["devices"]]) == (
        "gpu.gpuagent.io/claim",
        ["u-1-gpu-a", "u-1-gpu-b"],
    )
    first, second = (device["containerEdits"] for device in spec["devices"])
    assert f"NVIDIA_VISIBLE_DEVICES={list(GPUS)[1]}" in first["env"]
    assert {"path": "/dev/nvidia1"} in first["deviceNodes"]
    assert "mounts" not in first
    assert second == {"deviceNodes": [{"path": "/dev/b"}]}


def test_no_cdi_device_is_empty():
    """The runtime would refuse all devices of the file for its sake."""
    (device,) = cdi_spec("u-1", [CdiDevice("all", (), None)])["devices"]
    assert device["containerEdits"]["env"]


def test_a_gpu_that_does_not_report_its_memory_is_claimed_whole():
    gpus = {one.uuid: one for one in box(1, 0)}
    whole = claim(result(0, consumedCapacity={}, shareID=""), device_class="gpu.gpuagent.io")
    (one,) = claimed_gpus(whole, "n", gpus, UNIT)
    assert (one.whole, one.memory_mib) == (True, 0)
    (grant,) = grants((one,), Mode.SHARE, gpus, DeviceAccess(unit=UNIT, device_nodes=nodes(4)))
    assert grant.env["NVIDIA_VISIBLE_DEVICES"] == one.uuid
    assert not any(name.startswith("ALIYUN") for name in grant.env)


@pytest.mark.parametrize("device_class", ["gpu.gpuagent.io", "gpu-isolated.gpuagent.io"])
def test_a_gpu_that_is_not_shared_is_claimed_whole(device_class):
    """The API server has feature gate DRAConsumableCapacity off, so the scheduler gives a device to one claim."""
    alone = result(1)
    del alone["consumedCapacity"], alone["shareID"]
    whole = claim(alone, device_class=device_class)
    claimed = claimed_gpus(whole, "n", GPUS, UNIT)
    assert [(one.uuid, one.whole, one.memory_mib) for one in claimed] == [(list(GPUS)[1], True, 16384)]
    assert must_isolate(whole, claimed) == frozenset()
    (monitor,) = read(alone | {"adminAccess": True})
    assert (monitor.whole, monitor.memory_mib) == (False, 0)


def test_a_claim_with_a_device_of_this_driver_has_one():
    assert has_device(claim(result(0)))
    assert not has_device(claim(result(0, driver="gpu.nvidia.com")))


def test_a_merged_grant_has_what_each_part_has():
    access = DeviceAccess(unit=UNIT, device_nodes=nodes(4))
    memory, compute = grants(read(result(0, cores="30")), Mode.CORE_MEM, GPUS, access)
    shared, own = Mount("/a", "/a"), Mount("/b", "/b")
    memory = replace(memory, env={"A": "1", "B": "1"}, device_nodes=("/dev/x", "/dev/y"), mounts=(shared,))
    compute = replace(compute, env={"B": "1", "C": "1"}, device_nodes=("/dev/y", "/dev/z"), mounts=(shared, own))
    found = merged([memory, compute])
    assert found.env == {"A": "1", "B": "1", "C": "1"}
    assert found.device_nodes == ("/dev/x", "/dev/y", "/dev/z")
    assert found.mounts == (shared, own)
    assert (found.kind, found.units, found.gpus) == (memory.kind, memory.units, memory.gpus)


def test_a_claim_is_reserved_for_pods_alone():
    reserved = claim(result(0))
    consumers = [("pods", "u1"), ("pods", "u2"), ("others", "u3")]
    reserved["status"]["reservedFor"] = [{"resource": kind, "uid": uid} for kind, uid in consumers]
    assert reserved_for(reserved) == {"u1", "u2"}
    assert reserved_for(claim(result(0))) == frozenset()
