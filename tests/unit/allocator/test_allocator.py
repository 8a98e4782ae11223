"""Kubelet's questions: preferred ids, Allocate, PreStartContainer."""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuagent.allocator.allocator import Allocator
from gpuagent.allocator.memory import MOST_GIVEN
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind, Mode
from tests.unit.allocator.desk import NodeWithKubelet
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    key,
    owner,
    pod_json,
    unit_ids,
    uuid,
)

COUNT = GPU_COUNT_LABEL
SHARE = Kind.MEMORY_SHARE


pytestmark = pytest.mark.usefixtures("impatient")


def share_desk(*gpus, **policy) -> NodeWithKubelet:
    return NodeWithKubelet(in_force(Mode.SHARE, gpus or None, **policy))


def pair_desk(*gpus, **policy) -> NodeWithKubelet:
    return NodeWithKubelet(in_force(Mode.CORE_MEM, gpus or None, **policy))


# -- before anything is known ----------------------------------------------------------------------------------


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


# -- Allocate --------------------------------------------------------------------------------------------------


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


# -- isolation -------------------------------------------------------------------------------------------------


def test_a_share_that_cannot_be_isolated_is_refused_and_not_remembered():
    desk = share_desk()
    desk.isolation.refuses_to_prepare = "the daemon is dead"
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, SHARE, 1)))
    assert (refusal.reason, refusal.message) == (Reason.ISOLATION, f"{MEM}: the daemon is dead")
    assert desk.allocator.view().tracker.recent.all == ()
    assert desk.allocator.in_flight.now()[0] == 0


def test_a_container_waits_while_its_isolation_is_not_ready():
    desk = share_desk().pods(pod_json("a", {MEM: 1}))
    desk.serve(owner("a"), MEM, 1)
    desk.isolation.refuses_to_verify = "not yet"
    ids = desk.book.holdings[0].ids
    assert desk.refusal(lambda: desk.allocator.prestart(MEM, ids)).reason is Reason.ISOLATION
    desk.isolation.refuses_to_verify = None
    assert desk.allocator.prestart(MEM, ids) == owner("a")
    assert desk.isolation.verified == [owner("a")]


# -- preferred ids ---------------------------------------------------------------------------------------------


def test_placement_is_the_nodes():
    desk = share_desk(gpu(0, 8), gpu(1, 16))
    assert desk.prefer(MEM, 4) == unit_ids(0, SHARE, 0, 1, 2, 3)
    desk.node.label("share", "spread")
    desk.publish()
    assert desk.prefer(MEM, 4) == unit_ids(1, SHARE, 0, 1, 2, 3)


def test_a_refusal_is_said_to_the_pod_it_is_for():
    desk = share_desk().pods(pod_json("big", {MEM: 20}))
    refusal = desk.refusal(lambda: desk.prefer(MEM, 20))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "ml/big[main] asks for 20 GiB" in refusal.message
    assert desk.said == [(PodName("ml", "big"), "GPURefused", refusal.message)]


def test_a_label_that_cannot_be_honoured_is_said_to_the_pod_too():
    desk = share_desk().pods(pod_json("a", {MEM: 3}, labels={COUNT: "2"}))
    refusal = desk.refusal(lambda: desk.prefer(MEM, 3))
    assert refusal.reason is Reason.GPU_COUNT
    assert desk.said == [(PodName("ml", "a"), "GPURefused", refusal.message)]


def test_the_next_pod_is_not_refused_for_the_label_of_a_pod_refused_just_before():
    """Kubelet asks once for each pod; our watch hears of the failed one later."""
    desk = share_desk().pods(
        pod_json("bad", {MEM: 3}, labels={COUNT: "2"}, created="1"), pod_json("good", {MEM: 3}, created="2")
    )
    desk.book.asking = "bad"
    desk.refusal(lambda: desk.prefer(MEM, 3))
    desk.book.asking = "good"
    assert len(desk.prefer(MEM, 3)) == 3


