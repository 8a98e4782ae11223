"""Allocate: which ids it grants, with isolation, and what it refuses."""

import random
from dataclasses import replace

import pytest

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind, Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet, check_cached, kubelet_in_core_mem, kubelet_in_share
from tests.unit.domain.builders import (
    CORE,
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
from tests.unit.domain.dra.test_resource_slice import claim

COUNT = GPU_COUNT_LABEL
SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def test_an_agent_that_is_starting_refuses_and_says_so():
    kubelet = kubelet_in_share()
    fresh = Allocator(
        clock=lambda: 0.0,
        kubelet=kubelet.allocations,
        isolation=kubelet.isolation,
        strategy=DeviceStrategy.CDI,
        send_event=lambda _: None,
    )
    for call in (
        lambda: fresh.allocate(MEM, ["x"]),
        lambda: fresh.prefer(MEM, ["x"], [], 1),
        lambda: fresh.prestart(MEM, ["x"]),
    ):
        assert kubelet.refusal(call).reason is Reason.NOT_READY


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
    kubelet = kubelet_in_share()
    before = kubelet.allocator.occupancy().tracker
    assert kubelet.refusal(lambda: call(kubelet.allocator)).reason is reason
    assert kubelet.allocator.occupancy().tracker == before


def test_what_is_allocated_again_stays_with_its_pod_and_is_no_more_certain():
    kubelet = kubelet_in_share()
    kubelet.pods(pod_json("a", {MEM: 1}), pod_json("b", {MEM: 1}, created="2026-01-01T00:00:01Z"))
    kubelet.serve(owner("a"), MEM, 1)
    (given,) = kubelet.allocations.holdings
    kubelet.allocator.allocate(MEM, given.ids)
    (again,) = kubelet.allocator.occupancy().tracker.recent
    assert (again.ids, again.owner, again.pod_uid, again.certain) == (given.ids, owner("a"), "uid-a", False)


def test_a_refused_allocate_ends_the_admission_as_kubelet_rejects_the_pod():
    kubelet = kubelet_in_core_mem()
    kubelet.pods(pod_json("a", {MEM: 4, CORE: 30}))
    kubelet.serve(owner("a"), MEM, 4)
    assert kubelet.allocator.occupancy().tracker.admission
    gone = [device_id.replace(key(0), "gone234567") for device_id in unit_ids(0, Kind.CORE_CORE_MEM, *range(30))]
    assert kubelet.refusal(lambda: kubelet.allocator.allocate(CORE, gone)).reason is Reason.UNKNOWN_DEVICE
    assert not kubelet.allocator.occupancy().tracker.admission


@pytest.mark.parametrize("asked", [True, False])
def test_a_gpu_that_a_claim_holds_by_now_is_not_given(asked):
    """The list was sent to kubelet a moment before. What a container has already, it is given again."""
    kubelet = kubelet_in_share(*box(2))
    ids = unit_ids(0, SHARE, 0)
    kubelet.allocator.allocate(MEM, ids)
    late = unit_ids(0, SHARE, 1)
    if asked:
        assert kubelet.allocator.prefer(MEM, late, [], 1) == tuple(late)
    kubelet.node.send(ev.ClaimsPrepared((claim(kubelet.node, 1024),), kubelet.node.now))
    kubelet.publish()
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, late))
    assert refusal.reason is Reason.STILL_HELD
    kubelet.allocator.allocate(MEM, ids)
    kubelet.allocator.allocate(MEM, unit_ids(1, SHARE, 1))


def test_when_the_last_allocate_ended_is_known_also_if_it_was_refused():
    kubelet = kubelet_in_share()
    assert kubelet.allocator.in_flight.now() == (0, float("-inf"))
    kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 0))
    assert kubelet.allocator.in_flight.now() == (0, kubelet.node.now)
    kubelet.node.now += 5
    kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, ["nonsense"]))
    assert kubelet.allocator.in_flight.now() == (0, kubelet.node.now)
    assert kubelet.allocator.in_flight.wait_idle(0)


def test_an_allocate_under_way_is_not_idle():
    kubelet = kubelet_in_share()
    idle = []
    kubelet.isolation.prepare = lambda grant: (idle.append(kubelet.allocator.in_flight.wait_idle(0)), grant)[1]
    kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 0))
    assert idle == [False]


def test_an_allocate_asked_again_in_any_order_gives_the_same_answer():
    kubelet = kubelet_in_share()
    ids = sorted(unit_ids(0, SHARE, *range(6)))
    first = kubelet.allocator.allocate(MEM, ids)
    assert all(kubelet.allocator.allocate(MEM, random.sample(ids, 6)) == first for _ in range(10))


def test_an_allocate_asked_again_keeps_the_container_it_was_for():
    """Else the twin it is mistaken for counts as served, and its own label is not heard."""
    kubelet = kubelet_in_share(*box(2)).pods(
        pod_json("a", {MEM: 4}, created="1"), pod_json("b", {MEM: 4}, labels={COUNT: "2"}, created="2")
    )
    kubelet.serve(owner("a"), MEM, 4)
    kubelet.allocator.allocate(MEM, kubelet.allocations.holdings[0].ids)
    assert len({kubelet.snap.units[i] for i in kubelet.prefer(MEM, 4)}) == 2, "b asks for two GPUs"


