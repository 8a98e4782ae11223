"""Decisions of schedulers that cannot be followed, or that are none, and kubelets that pick other GPUs."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import Kind
from tests.unit.allocator.decisions.decided_pods import at, decided, kubelet_with, serve
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import (
    MEM,
    key,
    pod_json,
    unit_ids,
    uuid,
)
from tests.unit.domain.scheduling.test_decision import v1

pytestmark = pytest.mark.usefixtures("impatient")


def full(kubelet: FakeKubelet) -> FakeKubelet:
    """GPU 0 has 2 units left: somebody without a decision has the others."""
    kubelet.pods(*[pod_json("big", {MEM: 14})])
    serve(kubelet, "big", 14)
    assert at(kubelet, "big") == [0]
    return kubelet


def test_a_chosen_gpu_that_is_full_is_refused_with_the_reason():
    kubelet = full(kubelet_with())
    kubelet.pods(pod_json("big", {MEM: 14}), decided("a", 0))
    refusal = kubelet.refusal(lambda: serve(kubelet, "a"))
    assert refusal.reason is Reason.GPU_DECISION
    assert refusal.message == (
        "aliyun.com/gpu-mem: ml/a[main] asks for 4 GiB; a scheduler chose GPU 0 for it (annotation "
        "ALIYUN_COM_GPU_MEM_IDX), and GPU 0 has 2 free and not 4 (free: GPU 0: 2, GPU 1: 16, GPU 2: 16, GPU 3: 16)"
    )
    assert (PodName("ml", "a"), "GPURefused", refusal.message) in kubelet.events


def test_a_chosen_gpu_that_is_unhealthy_is_refused():

    kubelet = kubelet_with(decided("a", 1))
    offered = kubelet.free(MEM)
    kubelet.node.send(ev.XidRaised(uuid(1), 79, kubelet.node.now))
    kubelet.publish()
    refusal = kubelet.refusal(lambda: kubelet.allocator.prefer(MEM, offered, (), 4))
    assert refusal.reason is Reason.GPU_DECISION
    assert "GPU 1 is unhealthy or leaves this mode" in refusal.message


def test_a_chosen_gpu_that_is_gone_is_refused():
    kubelet = kubelet_with(decided("a", 7))
    refusal = kubelet.refusal(lambda: serve(kubelet, "a"))
    assert refusal.reason is Reason.GPU_DECISION
    assert "annotation ALIYUN_COM_GPU_MEM_IDX names GPU 7, and this node has no such GPU" in refusal.message


def test_a_gpu_that_has_as_many_pods_as_allowed_is_refused():
    kubelet = kubelet_with(decided("a", 0, 1), max_pods_per_gpu=1)
    serve(kubelet, "a", 1)
    kubelet.pods(decided("a", 0, 1), decided("b", 0, 1))
    assert "GPU 0 has 1 pods already, the most allowed" in kubelet.refusal(lambda: serve(kubelet, "b", 1)).message


def test_a_gpu_that_kubelet_does_not_offer_is_refused():
    kubelet = kubelet_with(decided("a", 0))
    aligned = [i for i in kubelet.free(MEM) if i.startswith((key(2), key(3)))]
    assert (
        "kubelet offers nothing of GPU 0"
        in kubelet.refusal(lambda: kubelet.allocator.prefer(MEM, aligned, (), 4)).message
    )


def test_what_is_no_decision_is_left_out_of_account_and_reported():
    kubelet = kubelet_with(pod_json("a", {MEM: 4}, annotations=v1(2, 9)))
    serve(kubelet, "a")
    assert at(kubelet, "a") == [0]
    ((pod, reason, text),) = kubelet.events
    assert (pod, reason) == (PodName("ml", "a"), "GPUDecisionIgnored")
    assert "ALIYUN_COM_GPU_MEM_POD says 9, and the pod's containers ask for 4" in text


def test_a_kubelet_that_picks_another_gpu_is_refused():
    kubelet = kubelet_with(decided("a", 2))
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, [f"{key(1)}-ms-{n}" for n in range(4)]))
    assert refusal.reason is Reason.GPU_DECISION
    assert "kubelet picked GPU 1 for ml/a[main], and a scheduler chose GPU 2 for it" in refusal.message
    assert refusal.pod == PodName("ml", "a")
    assert kubelet.allocator.allocate(MEM, [f"{key(2)}-ms-{n}" for n in range(4)])


def test_a_decision_for_one_pod_is_nothing_to_an_equal_pod_without():
    kubelet = kubelet_with(
        decided("a", 2), pod_json("b", {MEM: 4}, created="2026-01-01T00:00:09Z"), answers_queries=False
    )
    assert kubelet.allocator.allocate(MEM, [f"{key(1)}-ms-{n}" for n in range(4)])


def test_a_kubelet_that_picks_for_an_uncertain_pod_gets_no_gpu_that_was_chosen_for_one():
    waiting = [decided("a", 0), decided("b", 1, second=1), pod_json("c", {MEM: 4}, created="2026-01-01T00:00:09Z")]
    kubelet = kubelet_with(*waiting, answers_queries=False)
    picked = [unit_ids(gpu, Kind.MEMORY_SHARE, *range(4)) for gpu in range(4)]
    assert kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, picked[0])).reason is Reason.UNKNOWN_POD
    assert kubelet.allocator.allocate(MEM, picked[3])
    kubelet = kubelet_with(*waiting[:2], answers_queries=False)
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, picked[3]))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert refusal.message.startswith("aliyun.com/gpu-mem: a scheduler chose GPUs for ml/a, ml/b, and the agent")


def test_an_init_container_that_hands_on_its_units_is_refused_where_the_chosen_gpu_is_full():
    kubelet = full(kubelet_with())
    pod = pod_json("a", {MEM: 4}, init=[{MEM: 4}], annotations=v1(0, 4))
    (init,) = (container["name"] for container in pod["spec"]["initContainers"])
    kubelet.pods(pod_json("big", {MEM: 14}), pod)
    assert kubelet.refusal(lambda: serve(kubelet, "a", container=init)).reason is Reason.GPU_DECISION