def test_a_spread_over_gpus_is_chosen_granted_and_even():
    desk = share_desk(*box(3)).pods(pod_json("a", {MEM: 6}, labels={COUNT: "3"}))
    share = desk.serve(owner("a"), MEM, 6)
    assert (share.units, len(share.gpus)) == (2, 3)


def test_a_leading_zero_in_the_label_means_the_same_to_both_calls():
    desk = share_desk().pods(pod_json("a", {MEM: 6}, labels={COUNT: "02"}))
    assert desk.serve(owner("a"), MEM, 6).units == 3


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
    desk = share_desk().pods(pod_json("a", {MEM: size}, labels={COUNT: label}))
    assert desk.refusal(lambda: desk.prefer(MEM, size)).reason is reason


def test_a_spread_in_core_mem_is_refused():
    for resource, size in ((MEM, 4), (CORE, 30)):
        desk = pair_desk().pods(pod_json("a", {MEM: 4, CORE: 30}, labels={COUNT: "2"}))
        assert desk.refusal(lambda desk=desk, r=resource, n=size: desk.prefer(r, n)).reason is Reason.GPU_COUNT


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


def test_no_gpu_takes_more_pods_than_allowed():
    desk = share_desk(gpu(0, 16), gpu(1, 80), max_pods_per_gpu=2)
    desk.pods(*(pod_json(name, {MEM: 1}, created=name) for name in "abcde"))
    for name in "abcd":
        desk.serve(owner(name), MEM, 1)
    assert [desk.on(owner(name), MEM) for name in "abcd"] == [{uuid(0)}] * 2 + [{uuid(1)}] * 2
    refusal = desk.refusal(lambda: desk.prefer(MEM, 1))
    assert refusal.reason is Reason.TOO_MANY_PODS
    desk.end("a")
    assert desk.prefer(MEM, 1) < unit_ids(0, SHARE, *range(16))


def test_a_pod_on_a_gpu_may_put_its_other_containers_there():
    desk = share_desk(gpu(0, 16), gpu(1, 80), max_pods_per_gpu=1).pods(pod_json("a", {MEM: 1}, {MEM: 2}))
    desk.serve(owner("a"), MEM, 1)
    desk.serve(owner("a", "main-1"), MEM, 2)
    assert desk.on(owner("a", "main-1"), MEM) == {uuid(0)}


def test_pods_that_ended_a_moment_ago_do_not_fill_a_gpu_in_core_mem():
    desk = pair_desk(*box(1), max_pods_per_gpu=2)
    desk.pods(*(pod_json(name, {MEM: 1, CORE: 1}, created=name) for name in "abc"))
    for name in "ab":
        desk.serve(owner(name), MEM, 1)
        desk.serve(owner(name), CORE, 1)
    desk.end("a", "b")
    desk.pods(pod_json("c", {MEM: 1, CORE: 1})).read_book()
    desk.node.now += 5
    assert len(desk.prefer(MEM, 1)) == 1


# -- init containers -------------------------------------------------------------------------------------------


def test_an_init_containers_units_are_reused_and_the_rest_comes_from_its_gpu():
    desk = share_desk(gpu(0, 8), gpu(1, 16), gpu(2, 16)).pods(pod_json("a", {MEM: 12}, init=({MEM: 4},)))
    desk.serve(owner("a", "init-0"), MEM, 4)
    assert desk.on(owner("a", "init-0"), MEM) == {uuid(1)}, "GPU 0 has no room for what comes after"
    reused = sorted(desk.book.holdings[0].ids)
    share = desk.serve(owner("a"), MEM, 12, must=reused)
    assert share.units == 12
    assert desk.on(owner("a"), MEM) == {uuid(1)}
    assert set(reused) <= desk.book.holdings[1].ids


