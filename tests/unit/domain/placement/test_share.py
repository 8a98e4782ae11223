"""Which GPUs a share gets: contract checks, and equality with a plain search over everything."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuagent.domain.placement.share import Preferences, ShareRequest, choose_share
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Placement
from tests.unit.domain.builders import MEM, uuid

BOTH = st.sampled_from(Placement)


def request(free: list[int], size: int, **more) -> ShareRequest:
    """`free[n]` units of GPU n are free."""
    units = {uuid(n): count for n, count in enumerate(free) if count}
    preferences = Preferences(**{name: more.pop(name) for name in Preferences.__slots__ if name in more})
    order = {uuid(n): n for n in range(len(free))}
    return ShareRequest(resource=MEM, size=size, free=units, order=order, unit="GiB", preferences=preferences, **more)


def chosen(asked: ShareRequest) -> list[int]:
    """Indexes of the GPUs."""
    return sorted(asked.order[gpu] for gpu in choose_share(asked))


def refused(asked: ShareRequest) -> Refusal:
    with pytest.raises(Refusal) as caught:
        choose_share(asked)
    return caught.value


def test_units_that_kubelet_has_fixed_on_another_gpu_than_the_only_one_are_refused_with_that_reason():
    asked = request([10, 10], 4, only=(uuid(1),), must_include={uuid(0): 1})
    assert "has to be on GPU 1" in refused(asked).message


# -- the contract's checks -------------------------------------------------------------------------------------


def test_binpack_takes_the_gpu_that_fits_best():
    assert chosen(request([15, 6, 0, 4], 4)) == [3]


def test_spread_takes_the_emptiest_gpu():
    assert chosen(request([15, 6, 0, 4], 4, placement=Placement.SPREAD)) == [0]


def test_what_must_be_included_is_and_the_rest_comes_from_the_same_gpu():
    for placement in Placement:
        assert chosen(request([15, 6, 0, 4], 5, must_include={uuid(1): 2}, placement=placement)) == [1]


def test_enough_in_total_but_on_no_single_gpu_is_refused_with_a_way_out():
    refusal = refused(request([3, 3, 0, 2], 4, requester="ml/a[main]"))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    for part in (MEM, "ml/a[main]", "4 GiB", "8 free", "GPU 0: 3", "GPU 3: 2", "Ask for 3 or less", GPU_COUNT_LABEL):
        assert part in refusal.message


# -- other choices ---------------------------------------------------------------------------------------------


def test_equal_gpus_are_filled_in_index_order():
    for placement in Placement:
        assert chosen(request([9, 9, 9], 2, placement=placement)) == [0]


def test_gpus_with_enough_units_that_are_not_suspect_come_first():
    assert chosen(request([4, 9], 4, suspect={uuid(0): 3})) == [1]
    assert chosen(request([4], 4, suspect={uuid(0): 3})) == [0], "unavoidable: the caller decides"


def test_a_pinned_gpu_comes_before_a_better_filled_one():
    assert chosen(request([15, 6, 0, 4], 4, pinned=(uuid(0),))) == [0]
    assert chosen(request([15, 6, 0, 4], 5, pinned=(uuid(3),))) == [1]


def test_a_gpu_short_of_the_other_resource_comes_last():
    assert chosen(request([15, 6, 0, 4], 4, short=(uuid(3),))) == [1]
    assert chosen(request([15, 6, 0, 4], 4, short=(uuid(0), uuid(1), uuid(3)))) == [3]


def test_room_for_the_pods_next_container_counts():
    assert chosen(request([15, 6, 0, 4], 2, room=10)) == [0]
    assert chosen(request([15, 6, 0, 4], 2, room=18)) == [3]


def test_only_limits_the_choice():
    assert chosen(request([15, 6, 0, 4], 4, only=(uuid(1),))) == [1]
    refusal = refused(request([15, 6, 0, 4], 7, only=(uuid(1),)))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "GPU 1 with its other resource" in refusal.message


def test_a_gpu_with_as_many_pods_as_allowed_is_passed_over():
    assert chosen(request([15, 6, 0, 4], 4, full=(uuid(3),), most="2 pods")) == [1]
    refusal = refused(request([15, 6], 7, full=(uuid(0),), most="2 pods"))
    assert refusal.reason is Reason.TOO_MANY_PODS
    assert "2 pods" in refusal.message


def test_a_full_gpu_takes_more_units_for_a_container_that_is_on_it():
    assert chosen(request([15, 6, 0, 4], 4, full=(uuid(3),), must_include={uuid(3): 2})) == [3]


def decided(free: list[int], size: int, *only: int, **more) -> Refusal:
    refusal = refused(request(free, size, only=[uuid(n) for n in only], decided="a scheduler chose it", **more))
    assert refusal.reason is Reason.GPU_DECISION
    return refusal


def test_why_a_decision_cannot_be_kept_is_reported_of_the_first_gpu_that_is_in_its_way():
    assert "and GPU 1 has 3 free and not 4 (free:" in decided([9, 3], 4, 1).message
    assert "and kubelet offers nothing of GPU 1: it is full, or not advertised (" in decided([9, 0], 4, 1).message
    assert "and GPU 1 is unhealthy or leaves this mode (" in decided([9, 9], 4, 1, leaving=[uuid(1)]).message
    full = decided([9, 4], 4, 1, full=[uuid(1)], most="20 pods")
    assert "and GPU 1 has 20 pods already, the most allowed (" in full.message, "4 free are enough for 4"


def test_a_decision_that_another_gpu_of_an_init_container_is_in_the_way_of_names_that_gpu():
    assert "and kubelet hands units of GPU 0 on to it (" in decided([9, 9], 4, 1, must_include={uuid(0): 1}).message
    found = decided([9, 9, 9], 4, 1, must_include={uuid(0): 1, uuid(2): 1}).message
    assert "and kubelet hands units of GPU 0 and GPU 2 on to it (" in found


def test_of_several_chosen_gpus_the_lowest_that_is_in_the_way_is_named():
    """By its number, and not by the text of its UUID; each GPU's part is in the text."""
    asked = request([3, 3], 8, only=[uuid(0), uuid(1)], decided="a scheduler chose them", gpu_count=2)
    message = refused(replace(asked, order={uuid(0): 1, uuid(1): 0})).message
    assert "asks for 8 GiB over 2 GPUs (4 on each); a scheduler chose them, and GPU 0 has 3 free and not 4" in message


