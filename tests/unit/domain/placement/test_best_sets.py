"""The best set of k GPUs: equal to what trying every set finds, and clear about questions that make no sense."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.ring import EXACT_GPUS, best_ring

Square = tuple[tuple[int, ...], ...]

NV2 = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
NV1 = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}


def square(count, speed) -> Square:
    return tuple(tuple(0 if i == j else speed(min(i, j), max(i, j)) for j in range(count)) for i in range(count))


DGX1V = square(8, lambda i, j: 50_000 if (i, j) in NV2 else 25_000 if (i, j) in NV1 else 7_880)
SWITCHED = square(16, lambda i, j: 150_000)
BRIDGES = square(4, lambda i, j: 56_250 if i // 2 == j // 2 else 15_752)


def worth(mbps, members):
    links = [mbps[i][j] for i, j in itertools.combinations(members, 2)]
    return min(links, default=float("inf")), sum(links)


def best_of(mbps, members, size):
    return max((worth(mbps, some) for some in itertools.combinations(members, size)), default=(-1, -1))


def left_over(mbps, left, members):
    """What later requests find: among the free GPUs that are left, and once others have ended."""
    others = [gpu for gpu in range(len(mbps)) if gpu not in members]
    found = [[best_of(mbps, gpus, size) for size in (8, 4, 2)] for gpus in (left, others)]
    return *found, worth(mbps, others)[1], worth(mbps, left)[1]


def by_trying_all(mbps, free, size, must=()):
    """The rule, word by word."""

    def rank(members):
        left = tuple(sorted(set(free) - set(members)))
        return *worth(mbps, members), *left_over(mbps, left, members), tuple(-gpu for gpu in members)

    return max((some for some in itertools.combinations(sorted(free), size) if set(must) <= set(some)), key=rank)


@st.composite
def questions(draw, most=7):
    count = draw(st.integers(1, most))
    speeds = draw(st.sampled_from([(1,), (1, 2), (10, 25, 50), tuple(range(1, 40))]))
    values = iter(draw(st.lists(st.sampled_from(speeds), min_size=count**2, max_size=count**2)))
    pairs = {pair: next(values) for pair in itertools.combinations(range(count), 2)}
    free = draw(st.sets(st.integers(0, count - 1), min_size=1))
    size = draw(st.integers(1, len(free)))
    must = draw(st.sets(st.sampled_from(sorted(free)), max_size=size))
    return square(count, lambda i, j: pairs[i, j]), free, size, must


@settings(max_examples=250)
@given(questions())
def test_it_is_what_trying_every_set_finds(question):
    mbps, free, size, must = question
    assert BestSets(mbps).choose(free, size, must) == by_trying_all(mbps, free, size, must)


@settings(max_examples=250)
@given(questions(), st.data())
def test_a_continuation_is_what_trying_every_set_finds(question, data):
    """Together with what is had, by weakest link and total; then by its own; then by what is left; then by index."""
    mbps, free, size, must = question
    job_gpus = data.draw(st.sets(st.integers(0, len(mbps) - 1), min_size=1)) - free

    def rank(members):
        left = tuple(sorted(free - set(members)))
        union = sorted({*members, *job_gpus})
        return worth(mbps, union), worth(mbps, members), *left_over(mbps, left, union), tuple(-gpu for gpu in members)

    if job_gpus:
        expected = max((some for some in itertools.combinations(sorted(free), size) if must <= set(some)), key=rank)
        assert BestSets(mbps).choose(free, size, must, job_gpus) == expected


@pytest.mark.parametrize(("mbps", "name"), [(DGX1V, "DGX-1V"), (BRIDGES, "bridges")])
def test_it_is_what_trying_every_set_finds_on_boxes(mbps, name):
    sets = BestSets(mbps)
    for count in range(1, len(mbps) + 1):
        for free in itertools.combinations(range(len(mbps)), count):
            size = max(1, count // 2)
            assert sets.choose(free, size) == by_trying_all(mbps, free, size), (name, free, size)


def test_pairs_and_quads_of_a_dgx1v():
    sets = BestSets(DGX1V)
    assert sets.choose(range(8), 2) == (0, 3)
    assert sets.choose(range(8), 4) == (0, 1, 2, 3)
    assert sets.choose([0, 1, 2, 4, 5, 6], 2) == (0, 4), "1-2, 1-5 and 5-6 are as fast, and belong to a faster quad"
    assert sets.choose(range(8), 2, must=[5]) in {(1, 5), (5, 6)}


def test_one_gpu_is_taken_where_it_costs_later_pods_least():
    assert BestSets(BRIDGES).choose([0, 1, 2], 1) == (2,)
    assert BestSets(DGX1V).choose([0, 3, 5], 1) == (5,)


def test_behind_a_switch_the_lowest_indexes_are_taken():
    sets = BestSets(SWITCHED)
    assert sets.choose([15, 3, 9, 4, 12], 3) == (3, 4, 9)
    assert sets.choose(range(16), 8, must=[15]) == (0, 1, 2, 3, 4, 5, 6, 15)


def test_sixteen_gpus_that_all_differ_are_known_exactly():
    mbps = square(16, lambda i, j: 1 + (i * 31 + j * 17) % 97)
    sets = BestSets(mbps)
    assert not sets.exact
    assert len(sets.choose(range(16), 5)) == 5, "a grown set, as long as the best ones are not worked out"
    sets.work_out()
    assert sets.exact
    for free, size in (((0, 2, 3, 5, 7, 8, 11, 13, 15), 4), (tuple(range(16)), 3), (tuple(range(2, 12)), 8)):
        assert sets.choose(free, size) == by_trying_all(mbps, free, size)


def test_more_gpus_than_can_be_worked_out_get_a_set_grown_from_the_best_link():
    mbps = square(
        20, lambda i, j: 100 if {i, j} == {18, 19} else 50 if {i, j} & {18, 19} and 7 in {i, j} else 1 + i % 3
    )
    sets = BestSets(mbps)
    sets.work_out()
    assert not sets.exact
    assert sets.choose(range(20), 2) == (18, 19)
    assert sets.choose(range(20), 3) == (7, 18, 19)
    assert sets.choose(range(20), 1) == (0,)
    assert sets.choose(range(20), 3, must=[4, 18]) == (2, 4, 18)
    assert sets.choose(range(18), 1, job_gpus=[18, 19]) == (7,)


@pytest.mark.parametrize(
    ("free", "size", "must", "expected"),
    [
        ([0, 1], 0, (), "a set has 1 GPU or more, not 0"),
        ([0, 1], 3, (), "a set of 3 GPUs cannot be had out of 2"),
        ([], 1, (), "a set of 1 GPUs cannot be had out of 0"),
        ([0, 1, 2], 1, (1, 2), "a set of 1 GPUs, 2 of them fixed, cannot be had out of 3"),
        ([0, 4], 1, (), "there is no GPU 4: the topology has 4 GPUs"),
        ([0, -1], 1, (), "there is no GPU -1"),
        ([0, 1], 1, (2,), "GPU 2 must be included and is not free"),
        ([0, 1, 1], 1, (), r"free names a GPU twice: \[0, 1, 1\]"),
        ([0, 1], 2, (1, 1), r"must names a GPU twice: \[1, 1\]"),
    ],
)
def test_questions_that_make_no_sense(free, size, must, expected):
    with pytest.raises(ValueError, match=expected):
        BestSets(BRIDGES).choose(free, size, must)


def test_a_gpu_cannot_be_both_free_and_had():
    with pytest.raises(ValueError, match="GPU 1 is free, and its job has it"):
        BestSets(BRIDGES).choose([0, 1], 1, job_gpus=[1, 2])


@pytest.mark.parametrize(
    ("mbps", "expected"),
    [
        (((0, 1), (1, 0, 3)), "the matrix is not square: 2 rows, and row 1 has 3 entries"),
        (((0, 1),), "the matrix is not square: 1 rows, and row 0 has 2 entries"),
        (((0, 1), (2, 0)), "between GPU 0 and GPU 1 it says 1 one way and 2 the other"),
        (((0, -1), (-1, 0)), "between GPU 0 and GPU 1 it says -1 MB/s; 0 is the least"),
    ],
)
def test_matrices_that_make_no_sense(mbps, expected):
    with pytest.raises(ValueError, match=expected):
        BestSets(mbps)


def test_no_gpus_at_all():
    with pytest.raises(ValueError, match="cannot be had out of 0"):
        BestSets(()).choose((), 1)


def ring_worth(mbps, ring):
    links = [mbps[one][other] for one, other in zip(ring, (*ring[1:], ring[0]), strict=True)]
    return min(links), sum(links)


@settings(max_examples=150)
@given(questions())
def test_the_ring_is_what_trying_every_order_finds(question):
    mbps, members, _, _ = question
    first, *others = sorted(members)
    orders = ((first, *rest) for rest in itertools.permutations(others))
    best = max(orders, key=lambda ring: (*ring_worth(mbps, ring), tuple(-gpu for gpu in ring)))
    assert best_ring(mbps, members) == best


def test_the_ring_of_a_dgx1v_goes_over_the_double_links():
    assert best_ring(DGX1V, range(8)) == (0, 3, 2, 1, 5, 6, 7, 4)


def test_a_ring_of_many_gpus_has_every_one_once_and_beats_the_order_of_indexes():
    mbps = square(16, lambda i, j: 40 if i % 4 == j % 4 else 10)
    ring = best_ring(mbps, range(16))
    assert len(ring) > EXACT_GPUS
    assert sorted(ring) == list(range(16))
    assert ring_worth(mbps, ring) > ring_worth(mbps, range(16))
