"""What schedulers reserved for pods to come, other pods do not get; impossible decisions reserve nothing."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.pods.annotations import CORE_ANNOTATION, DECIDED_ANNOTATION, MIRROR_ANNOTATION
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Mode
from tests.unit.allocator.decisions.decided_pods import at, decided, kubelet_with, serve
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    pod_json,
)
from tests.unit.domain.scheduling.test_decision import v2

pytestmark = pytest.mark.usefixtures("impatient")


def test_where_kubelet_does_not_answer_a_pod_without_a_decision_gets_what_is_not_reserved():
    kubelet = kubelet_with(pod_json("b", {MEM: 4}), decided("a", 0, 16, second=1), answers_queries=False)
    serve(kubelet, "b")
    assert at(kubelet, "b") == [1]


def test_pods_without_a_decision_leave_what_is_reserved():
    kubelet = kubelet_with(pod_json("b", {MEM: 8}), decided("a", 0, 10), gpus=2)
    serve(kubelet, "b", 8)
    assert at(kubelet, "b") == [1]
    serve(kubelet, "a", 10)
    assert at(kubelet, "a") == [0]


def test_reserved_units_are_refused_to_others_with_the_reason():
    kubelet = kubelet_with(pod_json("b", {MEM: 8}), decided("a", 0, 10), gpus=1)
    refusal = kubelet.refusal(lambda: serve(kubelet, "b", 8))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "of 16 free on the node schedulers have reserved 10 for pods that are still to come" in refusal.message
    kubelet = kubelet_with(pod_json("b", {MEM: 8}), decided("a", 0, 10) | {"status": {"phase": "Failed"}}, gpus=1)
    serve(kubelet, "b", 8)


def test_what_is_reserved_counts_for_compute_too():
    both = {MEM: 2, CORE: 80}
    kubelet = kubelet_with(
        pod_json("b", {MEM: 2, CORE: 30}), pod_json("a", both, annotations=v2({"0": {"0": 2}})), mode=Mode.CORE_MEM
    )
    serve(kubelet, "b", 30, resource=CORE)
    serve(kubelet, "b", 2)
    assert at(kubelet, "b") == at(kubelet, "b", resource=CORE) == [1]


def test_a_reservation_of_compute_alone_reserves_no_memory():
    decided_on = pod_json("a", {CORE: 80}, annotations=v2({"0": {"0": 80}}, CORE_ANNOTATION))
    kubelet = kubelet_with(pod_json("b", {MEM: 16}), decided_on, mode=Mode.CORE_MEM, gpus=1, core_mem_both=False)
    serve(kubelet, "b", 16)
    assert at(kubelet, "b") == [0]


def test_a_memory_decision_for_a_fenced_gpu_reserves_nothing():
    kubelet = kubelet_with(
        pod_json("b", {MEM: 1}), decided("a", 0, 2, second=1), mode=Mode.CORE_MEM, gpus=2, core_mem_both=False
    )
    kubelet.node.send(ev.FenceRead(Fence(indexes=frozenset({"0"})), kubelet.node.now))
    kubelet.publish()
    serve(kubelet, "b", 1)
    assert at(kubelet, "b") == [1]


def test_a_pod_that_is_being_deleted_has_nothing_reserved():
    leaving = decided("a", 0, 16)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    kubelet = kubelet_with(pod_json("b", {MEM: 16}), leaving, gpus=1)
    serve(kubelet, "b", 16)
    assert at(kubelet, "b") == [0]


EVERY_GPU = {"0": {str(n): 16 for n in range(4)}}


IMPOSSIBLE = {
    "more than the GPU has": [pod_json("x", {MEM: 17}, annotations=v2({"0": {"1": 17}}))],
    "more than each of the GPUs has": [
        pod_json(
            "x",
            {MEM: 8000},
            annotations=v2({"0": {str(n): 2000 for n in range(4)}}),
            labels={GPU_COUNT_LABEL: "4"},
        )
    ],
    "its containers together more than the GPU has": [
        pod_json("x", {MEM: 16}, {MEM: 16}, annotations=v2({"0": {"1": 16}, "1": {"1": 16}}))
    ],
    "an init container that asks for more than the node has": [
        pod_json("x", {MEM: 64}, init=({MEM: 65},), annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"})
    ],
    "a resource that is at 0 in this mode": [
        pod_json("x", {MEM: 64, WHOLE: 1}, annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"})
    ],
    "another pod's UID": [
        pod_json(
            "x",
            {MEM: 64},
            annotations=v2(EVERY_GPU) | {DECIDED_ANNOTATION: "uid-y"},
            labels={GPU_COUNT_LABEL: "4"},
        )
    ],
    "a mirror pod": [
        pod_json("x", {MEM: 64}, annotations=v2(EVERY_GPU) | {MIRROR_ANNOTATION: "0"}, labels={GPU_COUNT_LABEL: "4"})
    ],
    "containers on different GPUs to which an init container hands on its units": [
        pod_json("x", {MEM: 16}, {MEM: 16}, init=({MEM: 17},), annotations=v2({"0": {"0": 16}, "1": {"1": 16}}))
    ],
    "several that are possible alone, on a GPU that has no room": [
        pod_json(f"x{n}", {MEM: 64}, annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"}) for n in range(3)
    ],
}


@pytest.mark.parametrize("hostile", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_decision_that_cannot_be_kept_reserves_nothing(hostile):
    """The pod without a decision asks for all that is left: one unit reserved for another would refuse it."""
    busy, *victims = pod_json("busy", {MEM: 2}), *(pod_json(f"victim-{n}", {MEM: 16}) for n in range(3))
    kubelet = kubelet_with(busy)
    serve(kubelet, "busy", 2)
    kubelet.pods(busy, *victims, *hostile)
    for victim in victims:
        serve(kubelet, victim["metadata"]["name"], 16)


@pytest.mark.parametrize("status", [None, {"phase": "Failed"}])
def test_a_decision_of_a_pod_that_kubelet_has_passed_over_reserves_nothing(status):
    """Kubelet asks for pods in the order in which they come, and tries none twice, whatever made it reject one."""
    rejected = pod_json("rejected", {MEM: 64}, annotations=v2(EVERY_GPU), labels={GPU_COUNT_LABEL: "4"})
    kubelet = kubelet_with(rejected | ({"status": status} if status else {}), pod_json("victim", {MEM: 16}))
    serve(kubelet, "victim", 16)


def test_a_pod_that_was_made_later_is_not_passed_over_where_the_order_is_not_known():
    """Kubelet takes pods that it is shown at once by age. The agent may have been shown them in another order."""
    late = decided("late", 0, 16, second=30)
    kubelet = kubelet_with(late, pod_json("early", {MEM: 8}), gpus=2)
    serve(kubelet, "early", 8)
    assert at(kubelet, "early") == [1]


def test_a_decision_of_a_pod_that_runs_is_kept_where_kubelet_has_lost_its_checkpoint():
    runs = decided("runs", 0, 16)
    runs["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
    kubelet = kubelet_with(runs, pod_json("other", {MEM: 8}, created="2026-01-01T00:01:00Z"), gpus=2)
    serve(kubelet, "other", 8)
    assert at(kubelet, "other") == [1]


def test_reservations_are_never_more_than_is_free_and_the_oldest_come_first():
    kubelet = kubelet_with(
        pod_json("victim", {MEM: 6}), *(decided(f"x{n}", 0, 10, second=n + 1) for n in range(3)), gpus=1
    )
    serve(kubelet, "victim", 6)
    serve(kubelet, "x0", 10)


@pytest.mark.parametrize("order", [(MEM, CORE), (CORE, MEM)])
def test_reserved_memory_is_not_taken_by_a_pod_that_asks_for_compute_first(order):
    amounts = {MEM: 4, CORE: 10}
    large = [
        pod_json(name, {MEM: 8, CORE: 10}, annotations=v2({"0": {"0": 8}}), created=f"2026-01-01T00:00:0{n}Z")
        for n, name in ((0, "x"), (2, "a"))
    ]
    kubelet = kubelet_with(large[0], mode=Mode.CORE_MEM, gpus=2)
    serve(kubelet, "x", 8)
    serve(kubelet, "x", 10, resource=CORE)
    kubelet.pods(large[0], pod_json("b", amounts, created="2026-01-01T00:00:01Z"), large[1])
    for resource in order:
        serve(kubelet, "b", amounts[resource], resource=resource)
    serve(kubelet, "a", 8)
    assert (at(kubelet, "b"), at(kubelet, "a")) == ([1], [0])