def test_units_allocated_to_a_deleted_pod_count_as_free():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 10}))
    kubelet.allocations.admitting = "a"
    ids = kubelet.prefer(MEM, 10)
    kubelet.pods()
    kubelet.allocator.allocate(MEM, ids)
    check_cached(kubelet.allocator)
    assert not kubelet.allocator.occupancy().allocations


def test_units_given_before_a_mode_switch_may_be_asked_for_again():
    kubelet = kubelet_in_share()
    kubelet.serve(owner("a"), MEM, 3)
    ids = kubelet.allocations.holdings[0].ids
    kubelet.node.label("topology").wait(3)
    kubelet.read_allocations()
    assert kubelet.node.ids(MEM) == set()
    assert kubelet.allocator.allocate(MEM, ids).kind is SHARE
    assert kubelet.allocator.allocate(MEM, sorted(ids)[:2]).units == 2, "an app container reuses its init container's"


def test_units_given_before_a_restart_of_the_agent_may_be_asked_for_again_at_once():
    """Kubelet's allocations are not read yet: then nothing was offered either, and the ids can only be old ones."""
    restarted = FakeKubelet(NodeUnderTest(Mode.SHARE).inventory(*box()))
    assert restarted.allocator.allocate(MEM, unit_ids(0, SHARE, 0, 1)).units == 2


def test_units_not_on_offer_and_never_given_are_refused():
    kubelet = kubelet_in_share()
    kubelet.node.label("topology").wait(3)
    kubelet.publish()
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 1)))
    assert refusal.reason is Reason.NOT_OFFERED
    assert "not advertised in mode topology" in refusal.message


def test_units_being_fenced_are_still_granted():
    kubelet = kubelet_in_share()
    kubelet.node.label("topology")
    kubelet.publish()
    assert kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 1)).units == 1


def test_a_share_that_spans_gpus_is_refused_unless_a_pod_asked_for_an_even_spread():
    kubelet = kubelet_in_share()
    ids = unit_ids(0, SHARE, 0, 1) | unit_ids(1, SHARE, 0, 1)
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, ids))
    assert refusal.reason is Reason.SPANS_GPUS
    assert "2 on GPU 0, 2 on GPU 1" in refusal.message
    kubelet.pods(pod_json("a", {MEM: 4}, labels={COUNT: "2"}))
    assert kubelet.allocator.allocate(MEM, ids).units == 2
    uneven = unit_ids(0, SHARE, 2, 3, 4) | unit_ids(1, SHARE, 2)
    assert kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, uneven)).reason is Reason.SPANS_GPUS


def test_whole_gpus_are_granted_together():
    kubelet = FakeKubelet(in_force(Mode.TOPOLOGY, box(4))).pods(pod_json("a", {WHOLE: 2}))
    share = kubelet.serve(owner("a"), WHOLE, 2)
    assert len(share.gpus) == 2


def test_a_share_that_cannot_be_isolated_is_refused_and_not_remembered():
    kubelet = kubelet_in_share()
    kubelet.isolation.refuses_to_prepare = "the daemon is dead"
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 1)))
    assert (refusal.reason, refusal.message) == (Reason.ISOLATION, f"{MEM}: the daemon is dead")
    assert kubelet.allocator.occupancy().tracker.recent == ()
    assert kubelet.allocator.in_flight.now()[0] == 0


def test_a_container_whose_layer_died_meanwhile_is_refused_with_the_cause():
    kubelet = FakeKubelet(in_force(Mode.CGPU, box(1)))
    dead = {
        name: replace(layer, problem="its daemon died") for name, layer in kubelet.node.state.isolation.layers.items()
    }
    kubelet.node.isolation(layers=dead)
    kubelet.publish()
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))
    assert refusal.reason is Reason.ISOLATION
    assert "its daemon died" in refusal.message


def test_an_allocation_is_known_until_kubelets_list_was_read_after_it():
    """Kubelet's pod-resources API is silent for minutes, and the mode changes meanwhile."""
    kubelet = kubelet_in_share(*box(2)).pods(pod_json("a", {MEM: 4}))
    given = kubelet.prefer(MEM, 4)
    share = kubelet.allocator.allocate(MEM, given)
    kubelet.node.label("topology").wait(200)
    kubelet.publish()
    assert kubelet.allocator.allocate(MEM, given).env == share.env
    kubelet.pods()
    assert "not advertised" in kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, given)).message


def test_repeated_allocates_for_one_container_add_no_entries():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 4}))
    kubelet.serve(owner("a"), MEM, 4)
    for _ in range(10):
        kubelet.allocator.allocate(MEM, kubelet.allocations.holdings[0].ids)
    tracker = kubelet.allocator.occupancy().tracker
    assert (len(tracker.recent), len(tracker.admission)) == (1, 1)
