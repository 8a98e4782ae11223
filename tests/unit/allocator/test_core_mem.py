"""Mode core_mem: memory and compute of a container come from one GPU, in the steps and pairs that are allowed."""

import random
from collections.abc import Sequence

import pytest

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet, kubelet_in_core_mem
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


def churn(kubelet: FakeKubelet, seed: int, count: int, sizes: Sequence[tuple[int, int]]) -> int:
    """Admit `count` containers one after the other, resources in random order; pods end in between."""
    dice = random.Random(seed)
    alive: dict[str, dict[str, int]] = {}
    served = 0
    for n in range(count):
        name = f"p{n:03}"
        limits = {resource: size for resource, size in zip((MEM, CORE), dice.choice(sizes), strict=True) if size}
        alive[name] = limits
        kubelet.pods(*(pod_json(other, asked, created=other) for other, asked in alive.items()))
        room = [{r: sum(kubelet.snap.units[i] == uuid(g) for i in kubelet.free(r)) for r in limits} for g in range(4)]
        try:
            for resource in dice.sample(list(limits), len(limits)):
                kubelet.serve(owner(name), resource, limits[resource])
        except Refusal as refusal:
            assert refusal.reason in {Reason.NOT_ENOUGH, Reason.NO_SINGLE_GPU}, refusal.message
            assert not any(all(free[r] >= limits[r] for r in limits) for free in room), f"{name}: {refusal.message}"
            kubelet.end(name)
            del alive[name]
        else:
            served += 1
            on = [kubelet.on(owner(name), resource) for resource in limits]
            assert all(len(gpus) == 1 for gpus in on)
            assert on[0] == on[-1], f"{name} is torn apart"
        while len(alive) > 6 or (alive and dice.random() < 0.2):
            gone = dice.choice(list(alive))
            kubelet.end(gone)
            del alive[gone]
        if dice.random() < 0.3:
            kubelet.read_allocations()
        kubelet.node.now += dice.choice((0.01, 0.5, 20))
    return served


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_memory_and_compute_of_200_containers_are_always_on_one_gpu(seed, placement):
    kubelet = kubelet_in_core_mem(*box(4))
    kubelet.node.label("core_mem", placement)
    assert churn(kubelet, seed, 200, [(1, 10), (4, 30), (4, 50), (8, 30), (16, 100)]) > 130


@pytest.mark.parametrize("seed", range(4))
def test_containers_that_ask_for_only_one_of_the_two_do_not_tear_pairs_apart(seed):
    assert churn(kubelet_in_core_mem(*box(4)), seed, 200, [(4, 30), (4, 0), (0, 30), (8, 30), (8, 0)]) > 130


@pytest.mark.parametrize("seed", range(4))
def test_pairs_stay_together_where_kubelet_does_not_report_what_a_pod_holds(seed):
    """Before 1.34: only the order of kubelet's calls tells."""
    kubelet = kubelet_in_core_mem(*box(4))
    kubelet.allocations.answers_queries = False
    assert churn(kubelet, seed, 200, [(4, 30), (4, 0), (0, 30), (8, 30), (8, 0)]) > 130


def test_pairs_stay_together_without_an_api_server():
    kubelet = kubelet_in_core_mem(*box(4))
    for n in range(12):
        order = (MEM, CORE) if n % 2 else (CORE, MEM)
        for resource in order:
            kubelet.serve(owner(f"p{n}"), resource, {MEM: 4, CORE: 25}[resource])
        assert kubelet.on(owner(f"p{n}"), MEM) == kubelet.on(owner(f"p{n}"), CORE)


def test_a_pair_whose_pod_our_watch_does_not_show_yet_stays_together():
    kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16)).pods(pod_json("other", {MEM: 7, CORE: 70}))
    kubelet.serve(owner("late"), MEM, 12)
    assert kubelet.on(owner("late"), MEM) == {uuid(1)}
    kubelet.serve(owner("late"), CORE, 30)
    assert kubelet.on(owner("late"), CORE) == {uuid(1)}


@pytest.mark.parametrize("answers_queries", [True, False])
def test_a_second_half_that_finds_no_room_is_refused_rather_than_put_elsewhere(answers_queries):
    kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16)).pods(pod_json("a", {MEM: 4, CORE: 30}))
    kubelet.allocations.answers_queries = answers_queries
    kubelet.serve(owner("a"), CORE, 30)
    (on,) = kubelet.on(owner("a"), CORE)
    taken = [i for i in kubelet.free(MEM) if kubelet.snap.units[i] == on]
    kubelet.allocations.holdings.append(holding("unforeseen", taken))
    refusal = kubelet.refusal(lambda: kubelet.prefer(MEM, 4))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "with its other resource" in refusal.message