def test_an_app_container_smaller_than_its_init_container_gets_part_of_its_units():
    desk = share_desk().pods(pod_json("a", {MEM: 2}, init=({MEM: 4},)))
    desk.serve(owner("a", "init-0"), MEM, 4)
    reused = sorted(desk.book.holdings[0].ids)[1:3]
    assert desk.serve(owner("a"), MEM, 2, must=reused).units == 2


def test_units_reused_unevenly_never_grant_more_than_was_paid_for_on_a_gpu():
    """Kubelet picks what an app container reuses of a spread init container at random."""
    desk = share_desk().pods(pod_json("a", {MEM: 4}, init=({MEM: 8},), labels={COUNT: "2"}))
    desk.serve(owner("a", "init-0"), MEM, 8)
    ids = unit_ids(0, SHARE, 0, 1, 2) | unit_ids(1, SHARE, 0)
    assert ids <= desk.book.holdings[0].ids
    try:
        share = desk.allocator.allocate(MEM, ids)
    except Refusal as refusal:
        assert refusal.reason is Reason.SPANS_GPUS
    else:
        assert share.units <= 1, "one unit on GPU 1"


def test_a_sidecar_and_an_app_container_get_units_of_their_own():
    desk = share_desk().pods(pod_json("a", {MEM: 2}, sidecar=({MEM: 2},)))
    desk.serve(owner("a", "side-0"), MEM, 2)
    desk.serve(owner("a"), MEM, 2)
    assert not desk.book.holdings[0].ids & desk.book.holdings[1].ids


def test_an_init_container_in_core_mem_keeps_the_pair_together():
    for order in ((MEM, CORE), (CORE, MEM)):
        desk = pair_desk(gpu(0, 8), gpu(1, 16)).pods(pod_json("a", {MEM: 10, CORE: 40}, init=({MEM: 2, CORE: 10},)))
        for resource in order:
            desk.serve(owner("a", "init-0"), resource, {MEM: 2, CORE: 10}[resource])
        reused = {h.resource: sorted(h.ids) for h in desk.book.holdings}
        for resource in reversed(order):
            desk.serve(owner("a"), resource, {MEM: 10, CORE: 40}[resource], must=reused[resource])
        assert desk.on(owner("a"), MEM) == desk.on(owner("a"), CORE) == {uuid(1)}


# -- pairs -----------------------------------------------------------------------------------------------------


def churn(desk: NodeWithKubelet, seed: int, count: int, sizes: Sequence[tuple[int, int]]) -> int:
    """Admit `count` containers one after the other, resources in random order; pods end in between."""
    dice = random.Random(seed)
    alive: dict[str, dict[str, int]] = {}
    served = 0
    for n in range(count):
        name = f"p{n:03}"
        limits = {resource: size for resource, size in zip((MEM, CORE), dice.choice(sizes), strict=True) if size}
        alive[name] = limits
        desk.pods(*(pod_json(other, asked, created=other) for other, asked in alive.items()))
        room = [{r: sum(desk.snap.units[i] == uuid(g) for i in desk.free(r)) for r in limits} for g in range(4)]
        try:
            for resource in dice.sample(list(limits), len(limits)):
                desk.serve(owner(name), resource, limits[resource])
        except Refusal as refusal:
            assert refusal.reason in {Reason.NOT_ENOUGH, Reason.NO_SINGLE_GPU}, refusal.message
            assert not any(all(free[r] >= limits[r] for r in limits) for free in room), f"{name}: {refusal.message}"
            desk.end(name)
            del alive[name]
        else:
            served += 1
            on = [desk.on(owner(name), resource) for resource in limits]
            assert all(len(gpus) == 1 for gpus in on)
            assert on[0] == on[-1], f"{name} is torn apart"
        while len(alive) > 6 or (alive and dice.random() < 0.2):
            gone = dice.choice(list(alive))
            desk.end(gone)
            del alive[gone]
        if dice.random() < 0.3:
            desk.read_book()
        desk.node.now += dice.choice((0.01, 0.5, 20))
    return served


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_memory_and_compute_of_200_containers_are_always_on_one_gpu(seed, placement):
    desk = pair_desk(*box(4))
    desk.node.label("core_mem", placement)
    assert churn(desk, seed, 200, [(1, 10), (4, 30), (4, 50), (8, 30), (16, 100)]) > 130


