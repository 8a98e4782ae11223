"""Where schedulers that divide, number or add up would be wrong about this node, it is said aloud; and only there."""

from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.policy import Policy
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.status import problems
from tests.unit.domain.builders import MEM, NodeUnderTest, box, gpu, holding, in_force, pod_json, unit_ids

MS = Kind.MEMORY_SHARE
GPU_KINDS = (gpu(0, 16), gpu(1, 24))


def messages(node: NodeUnderTest, reason: str) -> list[str]:
    return [problem.message for problem in problems.problems(node.state) if problem.reason == reason]


@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.CGPU, Mode.MPS, Mode.CORE_MEM])
def test_gpus_that_differ_are_reported_where_memory_is_advertised_and_leave_the_condition_true(mode):
    node = in_force(mode, GPU_KINDS)
    (text,) = messages(node, "MixedGPUs")
    assert "GPU 0 16, GPU 1 24" in text
    assert "takes each for 20" in text
    assert node_condition(node.state)["status"] == "True"
    assert node.announced().count("MixedGPUs") == 1


@pytest.mark.parametrize("mode", [Mode.DEFAULT, Mode.TOPOLOGY])
def test_gpus_that_differ_are_nothing_to_report_where_no_memory_is_advertised(mode):
    assert messages(in_force(mode, GPU_KINDS), "MixedGPUs") == []


def test_a_gpu_without_units_counts_in_the_division():
    (text,) = messages(in_force(Mode.SHARE, (gpu(0, mig=True), gpu(1))), "MixedGPUs")
    assert "takes each for 8" in text


def test_gpus_that_differ_by_less_than_a_unit_are_equal():
    node = in_force(Mode.SHARE, (gpu(0), replace(gpu(1), memory_mib=16 * 1024 + 500)))
    assert messages(node, "MixedGPUs") == []


@pytest.mark.parametrize(("minors", "count"), [((0, 1), 0), ((1, 0), 0), ((4, 5), 1), ((0, 2), 1)])
def test_numbers_that_do_not_go_up_from_0_are_reported(minors, count):
    node = in_force(Mode.SHARE, tuple(gpu(n, minor=minor) for n, minor in enumerate(minors)))
    assert len(messages(node, "NonContiguousGPUMinors")) == count
    topology = in_force(Mode.TOPOLOGY, node.state.gpus.by_uuid.values())
    assert messages(topology, "NonContiguousGPUMinors") == []


def restarted(unit: MemoryUnit, *gpus) -> NodeUnderTest:
    """An agent that was started with this unit, on a node where units were given before."""
    node = in_force(Mode.SHARE, gpus or box(2))
    node.state = replace(node.state, policy=replace(Policy(), unit=unit))
    return node


def test_ids_beyond_the_units_of_today_are_reported_and_their_end_is_seen():
    node = restarted(MemoryUnit(2048)).pods(pod_json("a", {MEM: 2}), pod_json("b", {MEM: 1}))
    node.holdings(holding("a", unit_ids(1, MS, 7, 8)), holding("b", unit_ids(0, MS, 7)))
    (text,) = messages(node, "UnitsChanged")
    assert "GPU 1" in text
    assert "8 units of 2GiB" in text
    assert "ml/a" in text
    assert "ml/b" not in text
    assert messages(node.holdings(holding("b", unit_ids(0, MS, 7))), "UnitsChanged") == []


def test_a_smaller_gpu_in_the_same_place_is_reported():
    node = restarted(MemoryUnit(), gpu(0, 8)).pods(pod_json("a", {MEM: 1})).holdings(holding("a", unit_ids(0, MS, 12)))
    assert "8 units of GiB" in messages(node, "UnitsChanged")[0]


@pytest.mark.parametrize(("was", "count"), [(16, 0), (64, 1), (8, 1)])
def test_what_a_gpu_had_when_its_units_were_given_shows_a_changed_unit_both_ways(was, count):
    """By the answer in kubelet's checkpoint; annotations of the pod may say anything, or nothing."""
    held = holding("a", unit_ids(0, MS, 0, 1))
    entry = CheckpointEntry("uid-a", "main", MEM, held.ids, gpu_units=frozenset({was}))
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 2}, annotations={an.V1_GPU: "0", an.V1_GPU_UNITS: "5"}))
    node.send(ev.HoldingsRead((held,), 1.0, 1.0, (entry,)))
    assert len(messages(node, "UnitsChanged")) == count


def test_many_pods_are_named_in_short():
    names = [f"p{n:02}" for n in range(12)]
    node = restarted(MemoryUnit(16 * 1024)).pods(*(pod_json(name, {MEM: 1}) for name in names))
    node.holdings(*(holding(name, unit_ids(0, MS, 1 + n)) for n, name in enumerate(names)))
    (text,) = messages(node, "UnitsChanged")
    assert "ml/p07 and 4 more" in text
