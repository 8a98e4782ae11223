"""What the agent says of itself."""

import json
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain import state
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import UnreadableGpu
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.status.problems import problems, switch
from gpuagent.domain.status.status_page import status
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    key,
    node_json,
    pod_json,
    unit_ids,
    uuid,
)

OLD = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0, 1))


def reasons(node: NodeUnderTest) -> list[str]:
    """Of the problems that last."""
    return [problem.reason for problem in problems(node.state) if not problem.passing]


def message(node: NodeUnderTest, reason: str) -> str:
    return next(problem.message for problem in problems(node.state) if problem.reason == reason)


# -- problems --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
def test_a_sound_node_has_no_problem(mode):
    assert reasons(in_force(mode)) == []


def test_a_kubelet_that_picks_units_itself_is_reported():
    def node(version: str | None) -> NodeUnderTest:
        found = node_json("share") | {"status": {"nodeInfo": {"kubeletVersion": version}}}
        return in_force(Mode.SHARE).send(ev.NodeSeen(found, 1.0))

    assert reasons(node("v1.18.20")) == ["PreferredAllocationUnsupported"]
    assert "kubelet v1.18.20 picks device ids" in message(node("v1.18.20"), "PreferredAllocationUnsupported")
    assert node_condition(node("v1.18.20").state)["status"] == "True"
    assert reasons(node("v1.19.0")) == reasons(node(None)) == []


def test_before_the_driver_answered_that_is_the_problem():
    assert node_condition(NodeUnderTest(Mode.SHARE).state)["reason"] == "DriverUnavailable"
    assert "not read yet" in message(NodeUnderTest(Mode.SHARE), "DriverUnavailable")


def test_a_node_without_gpus_says_so():
    assert reasons(NodeUnderTest(Mode.SHARE).inventory().holdings()) == ["NoGPUs"]
    nothing_read = NodeUnderTest(Mode.SHARE).inventory(unreadable=(UnreadableGpu(0, "GPU is lost"),))
    assert reasons(nothing_read) == ["GPUUnreadable"]


def test_a_gpu_that_is_left_out_is_named_with_cause_and_cure():
    node = in_force(Mode.SHARE, (gpu(0, mig=True), gpu(1)))
    assert message(node, "MIGEnabled") == (
        f"GPU 0 ({uuid(0)}) is left out: MIG is enabled; disable it with nvidia-smi -mig 0"
    )
    node.send(ev.XidRaised(uuid(1), 79, 1.0))
    assert message(node, "GPUUnhealthy") == f"GPU 1 ({uuid(1)}): XID 79"


def test_a_gpu_that_hangs_is_left_out_only_if_it_was_never_read():
    hung = (UnreadableGpu(1, "a call hangs"),)
    at_first = NodeUnderTest(Mode.SHARE).inventory(gpu(0), unreadable=hung).holdings()
    assert message(at_first, "GPUUnreadable") == "GPU 1 is left out: a call hangs"
    later = in_force(Mode.SHARE, (gpu(0), gpu(1))).inventory(gpu(0), gpu(1), unreadable=hung)
    assert message(later, "GPUUnreadable") == "GPU 1 stays as it was read before: a call hangs"
    assert reasons(later) == ["GPUUnreadable"]


@pytest.mark.parametrize(("mode", "what"), [(Mode.CGPU, "memory"), (Mode.CORE_MEM, "compute, memory")])
def test_missing_isolation_is_a_problem_and_a_trial_is_one_too(mode, what):
    node = in_force(mode, isolates=frozenset())
    assert reasons(node) == ["IsolationMissing"]
    assert f"no isolation driver isolates {what} for mode {mode} (--isolation auto)" in message(
        node, "IsolationMissing"
    )
    trial = in_force(mode, isolates=frozenset(), allow_unisolated=True)
    assert reasons(trial) == ["IsolationDisabled"]
    assert node_condition(trial.state)["status"] == "False"


