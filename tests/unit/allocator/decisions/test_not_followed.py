"""Decisions of schedulers that cannot be followed, or that are none, and kubelets that pick other GPUs."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Reason
from tests.unit.allocator.decisions.decided_pods import at, decided, desk_of, serve
from tests.unit.allocator.desk import NodeWithKubelet
from tests.unit.domain.builders import (
    MEM,
    key,
    pod_json,
    uuid,
)
from tests.unit.domain.scheduling.test_decision import v1

pytestmark = pytest.mark.usefixtures("impatient")


def full(desk: NodeWithKubelet) -> NodeWithKubelet:
    """GPU 0 has 2 units left: somebody without a decision has the others."""
    desk.pods(*[pod_json("big", {MEM: 14})])
    serve(desk, "big", 14)
    assert at(desk, "big") == [0]
    return desk


def test_a_chosen_gpu_that_is_full_is_refused_with_the_reason():
    desk = full(desk_of())
    desk.pods(pod_json("big", {MEM: 14}), decided("a", 0))
    refusal = desk.refusal(lambda: serve(desk, "a"))
    assert refusal.reason is Reason.GPU_DECISION
    assert refusal.message == (
        "aliyun.com/gpu-mem: ml/a[main] asks for 4 GiB; a scheduler chose GPU 0 for it (annotation "
        "ALIYUN_COM_GPU_MEM_IDX), and GPU 0 has 2 free and not 4 (free: GPU 0: 2, GPU 1: 16, GPU 2: 16, GPU 3: 16)"
    )
    assert (PodName("ml", "a"), "GPURefused", refusal.message) in desk.said


def test_a_setting_has_another_gpu_chosen_where_the_chosen_one_is_full():
    desk = full(desk_of(keep_decisions=False))
    desk.pods(pod_json("big", {MEM: 14}), decided("a", 0))
    serve(desk, "a")
    assert at(desk, "a") == [1]
    assert desk.said[-1] == (
        PodName("ml", "a"),
        "GPUDecisionNotKept",
        (
            "aliyun.com/gpu-mem: ml/a[main] gets GPU 1: a scheduler chose GPU 0 for it (annotation "
            "ALIYUN_COM_GPU_MEM_IDX), which is full or gone, and --decided-gpu-full is choose"
        ),
    )


def test_the_setting_changes_nothing_where_the_chosen_gpu_has_room():
    desk = desk_of(decided("a", 3), keep_decisions=False)
    serve(desk, "a")
    assert at(desk, "a") == [3]
    assert not desk.said


def test_a_chosen_gpu_that_is_unhealthy_is_refused():

    desk = desk_of(decided("a", 1))
    offered = desk.free(MEM)
    desk.node.tell(ev.XidRaised(uuid(1), 79, desk.node.now))
    desk.publish()
    refusal = desk.refusal(lambda: desk.allocator.prefer(MEM, offered, (), 4))
    assert refusal.reason is Reason.GPU_DECISION
    assert "GPU 1 is unhealthy or leaves this mode" in refusal.message


def test_a_chosen_gpu_that_is_gone_is_refused_or_replaced():
    desk = desk_of(decided("a", 7))
    refusal = desk.refusal(lambda: serve(desk, "a"))
    assert refusal.reason is Reason.GPU_DECISION
    assert "annotation ALIYUN_COM_GPU_MEM_IDX names GPU 7, and this node has no such GPU" in refusal.message
    desk = desk_of(decided("a", 7), keep_decisions=False)
    assert serve(desk, "a")
    assert "names GPU 7, and this node has no such GPU, and --decided-gpu-full is choose" in desk.said[-1][2]


def test_a_gpu_that_has_as_many_pods_as_allowed_is_refused():
    desk = desk_of(decided("a", 0, 1), max_pods_per_gpu=1)
    serve(desk, "a", 1)
    desk.pods(decided("a", 0, 1), decided("b", 0, 1))
    assert "GPU 0 has 1 pods already, the most allowed" in desk.refusal(lambda: serve(desk, "b", 1)).message


def test_a_gpu_that_kubelet_does_not_offer_is_refused():
    desk = desk_of(decided("a", 0))
    aligned = [i for i in desk.free(MEM) if i.startswith((key(2), key(3)))]
    assert "kubelet offers nothing of GPU 0" in desk.refusal(lambda: desk.allocator.prefer(MEM, aligned, (), 4)).message


def test_what_is_no_decision_is_left_out_of_account_and_said():
    desk = desk_of(pod_json("a", {MEM: 4}, annotations=v1(2, 9)))
    serve(desk, "a")
    assert at(desk, "a") == [0]
    ((pod, reason, text),) = desk.said
    assert (pod, reason) == (PodName("ml", "a"), "GPUDecisionIgnored")
    assert "ALIYUN_COM_GPU_MEM_POD says 9, and the pod's containers ask for 4" in text


def test_a_kubelet_that_picks_another_gpu_is_refused():
    desk = desk_of(decided("a", 2))
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, [f"{key(1)}-ms-{n}" for n in range(4)]))
    assert refusal.reason is Reason.GPU_DECISION
    assert "kubelet picked GPU 1 for ml/a[main], and a scheduler chose GPU 2 for it" in refusal.message
    assert desk.allocator.allocate(MEM, [f"{key(2)}-ms-{n}" for n in range(4)])


def test_a_decision_for_one_pod_is_nothing_to_an_equal_pod_without():
    desk = desk_of(decided("a", 2), pod_json("b", {MEM: 4}, created="2026-01-01T00:00:09Z"), tells_pods=False)
    assert desk.allocator.allocate(MEM, [f"{key(1)}-ms-{n}" for n in range(4)])
