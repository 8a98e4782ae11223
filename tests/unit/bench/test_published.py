"""The published policies: equal to going through everything as they do, on every set of free GPUs."""

from itertools import combinations

import pytest

from bench.placement.published import NVLINK_POINTS, PCIE_POINTS, BestPartition, PairSum, first_fit
from bench.placement.topologies import box_topology

BOXES = [
    "DGX-1 Volta",
    "DGX A100, GPU 3 with 10 of 12 links",
    "8 x A40, four bridges",
    "2 x T4, 2 x A10, A100, no NVLink",
]


def points(topology, one, other, *, through_switches):
    link = topology.links[one][other]
    nvlinks = 0 if link.switched and not through_switches else link.nvlinks
    return PCIE_POINTS[link.relation] + NVLINK_POINTS * nvlinks


def worth(topology, some, *, through_switches):
    return sum(points(topology, *pair, through_switches=through_switches) for pair in combinations(some, 2))


def partitions(gpus, size, short):
    """All splits into sets of `size`, one of them `short` GPUs short, in the order of counting up the places.

    A place left empty comes after every GPU.
    """
    if not gpus:
        yield ()
        return
    first, *others = gpus
    full = [(first, *some) for some in combinations(others, size - 1)]
    part = [(first, *some) for some in combinations(others, size - 1 - short)] if short else []
    for some in sorted(full + part, key=lambda some: (*some, *[99] * (size - len(some)))):
        left = [gpu for gpu in others if gpu not in some]
        for rest in partitions(left, size, 0 if len(some) < size else short):
            yield some, *rest


def by_going_through_all_partitions(topology, free, size):
    if size == 1:
        return (free[0],)

    def of_all(partition):
        return sum(worth(topology, some, through_switches=False) for some in partition)

    best = max(partitions(list(free), size, -len(free) % size), key=of_all)
    full = [some for some in best if len(some) == size]
    return max(full, key=lambda some: worth(topology, some, through_switches=False))


@pytest.mark.parametrize("box", BOXES)
def test_the_best_partition_is_what_going_through_all_of_them_finds(box):
    topology = box_topology(box)
    policy = BestPartition(topology)
    everyone = range(len(topology.gpus))
    for count in range(1, min(len(everyone), 7) + 1):
        for free in combinations(everyone, count):
            for size in range(1, count + 1):
                right = by_going_through_all_partitions(topology, free, size)
                assert policy(free, size) == right, (free, size)


def test_a_partition_of_eight_into_pairs_follows_the_double_links_of_a_dgx1v():
    assert BestPartition(box_topology("DGX-1 Volta"))(range(8), 2) in {(0, 3), (0, 4)}


@pytest.mark.parametrize("box", BOXES)
def test_the_pair_sum_is_the_highest_there_is(box):
    topology = box_topology(box)
    policy = PairSum(topology)
    free = range(len(topology.gpus))
    for size in range(2, len(free) + 1):
        best = max(worth(topology, some, through_switches=True) for some in combinations(free, size))
        assert worth(topology, policy(free, size), through_switches=True) == best


def test_of_single_gpus_the_pair_sum_takes_the_worst_connected_one():
    assert PairSum(box_topology("8 x A40, four bridges"))([0, 1, 2, 4, 5], 1) == (2,)
    assert PairSum(box_topology("DGX A100, GPU 3 with 10 of 12 links"))(range(8), 1) == (3,)


def test_links_through_switches_are_points_for_the_pair_sum_only():
    topology = box_topology("DGX A100, GPU 3 with 10 of 12 links")
    assert 3 not in PairSum(topology)(range(8), 4)
    assert BestPartition(topology)([2, 3, 4], 2) == (2, 3), "they are of one NUMA node, and 4 is not"


def test_first_fit_takes_the_lowest_indexes():
    assert first_fit({9, 2, 5}, 2) == (2, 5)