def test_a_unit_too_small_names_the_smallest_that_fits():
    node = in_force(Mode.SHARE, tuple(gpu(n, 80) for n in range(8)), unit=MemoryUnit(1))
    text = message(node, "DeviceListTooLarge")
    assert "655360 units of MiB" in text
    fits = MemoryUnit.parse(re.search(r"--memory-unit to (\w+) or more", text)[1])
    assert reasons(in_force(Mode.SHARE, tuple(gpu(n, 80) for n in range(8)), unit=fits)) == ["DeviceCountHigh"]


@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.CORE_MEM, Mode.DRA])
def test_a_unit_larger_than_every_gpu_names_the_largest_that_works(mode):
    gpus = [gpu(n, memory_mib=mib) for n, mib in enumerate((512, 24258, 16384))]
    node = in_force(mode, gpus, unit=MemoryUnit.parse("64GiB"))
    text = message(node, "MemoryUnitTooLarge")
    assert "GPU 1 with 24258 MiB" in text
    assert all(resource in text for resource in node.state.resource_kinds), "compute stays at 0 for the same reason"
    assert node_condition(node.state)["status"] == "False"
    works = MemoryUnit.parse(re.search(r"--memory-unit to (\w+) or less", text)[1])
    better = in_force(mode, gpus, unit=works)
    assert reasons(better)[:2] == ["GPUSmallerThanUnit"] * 2
    assert node_condition(better.state)["status"] == "True"


def test_a_gpu_smaller_than_a_unit_names_the_unit_that_it_would_have():
    node = in_force(Mode.SHARE, (gpu(0, memory_mib=512), gpu(1)))
    assert message(node, "GPUSmallerThanUnit") == (
        f"GPU 0 ({uuid(0)}) is left out of {MEM}: it has 512 MiB, less than one unit of 1 GiB; "
        "set --memory-unit to 512MiB or less"
    )
    nothing = in_force(Mode.SHARE, (gpu(0, memory_mib=0), gpu(1)))
    assert reasons(nothing)[0] == "GPUMemoryUnknown"
    assert reasons(in_force(Mode.TOPOLOGY, (gpu(0, memory_mib=512), gpu(1)))) == []


def test_a_gpu_that_is_served_whole_keeps_a_node_ready_whose_other_gpus_are_smaller_than_a_unit():
    gpus = (gpu(0, memory_mib=0), gpu(1, 16))
    node = in_force(Mode.DRA, gpus, unit=MemoryUnit.parse("64GiB"))
    assert message(node, "GPUSmallerThanUnit").startswith(f"GPU 1 ({uuid(1)}) is left out of gpu.gpuagent.io")
    assert reasons(node) == ["GPUSmallerThanUnit"]
    assert node_condition(node.state)["status"] == "True"
    node.send(ev.GpuLost(uuid(0), "fell off the bus", node.now))
    assert {"GPUSmallerThanUnit", "NoUsableGPU"} <= set(reasons(node))
    assert node_condition(node.state)["status"] == "False"
    share = in_force(Mode.SHARE, gpus, unit=MemoryUnit.parse("64GiB"))
    assert "MemoryUnitTooLarge" in reasons(share), "no unit of it is left"


def test_what_is_not_read_yet_is_shown_and_no_event_is_sent():
    node = NodeUnderTest(Mode.SHARE)
    assert [(p.reason, p.passing) for p in problems(node.state)] == [
        ("DriverUnavailable", True),
        ("PodResourcesUnavailable", True),
    ]
    node.inventory(*box())
    assert node_condition(node.state)["message"] == "mode share, 2 GPUs"
    assert node.holdings().announced() == []
    assert reasons(node) == []


def test_an_unread_label_is_news_only_if_reading_it_fails():
    node = NodeUnderTest()
    node.state = replace(node.state, node=replace(node.state.node, mode_known=False))
    node.inventory(*box()).holdings()
    assert node_condition(node.state)["reason"] == "ModeNotYetKnown"
    assert node.announced() == []
    node.send(ev.ApiUnavailable("it is silent", node.now))
    assert node.announced() == ["ModeNotYetKnown", "APIServerUnavailable"]