def test_where_a_call_goes_on_in_one_reading_and_begins_in_another_the_halves_stay_together():
    """Before 1.34. Memory of p3 can be taken for that of p1's main container; its compute then seems to begin p3."""
    kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16))
    kubelet.node.label("core_mem", "spread")
    kubelet.pods(
        pod_json("p1", {MEM: 3}, init=({MEM: 1},), created="1"),
        pod_json("p2", {MEM: 1}, created="2"),
        pod_json("p3", {MEM: 3, CORE: 40}, created="3"),
    )
    kubelet.allocations.answers_queries = False
    kubelet.serve(owner("p2"), MEM, 1)
    kubelet.serve(owner("p3"), MEM, 3)
    kubelet.serve(owner("p3"), CORE, 40)
    assert kubelet.on(owner("p3"), MEM) == kubelet.on(owner("p3"), CORE) == {uuid(1)}


@pytest.mark.parametrize("answers_queries", [True, False])
@pytest.mark.parametrize("containers", [1, 2])
def test_units_reused_on_another_gpu_than_the_containers_other_resource_are_refused(containers, answers_queries):
    """Kubelet reuses an init container's units without asking which are preferred."""
    kubelet = kubelet_in_core_mem(gpu(0, 16), gpu(1, 16))
    kubelet.allocations.answers_queries = answers_queries
    kubelet.pods(
        pod_json("full", {CORE: 65}, created="1"),
        pod_json("a", *([{MEM: 1, CORE: 30}] * containers), init=({MEM: 4},), created="2"),
    )
    kubelet.serve(owner("full"), CORE, 65)
    init = unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3)
    kubelet.allocator.allocate(MEM, init)
    if containers == 2:
        kubelet.serve(owner("a"), CORE, 30)
        kubelet.serve(owner("a"), MEM, 1, must=sorted(init)[:1])
        assert kubelet.on(owner("a"), CORE) == {uuid(0)}
        last = owner("a", "main-1")
    else:
        kubelet.allocations.holdings.append(holding("full", unit_ids(0, Kind.CORE_CORE_MEM, *range(65, 95)), CORE))
        last = owner("a")
    refusal = kubelet.refusal(
        lambda: (kubelet.serve(last, CORE, 30), kubelet.serve(last, MEM, 1, must=sorted(init)[-1:]))
    )
    assert refusal.reason in {Reason.PAIR_APART, Reason.NO_SINGLE_GPU}


def test_kubelets_allocations_settle_whether_two_calls_are_one_container():
    kubelet = kubelet_in_core_mem(gpu(0, 16), gpu(1, 16)).pods(
        pod_json("alone", {MEM: 4}, created="1"), pod_json("both", {MEM: 4, CORE: 30}, created="2")
    )
    kubelet.serve(owner("alone"), MEM, 4)
    # Compute of `both`; by size alone it could be the second half of what `alone` got.
    kubelet.serve(owner("both"), CORE, 30)
    kubelet.serve(owner("both"), MEM, 4)
    assert kubelet.on(owner("both"), MEM) == kubelet.on(owner("both"), CORE)


def test_unambiguous_calls_query_kubelet_for_nothing():
    kubelet = kubelet_in_core_mem().pods(pod_json("a", {MEM: 4, CORE: 30}))
    kubelet.serve(owner("a"), MEM, 4)
    kubelet.serve(owner("a"), CORE, 30)
    assert (kubelet.allocations.queries, kubelet.allocations.reads) == (0, 0)


def test_the_first_half_of_a_pair_goes_where_the_second_finds_room():
    kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16)).pods(
        pod_json("greedy", {MEM: 1, CORE: 90}, created="1"), pod_json("next", {MEM: 4, CORE: 30}, created="2")
    )
    kubelet.serve(owner("greedy"), MEM, 1)
    kubelet.serve(owner("greedy"), CORE, 90)
    assert kubelet.on(owner("greedy"), CORE) == {uuid(0)}
    kubelet.serve(owner("next"), MEM, 4)
    assert kubelet.on(owner("next"), MEM) == {uuid(1)}


def test_what_a_later_container_needs_keeps_no_container_from_a_gpu():
    kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16)).pods(
        pod_json("first", {MEM: 1, CORE: 50}, created="1"),
        pod_json("next", {MEM: 1, CORE: 20}, {MEM: 1, CORE: 80}, created="2"),
    )
    for owned, percent in ((owner("first"), 50), (owner("next"), 20), (owner("next", "main-1"), 80)):
        kubelet.serve(owned, MEM, 1)
        kubelet.serve(owned, CORE, percent)
    assert kubelet.on(owner("next"), MEM) == kubelet.on(owner("first"), MEM) == {uuid(0)}
    assert kubelet.on(owner("next", "main-1"), MEM) == {uuid(1)}


def test_the_second_half_on_another_gpu_is_refused():
    kubelet = kubelet_in_core_mem().pods(pod_json("a", {MEM: 4, CORE: 30}))
    kubelet.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3))
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(CORE, unit_ids(1, Kind.CORE_CORE_MEM, *range(30))))
    assert refusal.reason is Reason.PAIR_APART
    assert "kubelet picked GPU 1" in refusal.message
    assert "is on GPU 0" in refusal.message