@pytest.mark.parametrize("seed", range(4))
def test_containers_that_ask_for_only_one_of_the_two_do_not_tear_pairs_apart(seed):
    assert churn(pair_desk(*box(4)), seed, 200, [(4, 30), (4, 0), (0, 30), (8, 30), (8, 0)]) > 130


@pytest.mark.parametrize("seed", range(4))
def test_pairs_stay_together_where_kubelet_does_not_tell_what_a_pod_holds(seed):
    """Before 1.34: only the order of kubelet's calls tells."""
    desk = pair_desk(*box(4))
    desk.book.tells_pods = False
    assert churn(desk, seed, 200, [(4, 30), (4, 0), (0, 30), (8, 30), (8, 0)]) > 130


def test_pairs_stay_together_without_an_api_server():
    desk = pair_desk(*box(4))
    for n in range(12):
        order = (MEM, CORE) if n % 2 else (CORE, MEM)
        for resource in order:
            desk.serve(owner(f"p{n}"), resource, {MEM: 4, CORE: 25}[resource])
        assert desk.on(owner(f"p{n}"), MEM) == desk.on(owner(f"p{n}"), CORE)


def test_a_pair_whose_pod_our_watch_does_not_show_yet_stays_together():
    desk = pair_desk(gpu(0, 8), gpu(1, 16)).pods(pod_json("other", {MEM: 7, CORE: 70}))
    desk.serve(owner("late"), MEM, 12)
    assert desk.on(owner("late"), MEM) == {uuid(1)}
    desk.serve(owner("late"), CORE, 30)
    assert desk.on(owner("late"), CORE) == {uuid(1)}


@pytest.mark.parametrize("tells_pods", [True, False])
def test_a_second_half_that_finds_no_room_is_refused_rather_than_put_elsewhere(tells_pods):
    desk = pair_desk(gpu(0, 8), gpu(1, 16)).pods(pod_json("a", {MEM: 4, CORE: 30}))
    desk.book.tells_pods = tells_pods
    desk.serve(owner("a"), CORE, 30)
    (on,) = desk.on(owner("a"), CORE)
    taken = [i for i in desk.free(MEM) if desk.snap.units[i] == on]
    desk.book.holdings.append(holding("unforeseen", taken))
    refusal = desk.refusal(lambda: desk.prefer(MEM, 4))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "with its other resource" in refusal.message


def test_where_a_call_goes_on_in_one_reading_and_begins_in_another_the_halves_stay_together():
    """Before 1.34. Memory of p3 can be taken for that of p1's main container; its compute then seems to begin p3."""
    desk = pair_desk(gpu(0, 8), gpu(1, 16))
    desk.node.label("core_mem", "spread")
    desk.pods(
        pod_json("p1", {MEM: 3}, init=({MEM: 1},), created="1"),
        pod_json("p2", {MEM: 1}, created="2"),
        pod_json("p3", {MEM: 3, CORE: 40}, created="3"),
    )
    desk.book.tells_pods = False
    desk.serve(owner("p2"), MEM, 1)
    desk.serve(owner("p3"), MEM, 3)
    desk.serve(owner("p3"), CORE, 40)
    assert desk.on(owner("p3"), MEM) == desk.on(owner("p3"), CORE) == {uuid(1)}


