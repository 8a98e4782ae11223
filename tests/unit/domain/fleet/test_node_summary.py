"""One line about a node says what a pod would get there, and every problem."""

import pytest

from gpuagent.domain.fleet.node_problems import NodeProblem, condition_message
from gpuagent.domain.fleet.node_summary import Amount, FreeShare, GpuUse, node_reading, node_summary
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE

FENCED = NodeProblem("info", "GPUFenced", "GPU 0 is fenced")
UNHEALTHY = NodeProblem("warning", "GPUUnhealthy", "GPU 3: XID 79")
DOWN = NodeProblem("blocking", "IsolationDown", "no MPS")
BOTH = (
    GpuUse(0, memory=80, core=100, held_memory=10, held_core=100, pods=2),
    GpuUse(1, memory=80, core=100, held_memory=60, held_core=30, pods=1),
)
WHOLE = (
    GpuUse(0, whole=True, pods=1),
    GpuUse(1, whole=True),
    GpuUse(2, whole=True),
    GpuUse(3, whole=True, usable=False),
)


def node(mode="share", problems=(), ready="True", allocatable=(), **labels):
    blocked = any(problem.severity == "blocking" for problem in problems)
    agent = {
        "type": "GPUAgentReady",
        "status": "False" if blocked else "True",
        "reason": "",
        "message": condition_message(f"mode {mode}, 2 GPUs", problems),
    }
    return {
        "metadata": {
            "name": "n1",
            "labels": {"aliyun.accelerator/nvidia_name": "A100", "aliyun.accelerator/nvidia_count": "2", **labels},
            "annotations": {NODE_GPUS_ANNOTATION: "{}"},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": ready}, agent],
            "allocatable": {"cpu": "8", **dict(allocatable)},
        },
    }


def summary(gpus, *, pods=0, **given):
    return node_summary(node_reading(node(**given)), gpus, unit_mib=1024, pods=pods)


def test_it_sums_up_memory_and_compute():
    found = summary(BOTH, mode="core_mem", pods=3)
    assert (found.name, found.mode, found.model, found.unit_mib) == ("n1", "core_mem", "A100", 1024)
    assert (found.gpus, found.usable, found.pods) == (2, 2, 3)
    assert (found.memory, found.core, found.whole) == (Amount(70, 160), Amount(130, 200), Amount())
    assert (found.problems, found.severity, found.is_ready) == ((), "", True)


def test_a_gpu_without_compute_left_is_not_free_however_much_memory_it_has():
    assert summary(BOTH).largest == FreeShare(memory=20, core=70)
    assert not summary(BOTH[:1]).largest


def test_a_gpu_that_as_many_pods_share_as_may_is_not_free():
    full = GpuUse(0, memory=80, held_memory=20, pods=20, takes_pods=False)
    assert not summary([full]).largest


def test_of_whole_gpus_a_pod_gets_all_that_no_pod_holds():
    found = summary(WHOLE, mode="topology")
    assert found.largest == FreeShare(gpus=2)
    assert (found.whole, found.gpus, found.usable) == (Amount(1, 4), 4, 3)


def test_units_that_are_used_beyond_what_there_is_are_not_free():
    assert not summary([GpuUse(0, memory=80, held_memory=90, pods=1)]).largest


@pytest.mark.parametrize(
    ("given", "gpus", "reason"),
    [
        ({"problems": [DOWN]}, BOTH, "IsolationDown"),
        ({"ready": "False"}, BOTH, "NodeNotReady"),
        ({"ready": "Unknown"}, BOTH, "NodeNotReady"),
        ({"allocatable": {GPU_MEM: "0"}}, BOTH, "AmountAtZero"),
        ({"allocatable": {GPU_MEM: "160", GPU_CORE: "0"}}, BOTH, "AmountAtZero"),
        ({"allocatable": {GPU_WHOLE: "0"}}, WHOLE, "AmountAtZero"),
    ],
)
def test_nothing_is_free_on_a_node_that_cannot_serve_and_a_problem_says_why(given, gpus, reason):
    found = summary(gpus, **given)
    assert not found.largest
    assert (found.usable, found.is_ready, found.severity) == (0, False, "blocking")
    assert [problem.reason for problem in found.problems] == [reason]


def test_an_amount_at_zero_is_said_once_where_the_agent_says_why():
    found = summary(BOTH, problems=[DOWN], allocatable={GPU_MEM: "0"})
    assert found.problems == (DOWN,)


def test_the_problems_of_the_agent_and_of_the_reader_come_together_the_worst_first():
    reading = node_reading(node(problems=[UNHEALTHY, FENCED]))
    found = node_summary(reading, BOTH, unit_mib=1024, pods=0, others=[DOWN])
    assert found.problems == (DOWN, UNHEALTHY, FENCED)
    assert node_summary(reading, BOTH, unit_mib=1024, pods=0).largest, "one sick GPU takes nothing from the others"


def test_a_node_of_another_agent_has_the_mode_that_its_gpus_show():
    plain = {"metadata": {"name": "n1"}, "status": {"capacity": {GPU_MEM: "160", "aliyun.com/gpu-count": "2"}}}
    reading = node_reading(plain)
    assert (reading.report, reading.gpu_count) == (None, 2)
    assert node_summary(reading, WHOLE, unit_mib=0, pods=0).mode == "topology"
    assert node_summary(reading, BOTH, unit_mib=0, pods=0).mode == "core_mem"
    assert node_summary(reading, (), unit_mib=0, pods=0).mode == ""


def test_a_mode_label_counts_only_where_the_agent_says_nothing_of_the_mode():
    assert summary((), mode="dra", **{"ack.node.gpu.schedule": "share"}).mode == "dra"
    labeled = {"metadata": {"name": "n1", "labels": {"ack.node.gpu.schedule": "mps"}}}
    assert node_summary(node_reading(labeled), (), unit_mib=0, pods=0).mode == "mps"


@pytest.mark.parametrize("other", [{}, {"metadata": {"name": "cpu", "labels": {"ack.node.gpu.schedule": "default"}}}])
def test_a_node_without_gpus_and_agent_is_none_of_ours(other):
    assert node_reading(other) is None


@pytest.mark.parametrize("strange", [{"metadata": 3}, {"status": {"capacity": [], "allocatable": {GPU_MEM: "x"}}}])
def test_nodes_of_another_shape_raise_nothing(strange):
    assert node_reading(strange) is None