def test_spreading_over_gpus_is_even():
    for placement, gpus in ((Placement.BINPACK, [1, 3]), (Placement.SPREAD, [0, 1])):
        assert chosen(request([15, 6, 0, 4], 6, gpu_count=2, placement=placement)) == gpus


def test_spreading_over_more_gpus_than_fit_is_refused():
    refusal = refused(request([15, 6, 0, 4], 15, gpu_count=3))
    assert refusal.reason is Reason.NO_SINGLE_GPU
    assert "over 3 GPUs (5 on each)" in refusal.message
    assert "2 GPUs have that much free" in refusal.message


def test_too_little_in_all_says_so():
    refusal = refused(request([3, 3], 7))
    assert refusal.reason is Reason.NOT_ENOUGH
    assert "6 are free on this node" in refusal.message


def test_units_reused_from_two_gpus_are_refused():
    refusal = refused(request([9, 9], 4, must_include={uuid(0): 1, uuid(1): 1}))
    assert refusal.reason is Reason.SPANS_GPUS
    assert "init container" in refusal.message


def test_a_reused_gpu_without_the_rest_is_not_blamed_on_the_others():
    refusal = refused(request([10, 3], 5, must_include={uuid(1): 2}))
    assert "no single GPU has that much" not in refusal.message, "GPU 0 has: the text would mislead"
    assert "GPU 1" in refusal.message
    assert "Ask for 10 or less" not in refusal.message


# -- a plain search --------------------------------------------------------------------------------------------


@st.composite
def small_boxes(draw):
    free = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    assume(any(free))
    some = st.sets(st.sampled_from([uuid(n) for n in range(len(free))]), max_size=2)
    gpu_count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    units = [(uuid(n), unit) for n, count in enumerate(free) for unit in range(count)]
    must = draw(st.just(set()) | st.sets(st.sampled_from(units), max_size=2))
    suspect = draw(st.just(set()) | st.sets(st.sampled_from(units))) - must
    return request(
        free,
        draw(st.integers(1, 3)) * gpu_count,
        placement=draw(BOTH),
        gpu_count=gpu_count,
        must_include=Counter(gpu for gpu, _ in must),
        suspect=Counter(gpu for gpu, _ in suspect),
        room=draw(st.integers(0, 5)),
        pinned=draw(some),
        short=draw(some),
        full=draw(st.just(set()) | some),
        only=draw(st.none() | some),
    )


def placeable(asked: ShareRequest, gpus: tuple[str, ...]) -> bool:
    """Whether the request may lie evenly on exactly these GPUs."""
    each = asked.size // asked.gpu_count
    must_on = {u: asked.must_include.get(u, 0) for u in asked.free}
    return all(must_on[u] == 0 for u in asked.free if u not in gpus) and all(
        must_on[u] <= each <= asked.free[u]
        and (asked.only is None or u in asked.only)
        and (must_on[u] > 0 or u not in asked.full)
        for u in gpus
    )


def preferred(asked: ShareRequest, gpus: list[str]) -> str:
    """One wish after the other narrows the field; a wish that nobody fulfils is dropped."""
    each = asked.size // asked.gpu_count
    sound = {u: asked.free[u] - asked.preferences.suspect.get(u, 0) for u in asked.free}
    wishes = (
        lambda u: u in asked.must_include,
        lambda u: u in asked.preferences.pinned,
        lambda u: u not in asked.preferences.short,
        lambda u: sound[u] >= each,
        lambda u: asked.free[u] >= asked.preferences.room,
    )
    for wish in wishes:
        gpus = [u for u in gpus if wish(u)] or gpus
    extreme = min if asked.preferences.placement is Placement.BINPACK else max
    amount = extreme(asked.free[u] for u in gpus)
    return min((u for u in gpus if asked.free[u] == amount), key=asked.order.__getitem__)


@settings(max_examples=500)
@given(small_boxes())
def test_a_share_equals_a_search_over_everything(asked):
    sets = [gpus for gpus in combinations(asked.free, asked.gpu_count) if placeable(asked, gpus)]
    if not sets:
        refusal = refused(asked)
        assert MEM in refusal.message
        return
    field = sorted({u for gpus in sets for u in gpus})
    expected = set()
    while len(expected) < asked.gpu_count:
        expected.add(preferred(asked, [u for u in field if u not in expected]))
    assert set(choose_share(asked)) == expected


@given(small_boxes(), st.randoms(use_true_random=False))
def test_the_order_of_gpus_changes_nothing(asked, random):
    outcomes = []
    for one in (asked, replace(asked, free=dict(random.sample(sorted(asked.free.items()), len(asked.free))))):
        try:
            outcomes.append(choose_share(one))
        except Refusal as refusal:
            outcomes.append(refusal.reason)
    assert outcomes[0] == outcomes[1]
