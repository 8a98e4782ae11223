"""Mode core_mem: memory and compute of a container come from one GPU, in the steps and pairs that are allowed."""

import random
from collections.abc import Sequence

import pytest

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.desk import NodeWithKubelet, pair_desk
from tests.unit.domain.builders import (
    CORE,
    MEM,
    box,
    gpu,
    holding,
    in_force,
    owner,
    pod_json,
    unit_ids,
    uuid,
)

pytestmark = pytest.mark.usefixtures("impatient")


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


def test_a_pod_of_equal_size_that_may_is_not_refused_for_one_that_may_not():
    desk = core_mem(pod_json("half", {MEM: 4}), pod_json("whole", {MEM: 4, CORE: 20}))
    assert len(desk.prefer(MEM, 4)) == 4


def test_a_kubelet_that_asks_for_no_preference_is_held_to_the_rules_too():
    desk = core_mem(pod_json("half", {MEM: 4}))
    refusal = desk.refusal(lambda: desk.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3)))
    assert refusal.reason is Reason.CORE_MEM_BOTH
    refusal = desk.refusal(lambda: desk.allocator.allocate(CORE, unit_ids(0, Kind.CORE_CORE_MEM, 0)))
    assert refusal.reason is Reason.CORE_STEP