@pytest.mark.parametrize("tells_pods", [True, False])
@pytest.mark.parametrize("containers", [1, 2])
def test_units_reused_on_another_gpu_than_the_containers_other_resource_are_refused(containers, tells_pods):
    """Kubelet reuses an init container's units without asking which are preferred."""
    desk = pair_desk(gpu(0, 16), gpu(1, 16))
    desk.book.tells_pods = tells_pods
    desk.pods(
        pod_json("full", {CORE: 65}, created="1"),
        pod_json("a", *([{MEM: 1, CORE: 30}] * containers), init=({MEM: 4},), created="2"),
    )
    desk.serve(owner("full"), CORE, 65)
    init = unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3)
    desk.allocator.allocate(MEM, init)
    if containers == 2:
        desk.serve(owner("a"), CORE, 30)
        desk.serve(owner("a"), MEM, 1, must=sorted(init)[:1])
        assert desk.on(owner("a"), CORE) == {uuid(0)}
        last = owner("a", "main-1")
    else:
        desk.book.holdings.append(holding("full", unit_ids(0, Kind.CORE_CORE_MEM, *range(65, 95)), CORE))
        last = owner("a")
    refusal = desk.refusal(lambda: (desk.serve(last, CORE, 30), desk.serve(last, MEM, 1, must=sorted(init)[-1:])))
    assert refusal.reason in {Reason.PAIR_APART, Reason.NO_SINGLE_GPU}


def test_kubelets_book_settles_whether_two_calls_are_one_container():
    desk = pair_desk(gpu(0, 16), gpu(1, 16)).pods(
        pod_json("alone", {MEM: 4}, created="1"), pod_json("both", {MEM: 4, CORE: 30}, created="2")
    )
    desk.serve(owner("alone"), MEM, 4)
    # Compute of `both`; by size alone it could be the second half of what `alone` got.
    desk.serve(owner("both"), CORE, 30)
    desk.serve(owner("both"), MEM, 4)
    assert desk.on(owner("both"), MEM) == desk.on(owner("both"), CORE)


def test_unambiguous_calls_ask_kubelets_book_nothing():
    desk = pair_desk().pods(pod_json("a", {MEM: 4, CORE: 30}))
    desk.serve(owner("a"), MEM, 4)
    desk.serve(owner("a"), CORE, 30)
    assert (desk.book.looks, desk.book.reads) == (0, 0)


def test_the_first_half_of_a_pair_goes_where_the_second_finds_room():
    desk = pair_desk(gpu(0, 8), gpu(1, 16)).pods(
        pod_json("greedy", {MEM: 1, CORE: 90}, created="1"), pod_json("next", {MEM: 4, CORE: 30}, created="2")
    )
    desk.serve(owner("greedy"), MEM, 1)
    desk.serve(owner("greedy"), CORE, 90)
    assert desk.on(owner("greedy"), CORE) == {uuid(0)}
    desk.serve(owner("next"), MEM, 4)
    assert desk.on(owner("next"), MEM) == {uuid(1)}


def test_the_second_half_on_another_gpu_is_refused():
    desk = pair_desk().pods(pod_json("a", {MEM: 4, CORE: 30}))
    desk.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3))
    refusal = desk.refusal(lambda: desk.allocator.allocate(CORE, unit_ids(1, Kind.CORE_CORE_MEM, *range(30))))
    assert refusal.reason is Reason.PAIR_APART
    assert "kubelet picked GPU 1" in refusal.message
    assert "is on GPU 0" in refusal.message


def test_units_of_another_pod_are_answered_again_in_the_middle_of_an_admission():
    """Kubelet may ask again for what any pod has, also while a container has one of its two resources."""
    old, new = pod_json("old", {CORE: 30}), pod_json("new", {MEM: 4, CORE: 30})
    desk = pair_desk(core_mem_both=False).pods(old)
    ids = unit_ids(1, Kind.CORE_CORE_MEM, *range(30))
    first = desk.allocator.allocate(CORE, ids)
    desk.pods(old, new).allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3))
    assert desk.allocator.allocate(CORE, ids) == first


