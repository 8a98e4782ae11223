"""What a node publishes for Dynamic Resource Allocation."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_taints import HELD_TAINT, UNHEALTHY_TAINT
from gpuagent.domain.dra.resource_slice import device_name, memory_text, slice_spec
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.domain.reconcile.slice_writes import slice_name, slice_writes
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.mode import GPU_MEM, Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from standin.api.slices import check_slice
from tests.unit.domain.builders import box, gpu, holding, in_force, unit_ids


def claim(node, *amounts, uid="u1"):
    """A prepared claim with so many MiB of GPU 0, 1, and so on."""
    gpus = [node.state.gpus.by_index[n] for n in range(len(amounts))]
    claimed = [
        ClaimedGpu(
            request="gpu",
            pool="n",
            device=device_name(one),
            share_id="s",
            uuid=one.uuid,
            memory_mib=mib,
            cores=0,
            whole=False,
        )
        for one, mib in zip(gpus, amounts, strict=True)
        if mib
    ]
    return PreparedClaim(uid=uid, namespace="default", name="c", layer="none", gpus=tuple(claimed))


def devices(node):
    return slice_spec(node.state, "n")["devices"]


def order(node):
    names = {device_name(one): one.index for one in node.state.gpus.by_index}
    return [names[device["name"]] for device in devices(node)]


def taints(node):
    names = {device_name(one): one.index for one in node.state.gpus.by_index}
    return {names[one["name"]]: [taint["key"] for taint in one["taints"]] for one in devices(node) if "taints" in one}


def test_each_gpu_is_one_device_that_is_shared_out_by_unit():
    node = in_force(Mode.DRA, box(2, 16))
    assert [device["capacity"]["memory"]["value"] for device in devices(node)] == ["16Gi", "16Gi"]
    memory = devices(node)[0]["capacity"]["memory"]["requestPolicy"]
    assert memory == {"default": "16Gi", "validRange": {"min": "0", "step": "1Gi", "max": "16Gi"}}
    assert devices(node)[0]["allowMultipleAllocations"] is True
    assert slice_spec(node.state, "n")["pool"] == {"name": "n", "generation": 1, "resourceSliceCount": 1}


def test_memory_is_published_in_whole_units_and_compute_in_whole_steps():
    """The API server refuses other ranges."""
    odd = gpu(0, memory_mib=81559)
    capacity = devices(in_force(Mode.DRA, [odd], core_step=30))[0]["capacity"]
    assert capacity["memory"]["value"] == capacity["memory"]["requestPolicy"]["validRange"]["max"] == "79Gi"
    assert capacity["cores"]["requestPolicy"]["validRange"] == {"min": "0", "step": "30", "max": "90"}


@pytest.mark.parametrize("core_step", [1, 7, 50, 51, 100])
@pytest.mark.parametrize("unit_mib", [1, 512, 1024, 1500, 16 * 1024, 24258, 40 * 1024])
def test_the_api_server_takes_the_capacity_of_every_gpu(unit_mib, core_step):
    """Of one unit, too, and of less."""
    sizes = (0, 1, 512, 1023, 1024, 1536, 16 * 1024, 24258, 80 * 1024, 81559)
    gpus = [gpu(n, memory_mib=mib) for n, mib in enumerate(sizes)]
    node = in_force(Mode.DRA, gpus, unit=MemoryUnit(unit_mib), core_step=core_step)
    check_slice({"metadata": {"name": "s"}, "spec": slice_spec(node.state, "n")})
    assert set(order(node)) == {each.index for each in gpus if each.memory_mib == 0 or each.memory_mib >= unit_mib}


def test_a_gpu_of_one_unit_can_be_asked_for_and_gives_all_of_it():
    memory = devices(in_force(Mode.DRA, [gpu(0, 16)], unit=MemoryUnit(16 * 1024)))[0]["capacity"]["memory"]
    assert memory == {
        "value": "16Gi",
        "requestPolicy": {"default": "16Gi", "validRange": {"min": "0", "step": "16Gi", "max": "16Gi"}},
    }


def test_a_gpu_of_unknown_memory_is_a_whole_device():
    """One claim has it. There is nothing that a share could consume."""
    (device,) = devices(in_force(Mode.DRA, [gpu(0, memory_mib=0)]))
    assert device.keys() == {"name", "attributes"}


@pytest.mark.parametrize(("mib", "text"), [(1024, "1Gi"), (1500, "1500Mi"), (2048, "2Gi")])
def test_quantities(mib, text):
    assert memory_text(mib) == text


@pytest.mark.parametrize(
    ("driver", "version"),
    [("570.124.06", "570.124.6"), ("580.1", "580.1.0"), ("570.124.06-1", "570.124.0"), ("", "0.0.0"), ("N/A", "0.0.0")],
)
def test_the_drivers_version_is_a_semantic_one(driver, version):
    """The API server refuses leading zeros, and takes three numbers."""
    node = in_force(Mode.DRA, box(1, 16))
    node.send(ev.InventoryRead(Inventory(box(1, 16), driver_version=driver), 0.0))
    assert devices(node)[0]["attributes"]["driverVersion"] == {"version": version}


def test_no_other_mode_publishes():
    for mode in set(Mode) - {Mode.DRA}:
        assert slice_spec(in_force(mode).state, "n") is None


def test_binpack_has_the_fullest_gpu_first_and_spread_the_emptiest_and_full_ones_are_last():
    node = in_force(Mode.DRA, box(4, 16))
    assert order(node) == [0, 1, 2, 3]
    node.send(ev.ClaimsPrepared((claim(node, 16 * 1024, 0, 4096, 8192),), node.now))
    assert order(node) == [3, 2, 1, 0]
    node.label("dra", "spread")
    assert order(node) == [1, 2, 3, 0]


def test_gpus_that_cannot_be_devices_are_left_out_and_unhealthy_ones_tainted():
    node = in_force(Mode.DRA, [gpu(0, mig=True), gpu(1), gpu(2)])
    node.send(ev.GpuLost(node.state.gpus.by_index[1].uuid, "fell off the bus", node.now))
    assert order(node) == [2, 1]
    assert taints(node) == {1: [UNHEALTHY_TAINT]}


def test_a_gpu_with_units_of_another_mode_is_tainted_until_its_pod_ends():
    node = in_force(Mode.SHARE)
    held = holding("p", unit_ids(0, Kind.MEMORY_SHARE, 0, 1), GPU_MEM)
    node.holdings(held).label("dra").wait(3)
    node.holdings(held)
    assert taints(node) == {0: [HELD_TAINT]}
    node.holdings()
    assert taints(node) == {}


def test_units_are_advertised_again_when_claims_and_slice_are_gone():
    node = in_force(Mode.DRA)
    one = claim(node, 1024)
    node.send(ev.ClaimsPrepared((one,), node.now)).send(ev.SlicesSeen(seen(node), node.now))
    node.label("share").wait(3).holdings()
    assert node.offer(GPU_MEM) == {}, "the slice still has both GPUs"
    node.send(ev.SlicesSeen({}, node.now)).wait(9)
    assert node.offer(GPU_MEM) == {}, "a scheduler may have an older slice"
    node.wait(2)
    assert node.offer(GPU_MEM) == {1: 16}
    node.send(ev.ClaimsPrepared((), node.now))
    assert node.offer(GPU_MEM) == {0: 16, 1: 16}


def seen(node, **changes):
    metadata = {"name": slice_name("n"), "uid": "s1", "resourceVersion": "7"}
    return {slice_name("n"): {"metadata": metadata, "spec": slice_spec(node.state, "n") | changes}}


def write(node):
    (one,) = slice_writes(node.state, "n")
    return one


def test_the_slice_is_made_changed_put_back_and_deleted():
    node = in_force(Mode.DRA)
    assert not slice_writes(node.state, "n"), "the watch has not shown yet whether there is one"
    node.send(ev.SlicesSeen({}, node.now))
    assert write(node).verb == "create"
    node.send(ev.SlicesSeen(seen(node), node.now))
    assert not slice_writes(node.state, "n")
    node.send(ev.ClaimsPrepared((claim(node, 0, 1024),), node.now))
    change = write(node)
    assert (change.verb, change.body["metadata"]) == ("patch", {"uid": "s1", "resourceVersion": "7"})
    node.send(ev.SlicesSeen({}, node.now))
    assert write(node).verb == "create"
    node.send(ev.SlicesSeen(seen(node), node.now)).label("share")
    assert write(node).verb == "delete"


def test_what_the_api_server_adds_to_a_taint_is_no_change():
    node = in_force(Mode.DRA)
    node.send(ev.GpuLost(node.state.gpus.by_index[0].uuid, "gone", node.now))
    found = seen(node)
    for device in found[slice_name("n")]["spec"]["devices"]:
        for taint in device.get("taints", ()):
            taint["timeAdded"] = "2026-01-01T00:00:00Z"
    node.send(ev.SlicesSeen(found, node.now))
    assert not slice_writes(node.state, "n")


def test_the_newer_of_two_agents_writes_the_slice():
    node = in_force(Mode.DRA).send(ev.SlicesSeen({}, 0.0))
    assert not slice_writes(node.send(ev.DraSuperseded(by_newer=True, at=node.now)).state, "n")
    assert slice_writes(node.send(ev.DraSuperseded(by_newer=False, at=node.now)).state, "n")
