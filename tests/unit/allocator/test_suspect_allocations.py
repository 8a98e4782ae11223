"""Units that kubelet offers although a pod may still hold them."""

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeAllocations, FakeKubelet, kubelet_in_share
from tests.unit.domain.builders import (
    MEM,
    box,
    in_force,
    owner,
    pod_json,
)

pytestmark = pytest.mark.usefixtures("impatient")


def test_units_allocated_a_moment_ago_are_avoided():
    kubelet = kubelet_in_share(*box(1))
    given = kubelet.prefer(MEM, 4)
    kubelet.allocator.allocate(MEM, given)  # kubelet loses them
    assert not given & kubelet.prefer(MEM, 4)
    kubelet.node.now += 200
    assert kubelet.prefer(MEM, 4) == given


def test_units_that_kubelets_allocations_give_to_a_living_pod_are_refused_when_no_others_are_left():
    kubelet = kubelet_in_share(*box(1)).pods(
        pod_json("a", {MEM: 12}, created="1"), pod_json("b", {MEM: 8}, created="2")
    )
    kubelet.serve(owner("a"), MEM, 12)
    everything = sorted(kubelet.node.ids(MEM))
    refusal = kubelet.refusal(lambda: kubelet.allocator.prefer(MEM, everything, [], 8))
    assert refusal.reason is Reason.STILL_HELD
    assert "ml/a" in refusal.message
    chosen = kubelet.allocator.prefer(MEM, everything, [], 4)
    assert not set(chosen) & kubelet.allocations.holdings[0].ids


class ListsTwice(FakeAllocations):
    """Kubelet lists a terminating pod and a newer pod of the same name, which has no devices yet."""

    def query(self, pods, *, listing):
        return [*super().query(pods, listing=listing), (PodName("ml", "a"), ())]


def test_units_of_a_terminating_pod_are_refused_although_a_newer_pod_has_its_name():
    kubelet = FakeKubelet(in_force(Mode.SHARE, box(1)), ListsTwice()).pods(pod_json("a", {MEM: 16}))
    kubelet.serve(owner("a"), MEM, 16)
    refusal = kubelet.refusal(lambda: kubelet.allocator.prefer(MEM, kubelet.node.ids(MEM), [], 16))
    assert refusal.reason is Reason.STILL_HELD


def test_units_in_doubt_are_given_where_kubelet_does_not_say_or_their_pod_has_gone():
    for settle in ("silent", "freed", "gone"):
        kubelet = kubelet_in_share(*box(1)).pods(
            pod_json("a", {MEM: 16}, created="1"), pod_json("b", {MEM: 8}, created="2")
        )
        kubelet.serve(owner("a"), MEM, 16)
        if settle == "silent":
            kubelet.allocations.answers_queries = False
        elif settle == "freed":
            kubelet.end("a")
        else:
            kubelet.pods(pod_json("b", {MEM: 8}))
        assert len(kubelet.allocator.prefer(MEM, sorted(kubelet.node.ids(MEM)), [], 8)) == 8