def test_after_a_refused_second_half_the_next_container_starts_afresh():
    desk = pair_desk(gpu(0, 16), gpu(1, 16)).pods(
        pod_json("a", {MEM: 4, CORE: 120}, created="1"), pod_json("b", {MEM: 4, CORE: 30}, created="2")
    )
    desk.serve(owner("a"), MEM, 4)
    desk.refusal(lambda: desk.prefer(CORE, 120))
    desk.end("a")
    for resource, size in ((CORE, 30), (MEM, 4)):
        desk.serve(owner("b"), resource, size)
    assert desk.on(owner("b"), MEM) == desk.on(owner("b"), CORE)


# -- PreStartContainer -----------------------------------------------------------------------------------------


def test_a_container_is_identified_from_the_book_as_last_read():
    desk = share_desk().pods(pod_json("a", {MEM: 1}))
    desk.serve(owner("a"), MEM, 1)
    desk.node.now += 1
    desk.read_book()
    assert desk.allocator.prestart(MEM, desk.book.holdings[0].ids) == owner("a")
    assert desk.book.reads == 0


def test_a_book_read_before_the_handout_does_not_identify():
    """The ids were another's then."""
    desk = share_desk(*box(1)).pods(pod_json("old", {MEM: 16}, created="1"), pod_json("new", {MEM: 16}, created="2"))
    desk.serve(owner("old"), MEM, 16)
    desk.node.now += 1
    desk.read_book()
    desk.end("old")
    desk.node.now += 1
    desk.pods(pod_json("new", {MEM: 16}))
    desk.serve(owner("new"), MEM, 16)
    assert desk.allocator.prestart(MEM, desk.book.holdings[0].ids) == owner("new")
    assert desk.book.reads == 1


def test_an_init_container_whose_units_are_reused_is_identified_by_its_pod():
    desk = share_desk().pods(pod_json("a", {MEM: 4}, init=({MEM: 2},)))
    ids = desk.prefer(MEM, 2)
    desk.allocator.allocate(MEM, ids)  # kubelet's book lists no ordinary init containers
    desk.serve(owner("a"), MEM, 4, must=ids)
    assert desk.allocator.prestart(MEM, ids) == ContainerRef(PodName("ml", "a"), "")


def test_a_container_that_kubelet_cannot_name_starts_all_the_same():
    desk = share_desk()
    desk.allocator.allocate(MEM, unit_ids(0, SHARE, 1))
    assert desk.allocator.prestart(MEM, unit_ids(0, SHARE, 1)) is None
    desk.book.readable = False
    assert desk.allocator.prestart(MEM, unit_ids(0, SHARE, 1)) is None
    assert desk.isolation.verified == [None, None]


@pytest.mark.parametrize(("resource", "device_id"), [(MEM, f"{uuid(0)}-_-7"), ("nvidia.com/gpu", uuid(0))])
def test_a_container_that_another_plugin_served_starts_again_without_ado(resource, device_id):
    desk = share_desk()
    desk.book.holdings = (holding("old", [device_id], resource),)
    assert desk.allocator.prestart(resource, [device_id]) == owner("old")
    assert desk.isolation.verified == []
    assert desk.refusal(lambda: desk.allocator.allocate(resource, [device_id])).reason is Reason.UNKNOWN_DEVICE


def test_identity_corrects_a_wrong_guess():
    desk = share_desk().pods(pod_json("a", {MEM: 2}, created="1"), pod_json("b", {MEM: 2}, created="2"))
    ids = desk.prefer(MEM, 2)
    desk.allocator.allocate(MEM, ids)
    desk.book.holdings.append(holding("b", ids))
    assert desk.allocator.prestart(MEM, ids) == owner("b")
    desk.node.now += 1
    desk.read_book()
    assert [one.owner for one in desk.allocator.view().tracker.recent.all] == [owner("b")]