def test_units_of_another_pod_are_answered_again_in_the_middle_of_an_admission():
    """Kubelet may ask again for what any pod has, also while a container has one of its two resources."""
    old, new = pod_json("old", {CORE: 30}), pod_json("new", {MEM: 4, CORE: 30})
    kubelet = kubelet_in_core_mem(core_mem_both=False).pods(old)
    ids = unit_ids(1, Kind.CORE_CORE_MEM, *range(30))
    first = kubelet.allocator.allocate(CORE, ids)
    kubelet.pods(old, new).allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3))
    assert kubelet.allocator.allocate(CORE, ids) == first


def test_after_a_refused_second_half_the_next_container_starts_afresh():
    kubelet = kubelet_in_core_mem(gpu(0, 16), gpu(1, 16)).pods(
        pod_json("a", {MEM: 4, CORE: 120}, created="1"), pod_json("b", {MEM: 4, CORE: 30}, created="2")
    )
    kubelet.serve(owner("a"), MEM, 4)
    kubelet.refusal(lambda: kubelet.prefer(CORE, 120))
    kubelet.end("a")
    for resource, size in ((CORE, 30), (MEM, 4)):
        kubelet.serve(owner("b"), resource, size)
    assert kubelet.on(owner("b"), MEM) == kubelet.on(owner("b"), CORE)


def core_mem(*pods, **policy) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.CORE_MEM, box(2), core_step=5, core_mem_both=True, **policy)).pods(*pods)


@pytest.mark.parametrize(
    ("percent", "advice"), [(12, "ask for 10 or 15"), (3, "ask for 5"), (101, "ask for 100 or 105")]
)
def test_compute_comes_in_steps(percent, advice):
    kubelet = core_mem(pod_json("a", {MEM: 4, CORE: percent}))
    refusal = kubelet.refusal(lambda: kubelet.prefer(CORE, percent))
    assert refusal.reason is Reason.CORE_STEP
    assert advice in refusal.message


def test_a_pod_asks_for_both_or_neither():
    kubelet = core_mem(pod_json("half", {MEM: 4}), pod_json("whole", {MEM: 6, CORE: 20}))
    refusal = kubelet.refusal(lambda: kubelet.prefer(MEM, 4))
    assert refusal.reason is Reason.CORE_MEM_BOTH
    assert "ml/half[main] asks for it and not for aliyun.com/gpu-core.percentage" in refusal.message
    assert len(kubelet.prefer(MEM, 6)) == 6


def test_memory_and_compute_in_two_containers_are_not_both():
    kubelet = core_mem(pod_json("two", {MEM: 4}, {CORE: 20}))
    assert kubelet.refusal(lambda: kubelet.prefer(MEM, 4)).reason is Reason.CORE_MEM_BOTH
    kubelet = core_mem(pod_json("other", {MEM: 4, CORE: 20}, {CORE: 25}))
    kubelet.serve(owner("other"), MEM, 4)
    kubelet.serve(owner("other"), CORE, 20)
    assert kubelet.refusal(lambda: kubelet.prefer(CORE, 25)).reason is Reason.CORE_MEM_BOTH


def test_a_pod_of_equal_size_that_may_is_not_refused_for_one_that_may_not():
    kubelet = core_mem(pod_json("half", {MEM: 4}), pod_json("whole", {MEM: 4, CORE: 20}))
    assert len(kubelet.prefer(MEM, 4)) == 4


def test_a_kubelet_that_asks_for_no_preference_is_held_to_the_rules_too():
    kubelet = core_mem(pod_json("half", {MEM: 4}))
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3)))
    assert refusal.reason is Reason.CORE_MEM_BOTH
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(CORE, unit_ids(0, Kind.CORE_CORE_MEM, 0)))
    assert refusal.reason is Reason.CORE_STEP


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "picked"])
def test_a_mode_switch_during_an_admission_keeps_both_resources_on_one_gpu(asked):
    """The new mode has one of the resources; kubelet still reports the GPU of the other."""
    kubelet = kubelet_in_core_mem(*box(2)).pods(pod_json("a", {CORE: 20, MEM: 4}))
    kubelet.serve(owner("a"), CORE, 20)
    (has,) = kubelet.on(owner("a"), CORE)
    elsewhere = [i for i in kubelet.free(MEM) if kubelet.snap.units[i] != has]
    kubelet.node.label("share")
    kubelet.publish()
    if asked:
        refusal = kubelet.refusal(lambda: kubelet.allocator.prefer(MEM, elsewhere, [], 4))
        assert refusal.reason is Reason.NO_SINGLE_GPU
    else:
        refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, elsewhere[:4]))
        assert refusal.reason is Reason.PAIR_APART
