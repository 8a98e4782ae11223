"""Allocate: which ids it grants, with isolation, and what it refuses."""

import random
from dataclasses import replace

import pytest

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind, Mode
from tests.unit.allocator.desk import NodeWithKubelet, share_desk
from tests.unit.domain.builders import (
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    in_force,
    key,
    owner,
    pod_json,
    unit_ids,
)

COUNT = GPU_COUNT_LABEL
SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def test_an_agent_that_is_starting_refuses_and_says_so():
    desk = share_desk()
    fresh = Allocator(
        clock=lambda: 0.0,
        kubelet=desk.book,
        isolation=desk.isolation,
        strategy=DeviceStrategy.CDI,
        send_event=lambda _: None,
    )
    for call in (
        lambda: fresh.allocate(MEM, ["x"]),
        lambda: fresh.prefer(MEM, ["x"], [], 1),
        lambda: fresh.prestart(MEM, ["x"]),
    ):
        assert desk.refusal(call).reason is Reason.NOT_READY


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda a: a.prefer(MEM, [], [], 1), Reason.EMPTY_REQUEST),
        (lambda a: a.prefer(MEM, [f"{key(0)}-ms-0"], [], 0), Reason.EMPTY_REQUEST),
        (lambda a: a.prefer(MEM, ["nonsense"], [], 1), Reason.UNKNOWN_DEVICE),
        (lambda a: a.prefer(MEM, [f"{key(0)}-ms-0"], [f"{key(0)}-ms-1"], 1), Reason.UNKNOWN_DEVICE),
        (lambda a: a.prefer(WHOLE, [f"{key(0)}-gt-0"], [], 1), Reason.NOT_OFFERED),
        (lambda a: a.allocate(MEM, []), Reason.EMPTY_REQUEST),
        (lambda a: a.allocate(MEM, ["nonsense"]), Reason.UNKNOWN_DEVICE),
        (lambda a: a.allocate(MEM, [f"{key(0)}-gt-0"]), Reason.MIXED_RESOURCES),
        (lambda a: a.allocate(WHOLE, [f"{key(0)}-gt-0"]), Reason.NOT_OFFERED),
        (lambda a: a.prestart(MEM, []), Reason.EMPTY_REQUEST),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_change_nothing(call, reason):
    desk = share_desk()
    before = desk.allocator.view().tracker
    assert desk.refusal(lambda: call(desk.allocator)).reason is reason
    assert desk.allocator.view().tracker == before


def test_when_the_last_allocate_ended_is_known_also_if_it_was_refused():
    desk = share_desk()
    assert desk.allocator.in_flight.now() == (0, float("-inf"))
    desk.allocator.allocate(MEM, unit_ids(0, SHARE, 0))
    assert desk.allocator.in_flight.now() == (0, desk.node.now)
    desk.node.now += 5
    desk.refusal(lambda: desk.allocator.allocate(MEM, ["nonsense"]))
    assert desk.allocator.in_flight.now() == (0, desk.node.now)
    assert desk.allocator.in_flight.wait_idle(0)


def test_an_allocate_under_way_is_not_idle():
    desk = share_desk()
    idle = []
    desk.isolation.prepare = lambda grant: (idle.append(desk.allocator.in_flight.wait_idle(0)), grant)[1]
    desk.allocator.allocate(MEM, unit_ids(0, SHARE, 0))
    assert idle == [False]


def test_an_allocate_asked_again_in_any_order_gives_the_same_answer():
    desk = share_desk()
    ids = sorted(unit_ids(0, SHARE, *range(6)))
    first = desk.allocator.allocate(MEM, ids)
    assert all(desk.allocator.allocate(MEM, random.sample(ids, 6)) == first for _ in range(10))


def test_an_allocate_asked_again_keeps_the_container_it_was_for():
    """Else the twin it is mistaken for counts as served, and its own label is not heard."""
    desk = share_desk(*box(2)).pods(
        pod_json("a", {MEM: 4}, created="1"), pod_json("b", {MEM: 4}, labels={COUNT: "2"}, created="2")
    )
    desk.serve(owner("a"), MEM, 4)
    desk.allocator.allocate(MEM, desk.book.holdings[0].ids)
    assert len({desk.snap.units[i] for i in desk.prefer(MEM, 4)}) == 2, "b asks for two GPUs"


def test_units_given_before_a_mode_switch_may_be_asked_for_again():
    desk = share_desk()
    desk.serve(owner("a"), MEM, 3)
    ids = desk.book.holdings[0].ids
    desk.node.label("topology").wait(3)
    desk.read_book()
    assert desk.node.ids(MEM) == set()
    assert desk.allocator.allocate(MEM, ids).kind is SHARE
    assert desk.allocator.allocate(MEM, sorted(ids)[:2]).units == 2, "an app container reuses its init container's"


def test_units_given_before_a_restart_of_the_agent_may_be_asked_for_again_at_once():
    """Kubelet's book is not read yet: then nothing was offered either, and the ids can only be old ones."""
    restarted = NodeWithKubelet(NodeUnderTest(Mode.SHARE).inventory(*box()))
    assert restarted.allocator.allocate(MEM, unit_ids(0, SHARE, 0, 1)).units == 2


def test_units_not_on_offer_and_never_given_are_refused():
    desk = share_desk()
    desk.node.label("topology").wait(3)
    desk.publish()
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, SHARE, 1)))
    assert refusal.reason is Reason.NOT_OFFERED
    assert "not advertised in mode topology" in refusal.message


def test_units_being_fenced_are_still_granted():
    desk = share_desk()
    desk.node.label("topology")
    desk.publish()
    assert desk.allocator.allocate(MEM, unit_ids(0, SHARE, 1)).units == 1


def test_a_share_that_spans_gpus_is_refused_unless_a_pod_asked_for_an_even_spread():
    desk = share_desk()
    ids = unit_ids(0, SHARE, 0, 1) | unit_ids(1, SHARE, 0, 1)
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, ids))
    assert refusal.reason is Reason.SPANS_GPUS
    assert "2 on GPU 0, 2 on GPU 1" in refusal.message
    desk.pods(pod_json("a", {MEM: 4}, labels={COUNT: "2"}))
    assert desk.allocator.allocate(MEM, ids).units == 2
    uneven = unit_ids(0, SHARE, 2, 3, 4) | unit_ids(1, SHARE, 2)
    assert desk.refusal(lambda: desk.allocator.allocate(MEM, uneven)).reason is Reason.SPANS_GPUS


def test_whole_gpus_are_granted_together():
    desk = NodeWithKubelet(in_force(Mode.TOPOLOGY, box(4))).pods(pod_json("a", {WHOLE: 2}))
    share = desk.serve(owner("a"), WHOLE, 2)
    assert len(share.gpus) == 2


def test_a_share_that_cannot_be_isolated_is_refused_and_not_remembered():
    desk = share_desk()
    desk.isolation.refuses_to_prepare = "the daemon is dead"
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, SHARE, 1)))
    assert (refusal.reason, refusal.message) == (Reason.ISOLATION, f"{MEM}: the daemon is dead")
    assert desk.allocator.view().tracker.recent.all == ()
    assert desk.allocator.in_flight.now()[0] == 0


def test_a_container_whose_layer_died_meanwhile_is_refused_with_the_cause():
    desk = NodeWithKubelet(in_force(Mode.CGPU, box(1)))
    dead = {name: replace(layer, problem="its daemon died") for name, layer in desk.node.state.isolation.layers.items()}
    desk.node.isolation(layers=dead)
    desk.publish()
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))
    assert refusal.reason is Reason.ISOLATION
    assert "its daemon died" in refusal.message