def test_a_container_of_an_old_mode_may_start_again():
    desk = share_desk().pods(pod_json("a", {MEM: 1}))
    desk.serve(owner("a"), MEM, 1)
    desk.node.label("topology").wait(3)
    desk.read_book()
    assert desk.allocator.prestart(MEM, desk.book.holdings[0].ids) == owner("a")


# -- the rules of core_mem, and how many share a GPU -------------------------------------------------------------


def core_mem(*pods, **policy) -> NodeWithKubelet:
    return NodeWithKubelet(in_force(Mode.CORE_MEM, box(2), core_step=5, core_mem_both=True, **policy)).pods(*pods)


@pytest.mark.parametrize(
    ("percent", "advice"), [(12, "ask for 10 or 15"), (3, "ask for 5"), (101, "ask for 100 or 105")]
)
def test_compute_comes_in_steps(percent, advice):
    desk = core_mem(pod_json("a", {MEM: 4, CORE: percent}))
    refusal = desk.refusal(lambda: desk.prefer(CORE, percent))
    assert refusal.reason is Reason.CORE_STEP
    assert advice in refusal.message


def test_a_pod_asks_for_both_or_neither():
    desk = core_mem(pod_json("half", {MEM: 4}), pod_json("whole", {MEM: 6, CORE: 20}))
    refusal = desk.refusal(lambda: desk.prefer(MEM, 4))
    assert refusal.reason is Reason.CORE_MEM_BOTH
    assert "ml/half[main] asks for it and not for aliyun.com/gpu-core.percentage" in refusal.message
    assert len(desk.prefer(MEM, 6)) == 6


def test_memory_and_compute_in_two_containers_are_not_both():
    desk = core_mem(pod_json("two", {MEM: 4}, {CORE: 20}))
    assert desk.refusal(lambda: desk.prefer(MEM, 4)).reason is Reason.CORE_MEM_BOTH
    desk = core_mem(pod_json("other", {MEM: 4, CORE: 20}, {CORE: 25}))
    desk.serve(owner("other"), MEM, 4)
    desk.serve(owner("other"), CORE, 20)
    assert desk.refusal(lambda: desk.prefer(CORE, 25)).reason is Reason.CORE_MEM_BOTH


def test_a_start_is_verified_for_what_the_container_was_given():
    desk = NodeWithKubelet(in_force(Mode.CGPU, box(1))).pods(pod_json("p", {MEM: 1}))
    given, at = [], {"PLACE": "old"}
    desk.isolation.prepare = lambda grant: replace(grant, env={**grant.env, **at})
    desk.isolation.verify = lambda grant, owner: given.append(grant.env.get("PLACE"))
    desk.serve(owner("p"), MEM, 1)
    at["PLACE"] = "new"
    desk.allocator.prestart(MEM, desk.book.holdings[0].ids)
    assert given == ["old"]


def test_a_pod_of_equal_size_that_may_is_not_refused_for_one_that_may_not():
    desk = core_mem(pod_json("half", {MEM: 4}), pod_json("whole", {MEM: 4, CORE: 20}))
    assert len(desk.prefer(MEM, 4)) == 4


def test_a_kubelet_that_asks_for_no_preference_is_held_to_the_rules_too():
    desk = core_mem(pod_json("half", {MEM: 4}))
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3)))
    assert refusal.reason is Reason.CORE_MEM_BOTH
    refusal = desk.refusal(lambda: desk.allocator.allocate(CORE, unit_ids(0, Kind.CORE_CORE_MEM, 0)))
    assert refusal.reason is Reason.CORE_STEP


def layered(node: NodeUnderTest, most: int) -> NodeWithKubelet:
    layers = {name: replace(layer, max_sharers=most) for name, layer in node.state.isolation.layers.items()}
    return NodeWithKubelet(node.isolation(layers=layers))


