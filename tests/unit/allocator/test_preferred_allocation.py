"""GetPreferredAllocation: placement, a spread over GPUs, and refusals on the requesting pod."""

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind
from tests.unit.allocator.fake_kubelet import kubelet_in_core_mem, kubelet_in_share
from tests.unit.domain.builders import (
    CORE,
    MEM,
    box,
    gpu,
    owner,
    pod_json,
    unit_ids,
)

COUNT = GPU_COUNT_LABEL
SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def test_placement_is_the_nodes():
    kubelet = kubelet_in_share(gpu(0, 8), gpu(1, 16))
    assert kubelet.prefer(MEM, 4) == unit_ids(0, SHARE, 0, 1, 2, 3)
    kubelet.node.label("share", "spread")
    kubelet.publish()
    assert kubelet.prefer(MEM, 4) == unit_ids(1, SHARE, 0, 1, 2, 3)


def test_a_refusal_is_reported_to_the_pod_it_is_for():
    kubelet = kubelet_in_share().pods(pod_json("big", {MEM: 20}))
    refusal = kubelet.refusal(lambda: kubelet.prefer(MEM, 20))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "ml/big[main] asks for 20 GiB" in refusal.message
    assert kubelet.events == [(PodName("ml", "big"), "GPURefused", refusal.message)]


def test_a_label_that_cannot_be_followed_is_reported_to_the_pod_too():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 3}, labels={COUNT: "2"}))
    refusal = kubelet.refusal(lambda: kubelet.prefer(MEM, 3))
    assert refusal.reason is Reason.GPU_COUNT
    assert kubelet.events == [(PodName("ml", "a"), "GPURefused", refusal.message)]


def test_the_next_pod_is_not_refused_for_the_label_of_a_pod_refused_just_before():
    """Kubelet asks once for each pod; our watch hears of the failed one later."""
    kubelet = kubelet_in_share().pods(
        pod_json("bad", {MEM: 3}, labels={COUNT: "2"}, created="1"), pod_json("good", {MEM: 3}, created="2")
    )
    kubelet.allocations.admitting = "bad"
    kubelet.refusal(lambda: kubelet.prefer(MEM, 3))
    kubelet.allocations.admitting = "good"
    assert len(kubelet.prefer(MEM, 3)) == 3


def test_a_spread_over_gpus_is_chosen_granted_and_even():
    kubelet = kubelet_in_share(*box(3)).pods(pod_json("a", {MEM: 6}, labels={COUNT: "3"}))
    share = kubelet.serve(owner("a"), MEM, 6)
    assert (share.units, len(share.gpus)) == (2, 3)


def test_a_leading_zero_in_the_label_means_the_same_to_both_calls():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 6}, labels={COUNT: "02"}))
    assert kubelet.serve(owner("a"), MEM, 6).units == 3


@pytest.mark.parametrize(
    ("label", "size", "reason"),
    [
        ("0", 4, Reason.GPU_COUNT),
        ("3", 4, Reason.GPU_COUNT),
        ("x", 4, Reason.GPU_COUNT),
        ("4", 4, Reason.NO_SINGLE_GPU),
    ],
)
def test_a_spread_that_cannot_be_is_refused(label, size, reason):
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: size}, labels={COUNT: label}))
    assert kubelet.refusal(lambda: kubelet.prefer(MEM, size)).reason is reason


def test_a_spread_in_core_mem_is_refused():
    for resource, size in ((MEM, 4), (CORE, 30)):
        kubelet = kubelet_in_core_mem().pods(pod_json("a", {MEM: 4, CORE: 30}, labels={COUNT: "2"}))
        assert (
            kubelet.refusal(lambda kubelet=kubelet, r=resource, n=size: kubelet.prefer(r, n)).reason is Reason.GPU_COUNT
        )
