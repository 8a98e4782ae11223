"""No usable GPU is said in every mode, whatever takes the GPUs out; and a driver that is gone takes out all."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_taints import taints
from gpuagent.domain.dra.resource_slice import slice_spec
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import UnreadableGpu
from gpuagent.domain.node_state.known_gpus import DRIVER_GRACE_S
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.sharing.mode import Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.status.problems import problems
from gpuagent.domain.step import deadline
from gpuagent.domain.usable_gpus import usable_gpus
from tests.unit.domain.builders import NodeUnderTest, box, gpu, in_force, uuid

SERVED = Resources(exclusive="nvidia.com/gpu")
MODES = tuple(Mode)


def node_in(mode: Mode) -> NodeUnderTest:
    return in_force(mode, resources=SERVED)


def fence_all(node: NodeUnderTest) -> None:
    node.send(ev.FenceRead(Fence(uuids=frozenset({uuid(0), uuid(1)})), node.now))


def mig_everywhere(node: NodeUnderTest) -> None:
    node.inventory(*(replace(each, mig=True) for each in box())).wait(5)


def lose_all(node: NodeUnderTest) -> None:
    for index in range(2):
        node.send(ev.GpuLost(uuid(index), "GPU is lost", node.now))


def fence_one_and_lose_one(node: NodeUnderTest) -> None:
    node.send(ev.FenceRead(Fence(uuids=frozenset({uuid(0)})), node.now))
    node.send(ev.GpuLost(uuid(1), "GPU is lost", node.now))


def list_none(node: NodeUnderTest) -> None:
    node.inventory()


def driver_goes(node: NodeUnderTest) -> None:
    node.send(ev.DriverUnavailable("nvmlInit: Driver Not Loaded", node.now)).wait(DRIVER_GRACE_S)


CAUSES = (fence_all, mig_everywhere, lose_all, fence_one_and_lose_one, list_none, driver_goes)


def healthy_units(node: NodeUnderTest) -> int:
    """Healthy units of all resources, or devices without a taint in mode `dra`."""
    state = node.state
    listed = (block for blocks in state.advertised.lists.values() for block in blocks)
    units = sum(block.count for block in listed if block.healthy)
    if state.node.mode is Mode.DRA:
        devices = (slice_spec(state, "n") or {})["devices"]
        units += sum(not device.get("taints") for device in devices)
    return units


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_without_a_usable_gpu_the_node_is_not_ready_in_any_mode(mode: Mode, cause: Callable[[NodeUnderTest], None]):
    node = node_in(mode)
    assert healthy_units(node)
    assert node_condition(node.state)["status"] == "True"
    cause(node)
    assert not usable_gpus(node.state)
    assert not healthy_units(node)
    blocking = [problem for problem in problems(node.state) if problem.blocking]
    assert len(blocking) == 1, blocking
    assert node_condition(node.state)["status"] == "False"


@pytest.mark.parametrize("mode", MODES)
def test_one_usable_gpu_is_enough(mode: Mode):
    node = node_in(mode).send(ev.FenceRead(Fence(uuids=frozenset({uuid(0)})), 0.0))
    assert healthy_units(node)
    assert node_condition(node.state)["status"] == "True"
    assert "1 of 2 GPUs can be used" in node_condition(node.state)["message"]


def test_the_problem_counts_the_causes():
    node = in_force(Mode.SHARE, (gpu(0), gpu(1), gpu(2, mig=True)))
    fence_one_and_lose_one(node)
    text = next(problem.message for problem in problems(node.state) if problem.reason == "NoUsableGPU")
    assert text.startswith("mode share has no usable GPU: of 3, 1 is fenced, 1 is unhealthy, 1 is in MIG mode.")


def test_gpus_that_no_driver_can_isolate_are_not_usable():
    node = in_force(Mode.CGPU)
    left_out = dict.fromkeys((uuid(0), uuid(1)), "too old")
    node.send(ev.LayerSeen(replace(node.state.layer, left_out=left_out), node.now)).wait(5)
    assert not healthy_units(node)
    assert node_condition(node.state)["reason"] == "NoUsableGPU"


def test_whole_gpus_are_left_to_another_plugin_in_mode_default():
    node = in_force(Mode.DEFAULT)
    fence_all(node)
    assert node_condition(node.state)["status"] == "True"


def test_compute_of_a_gpu_without_a_unit_of_memory_is_not_offered():
    node = in_force(Mode.CORE_MEM, (gpu(0, 16), gpu(1, 4)), unit=MemoryUnit(8192))
    assert node.offer("aliyun.com/gpu-mem") == {0: 2}
    assert node.offer("aliyun.com/gpu-core.percentage") == {0: 100}


# -- the driver ---------------------------------------------------------------------------------------------------


def test_a_short_failure_of_the_driver_changes_no_list():
    node = in_force(Mode.SHARE)
    before = node.state.advertised.lists
    node.send(ev.DriverUnavailable("hangs", node.now))
    node.wait(DRIVER_GRACE_S - 0.1)
    assert node.state.advertised.lists == before
    assert node_condition(node.state)["status"] == "True"
    node.inventory(*box()).wait(DRIVER_GRACE_S)
    assert node.state.advertised.lists == before


def test_a_driver_that_is_gone_takes_all_units_and_gives_them_back_at_once():
    node = in_force(Mode.SHARE)
    node.send(ev.DriverUnavailable("nvmlInit: Driver Not Loaded", 0.0))
    assert deadline(node.state) == DRIVER_GRACE_S
    node.wait(DRIVER_GRACE_S)
    assert node.fenced("aliyun.com/gpu-mem") == {0: 16, 1: 16}
    assert node_condition(node.state)["reason"] == "DriverUnavailable"
    node.inventory(*box())
    assert node.offer("aliyun.com/gpu-mem") == {0: 16, 1: 16}
    assert node_condition(node.state)["status"] == "True"


def test_another_reason_does_not_begin_the_grace_period_again():
    node = in_force(Mode.SHARE).send(ev.DriverUnavailable("nvmlDeviceGetCount: Uninitialized", 0.0))
    node.now = DRIVER_GRACE_S - 1
    node.send(ev.DriverUnavailable("nvmlInit: Driver Not Loaded", node.now)).wait(1)
    assert not healthy_units(node)


def test_devices_for_claims_are_tainted_while_the_driver_is_gone():
    node = in_force(Mode.DRA)
    driver_goes(node)
    assert [taint["key"] for taint in taints(box()[0], node.state)] == ["gpu.gpuagent.io/unreadable"]


# -- what all GPUs share ------------------------------------------------------------------------------------------


def messages(node: NodeUnderTest, reason: str) -> list[str]:
    return [problem.message for problem in problems(node.state) if problem.reason == reason]


def test_a_fault_that_all_gpus_have_is_said_once():
    node = in_force(Mode.SHARE)
    lose_all(node)
    assert messages(node, "GPUUnhealthy") == ["all 2 GPUs of this node: GPU is lost"]
    node = in_force(Mode.SHARE, box(3))
    lose_all(node)
    assert len(messages(node, "GPUUnhealthy")) == 2


def test_an_error_of_all_gpus_at_the_start_is_said_once():
    unreadable = tuple(UnreadableGpu(index, "nvmlDeviceGetUUID: Not Supported") for index in range(8))
    node = NodeUnderTest(Mode.SHARE).inventory(unreadable=unreadable).holdings()
    text = "none of the 8 GPUs can be read: nvmlDeviceGetUUID: Not Supported"
    assert messages(node, "GPUUnreadable") == [text]
    assert node_condition(node.state)["reason"] == "GPUUnreadable"