def test_the_condition_names_problems_before_what_is_for_information():
    node = in_force(Mode.SHARE, box(2), fence_file="/f").send(ev.FenceRead(Fence(indexes=frozenset({"0"})), 1.0))
    node.label("bogus")
    assert [(p.reason, p.severity) for p in problems(node.state)] == [
        ("InvalidModeLabel", "warning"),
        ("GPUFenced", "info"),
    ]
    ready, bogus, fenced = node_condition(node.state)["message"].split("; ", 2)
    assert ready.startswith("mode share, ")
    assert "is not a mode" in bogus
    assert "; GPUFenced (info): GPU 0" in fenced
    assert [p["severity"] for p in status(node.state)["problems"]] == ["warning", "info"]


def test_many_devices_are_a_warning_with_a_cure():
    text = message(in_force(Mode.SHARE, box(1, 80), unit=MemoryUnit(16)), "DeviceCountHigh")
    assert "5120 devices" in text
    assert "a larger --memory-unit than 16MiB" in text
    assert reasons(in_force(Mode.SHARE, box(4, 80), unit=MemoryUnit(256))) == []


def test_allocations_that_cannot_be_read_say_what_that_means():
    node = NodeUnderTest(Mode.SHARE).inventory(*box()).send(ev.HoldingsUnavailable("no socket", 1.0))
    assert "no GPUs are advertised until it answers" in message(node, "PodResourcesUnavailable")
    later = in_force(Mode.SHARE).send(ev.HoldingsUnavailable("no socket", 1.0))
    assert "what was known of it is used" in message(later, "PodResourcesUnavailable")


def test_problems_that_pass_are_reported_once_and_again_when_they_return():
    node = in_force(Mode.SHARE)
    for _ in range(2):
        node.send(ev.HoldingsUnavailable("no socket", 1.0)).send(ev.HoldingsUnavailable("no socket", 2.0))
        assert node.announced() == ["PodResourcesUnavailable"]
        assert node.holdings().announced() == []


# -- the switch ------------------------------------------------------------------------------------------------


def test_a_switch_is_settling_then_waiting_then_steady():
    node = in_force(Mode.SHARE).holdings(OLD)
    assert switch(node.state).phase == "steady"
    node.label("topology")
    assert (switch(node.state).phase, switch(node.state).waiting_for) == ("settling", (OLD,))
    node.wait(2)
    assert switch(node.state).phase == "settling", "kubelet's allocations have to be read first"
    node.holdings(OLD)
    assert (switch(node.state).phase, switch(node.state).waiting_for) == ("waiting", (OLD,))
    assert node.holdings().state and switch(node.state).phase == "steady"


def test_the_containers_a_switch_waits_for_are_named_and_that_is_no_failure():
    node = in_force(Mode.SHARE).holdings(OLD).label("topology").wait(2).holdings(OLD)
    assert "ml/old[main] (aliyun.com/gpu-mem)" in message(node, "ModeSwitchWaiting")
    condition = node_condition(node.state)
    assert (condition["status"], condition["reason"]) == ("True", "Ready")
    assert condition["message"].startswith("mode topology, 2 GPUs; ")
    assert "ml/old[main]" in condition["message"]


def test_pods_of_nvidias_own_plugin_are_nothing_to_wait_for_in_mode_default():
    node = in_force(Mode.DEFAULT).holdings(holding("p", [uuid(0)], "nvidia.com/gpu"))
    assert switch(node.state).phase == "steady", "that is how mode default is meant to be"
    assert reasons(node) == []


def test_pods_of_an_old_mode_are_still_waited_for_in_mode_default():
    node = in_force(Mode.SHARE).holdings(OLD).label("default").wait(2).holdings(OLD)
    assert switch(node.state).waiting_for == (OLD,)