def test_the_layers_limit_counts_containers_by_choice_and_by_refusal():
    desk = layered(in_force(Mode.CGPU, box(2)), 2)
    pod = pod_json("p", {MEM: 1}, {MEM: 1}, {MEM: 1})
    desk.pods(pod)
    for container in ("main", "main-1", "main-2"):
        desk.serve(owner("p", container), MEM, 1)
    assert sorted(len({i for h in desk.book.holdings for i in h.ids if i.startswith(key(n))}) for n in range(2)) == [
        1,
        2,
    ]
    full = next(n for n in range(2) if sum(i.startswith(key(n)) for h in desk.book.holdings for i in h.ids) == 2)
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(full, Kind.MEMORY_CGPU, 9)))
    assert refusal.reason is Reason.TOO_MANY_PODS
    assert "20 pods or 2 containers" in refusal.message


def test_a_container_whose_layer_died_meanwhile_is_refused_with_the_cause():
    desk = NodeWithKubelet(in_force(Mode.CGPU, box(1)))
    dead = {name: replace(layer, problem="its daemon died") for name, layer in desk.node.state.isolation.layers.items()}
    desk.node.isolation(layers=dead)
    desk.publish()
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))
    assert refusal.reason is Reason.ISOLATION
    assert "its daemon died" in refusal.message


def test_grants_are_remembered_to_a_bound():
    """A node that lives long grants without end. A stored grant is verified with what isolation added to it."""
    desk = share_desk(*box(4, MOST_GIVEN))
    verified: list[bool] = []
    desk.isolation.prepare = lambda grant: replace(grant, env={**grant.env, "PREPARED": "yes"})
    desk.isolation.verify = lambda grant, _owner: verified.append("PREPARED" in grant.env)
    units = [frozenset(unit_ids(n % 4, SHARE, n // 4)) for n in range(MOST_GIVEN + 10)]
    for ids in units:
        desk.allocator.allocate(MEM, ids)
        desk.node.now += 60
    desk.read_book()
    for ids in units:
        desk.allocator.prestart(MEM, ids)
    kept = [n for n, stored in enumerate(verified) if stored]
    assert len(verified) == len(units)
    assert kept == list(range(10, MOST_GIVEN + 10)), "the newest"


# -- the cost of a pod -------------------------------------------------------------------------------------------


def calls_of(work) -> int:
    """How many Python functions are called: the same on every machine."""
    count = 0

    def counting(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("read", [False, True], ids=["", "book read"])
@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.CORE_MEM])
def test_a_container_costs_as_many_calls_whether_it_is_the_first_of_its_pod_or_one_of_hundreds(mode, read):
    desk = NodeWithKubelet(in_force(mode, box(4, 80), core_mem_both=True, core_step=1))
    limits = {MEM: 1} if mode is Mode.SHARE else {MEM: 1, CORE: 1}
    desk.pods(pod_json("a", *[limits] * 320))
    free = {resource: set(desk.node.ids(resource)) for resource in limits}
    containers = ["main", *(f"main-{n}" for n in range(1, 320))]
    starts = []

    def admit(some) -> None:
        for name in some:
            for resource in limits:
                ids = frozenset(desk.allocator.prefer(resource, free[resource], [], 1))
                desk.allocator.allocate(resource, ids)
                free[resource] -= ids
                starts.append((resource, ids))
                desk.book.holdings.append(holding("a", ids, resource, name))

    admit(containers[:10])
    few = calls_of(lambda: admit(containers[10:20]))
    admit(containers[20:150])
    if read:
        desk.node.now += 1
        desk.read_book()
    admit(containers[150:300])
    many = calls_of(lambda: admit(containers[300:310]))
    assert many < 1.2 * few + 100
    desk.node.now += 1
    desk.read_book()
    desk.allocator.prestart(*starts[0])
    first, last = (calls_of(lambda n=n: desk.allocator.prestart(*starts[n])) for n in (1, -1))
    assert last < 1.2 * first + 100
