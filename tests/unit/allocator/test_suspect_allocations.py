"""Units that kubelet offers although a pod may still hold them."""

import pytest

from gpuagent.domain.refusal import Reason
from tests.unit.allocator.desk import share_desk
from tests.unit.domain.builders import (
    MEM,
    box,
    owner,
    pod_json,
)

pytestmark = pytest.mark.usefixtures("impatient")


def test_units_handed_out_a_moment_ago_are_avoided():
    desk = share_desk(*box(1))
    given = desk.prefer(MEM, 4)
    desk.allocator.allocate(MEM, given)  # kubelet loses them from its books
    assert not given & desk.prefer(MEM, 4)
    desk.node.now += 200
    assert desk.prefer(MEM, 4) == given


def test_units_that_kubelets_book_gives_to_a_living_pod_are_refused_when_no_others_are_left():
    desk = share_desk(*box(1)).pods(pod_json("a", {MEM: 12}, created="1"), pod_json("b", {MEM: 8}, created="2"))
    desk.serve(owner("a"), MEM, 12)
    everything = sorted(desk.node.ids(MEM))
    refusal = desk.refusal(lambda: desk.allocator.prefer(MEM, everything, [], 8))
    assert refusal.reason is Reason.STILL_HELD
    assert "ml/a" in refusal.message
    chosen = desk.allocator.prefer(MEM, everything, [], 4)
    assert not set(chosen) & desk.book.holdings[0].ids


def test_units_in_doubt_are_given_where_kubelet_does_not_say_or_their_pod_has_gone():
    for settle in ("silent", "freed", "gone"):
        desk = share_desk(*box(1)).pods(pod_json("a", {MEM: 16}, created="1"), pod_json("b", {MEM: 8}, created="2"))
        desk.serve(owner("a"), MEM, 16)
        if settle == "silent":
            desk.book.tells_pods = False
        elif settle == "freed":
            desk.end("a")
        else:
            desk.pods(pod_json("b", {MEM: 8}))
        assert len(desk.allocator.prefer(MEM, sorted(desk.node.ids(MEM)), [], 8)) == 8