# -- the status page -------------------------------------------------------------------------------------------


def test_the_status_page_is_plain_json_and_says_who_holds_what():
    node = in_force(Mode.CORE_MEM, box(3)).label("core_mem")
    node.holdings(
        holding("a", unit_ids(1, Kind.MEMORY_CORE_MEM, 0, 1)), holding("a", unit_ids(1, Kind.CORE_CORE_MEM, 7), CORE)
    ).send(ev.XidRaised(uuid(2), 79, 1.0))
    page = json.loads(json.dumps(status(node.state)))
    assert (page["mode"], page["placement"], page["memory_unit"]) == ("core_mem", "binpack", "GiB")
    assert page["label"] == {"ack.node.gpu.schedule": "core_mem"}
    assert page["resources"] == {
        MEM: {"healthy": 32, "unhealthy": 16},
        CORE: {"healthy": 200, "unhealthy": 100},
        WHOLE: {"healthy": 0, "unhealthy": 0},
    }
    one = page["gpus"][1]
    assert (one["uuid"], one["health"], one["units"]) == (uuid(1), "Healthy", {MEM: 16, CORE: 100})
    assert one["held"] == {MEM: 2, CORE: 1}
    assert one["containers"] == [
        {"container": "ml/a[main]", "resource": MEM, "units": 2},
        {"container": "ml/a[main]", "resource": CORE, "units": 1},
    ]
    faults = page["gpus"][2]
    assert (faults["health"], faults["cause"], faults["recovering"]) == ("Unhealthy", "XID 79", False)
    assert [problem["reason"] for problem in page["problems"]] == ["GPUUnhealthy"]


def test_the_status_page_shows_a_gpu_that_has_to_hold_out():
    node = in_force(Mode.SHARE).send(ev.XidRaised(uuid(0), 94, 1.0))
    shown = [(gpu_["health"], gpu_["cause"], gpu_["recovering"]) for gpu_ in status(node.state)["gpus"]]
    assert shown == [("Unhealthy", "XID 94", True), ("Healthy", None, False)]


def test_the_status_page_counts_a_holding_on_each_of_its_gpus():
    node = in_force(Mode.SHARE).holdings(
        holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1) | unit_ids(1, Kind.MEMORY_SHARE, 0))
    )
    assert [gpu_["held"] for gpu_ in status(node.state)["gpus"]] == [{MEM: 2}, {MEM: 1}]


@pytest.mark.parametrize("device_id", [uuid(0), f"{uuid(0)}::3", "0"])
def test_the_status_page_counts_units_of_other_plugins(device_id):
    node = in_force(Mode.DEFAULT).holdings(holding("a", [device_id], "nvidia.com/gpu"))
    assert [gpu_["held"] for gpu_ in status(node.state)["gpus"]] == [{"nvidia.com/gpu": 1}, {}]


def test_the_status_page_of_an_agent_that_knows_nothing():
    page = json.loads(json.dumps(status(NodeUnderTest().state)))
    assert (page["gpus"], page["switch"]) == ([], {"phase": "steady", "waiting_for": []})


def test_a_status_page_says_what_a_switch_waits_for():
    node = in_force(Mode.SHARE).holdings(OLD).label("topology").wait(2).holdings(OLD)
    assert status(node.state)["switch"] == {
        "phase": "waiting",
        "waiting_for": [{"container": "ml/old[main]", "resource": MEM, "units": 2}],
    }
    assert key(0) in next(iter(OLD.ids))


def test_what_is_derived_is_worked_out_once_a_state(monkeypatch):
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 4}))
    node.holdings(holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2, 3)))
    assert problems(node.state) is problems(node.state)
    work = Mock(wraps=state.held_otherwise)
    monkeypatch.setattr(state, "held_otherwise", work)
    node.pods(pod_json("a", {MEM: 4}), pod_json("b", {MEM: 4}))
    node_condition(node.state)
    assert work.call_count == 1
