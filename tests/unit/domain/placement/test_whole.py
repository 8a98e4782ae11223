"""Which whole GPUs a request gets: the best set, beside what its job has, and as a scheduler decided."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.gpus.topology import topology
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.whole import WholeRequest, choose_whole
from gpuagent.domain.refusal import Reason, Refusal
from tests.unit.domain.builders import DGX1V, WHOLE, box, uuid, wired

MESH = topology(box(8), DGX1V)
FLAT = topology(box(8), wired({}))


def whole(indexes, size, links=MESH, **more) -> WholeRequest:
    sets = {"must_include", "leaving", "suspect", "reserved", "spare", "named", "job_gpus"}
    more = {name: {uuid(n) for n in value} if name in sets else value for name, value in more.items()}
    return WholeRequest(
        resource=WHOLE,
        size=size,
        free={uuid(n) for n in indexes},
        sets=BestSets(links.mbps),
        positions={uuid(n): n for n in range(8)},
        names={uuid(n): f"GPU {n}" for n in range(8)},
        **more,
    )


def chosen(request) -> list[int]:
    return sorted(request.positions[gpu] for gpu in choose_whole(request))


def refused(request) -> Refusal:
    with pytest.raises(Refusal) as caught:
        choose_whole(request)
    return caught.value


def test_two_and_four_gpus_of_a_mesh():
    assert chosen(whole(range(8), 2)) == [0, 3]
    assert chosen(whole(range(8), 4)) == [0, 1, 2, 3]
    assert chosen(whole([1, 2, 4, 5, 6, 7], 4)) == [4, 5, 6, 7]


def test_where_all_links_are_alike_the_lowest_indexes_are_taken():
    assert chosen(whole([5, 1, 7, 2], 2, FLAT)) == [1, 2]


def test_what_must_be_included_is():
    assert chosen(whole([5, 1, 7, 2], 2, FLAT, must_include=[7])) == [1, 7]
    assert chosen(whole(range(8), 2, must_include=[6])) == [5, 6]


def test_doubtful_gpus_come_after_all_others_and_those_that_leave_last():
    assert chosen(whole(range(8), 2, suspect=[0, 3])) == [1, 2]
    assert chosen(whole([0, 1, 2, 3], 3, FLAT, suspect=[0], leaving=[1])) == [0, 2, 3]
    assert chosen(whole([0, 3, 7], 2, suspect=[0], leaving=[3])) == [0, 7], "0-3 is faster, and 3 is on its way out"


def test_more_than_are_free_are_refused():
    refusal = refused(whole([5, 1], 3))
    assert (refusal.reason, refusal.message) == (
        Reason.NOT_ENOUGH,
        f"{WHOLE}: this container asks for 3 GPUs, 2 are free",
    )


def test_the_next_pod_of_a_job_goes_on_from_the_first():
    assert chosen(whole([1, 2, 4, 5, 6, 7], 2)) == [1, 2], "without the job"
    assert chosen(whole([1, 2, 4, 5, 6, 7], 2, job_gpus=[0, 3])) == [1, 2]
    assert chosen(whole([0, 1, 2, 3, 5, 6], 2, job_gpus=[4, 7])) == [5, 6]
    assert chosen(whole([1, 2, 3, 5, 6, 7], 1, job_gpus=[0, 4])) == [3], (
        "4-0-3 has two double links, as 0-4-7; 3 is lower"
    )


def test_the_first_pod_of_a_job_leaves_good_gpus_for_the_others():
    alone = chosen(whole(range(8), 1))
    first = chosen(whole(range(8), 1, together=[2, 1]))
    second = chosen(whole(set(range(8)) - set(first), 1, job_gpus=first, together=[1]))
    assert {*first, *second} == {0, 3}
    assert alone == first == [0]
    crowded = [0, 1, 2, 5, 7]
    first = chosen(whole(crowded, 1, together=[2, 1]))
    second = chosen(whole(set(crowded) - set(first), 1, job_gpus=first))
    assert sorted(first + second) in ([1, 2], [1, 5])


def test_a_pod_goes_on_from_its_job_also_while_more_of_the_job_is_to_come():
    assert chosen(whole([0, 1, 2, 5, 6, 7], 1, job_gpus=[3], together=[2, 1])) == [0], "3-0 and 0-1 or 0-2"


def test_a_job_that_takes_all_that_is_free_narrows_nothing():
    assert chosen(whole([0, 6, 7], 1, together=[3, 2, 1])) == chosen(whole([0, 6, 7], 1)) == [0]


def test_a_job_of_which_no_other_pod_fits_narrows_nothing():
    alone = chosen(whole([0, 5, 6], 2, job_gpus=[1, 4], together=[2]))
    assert chosen(whole([0, 5, 6], 2, job_gpus=[1, 4], together=[4, 2])) == alone == [5, 6]


def test_of_a_job_that_does_not_fit_as_many_pods_as_do_are_placed_together():
    assert chosen(whole([1, 2, 5], 2, together=[8, 6, 4, 2])) == [1, 2]


def test_a_set_for_the_pod_is_chosen_within_that_for_the_job():
    """Three GPUs for the pod, one now and two in its next container, in a job of two such pods."""
    for together in ([6, 3], [9, 6, 3], [3]):
        first = chosen(whole(range(8), 1, together=together))
        rest = chosen(whole(set(range(8)) - set(first), 2, job_gpus=first, together=[5, 2]))
        assert sorted(first + rest) == [0, 2, 3], together


def test_a_pod_that_continues_a_job_equally_well_in_two_ways_gets_the_better_set_of_its_own():
    assert chosen(whole([1, 4, 5, 6, 7], 3, job_gpus=[0, 2, 3])) == [4, 6, 7]


def test_what_a_scheduler_named_is_taken_even_if_it_is_slow():
    assert chosen(whole(range(8), 2, named=[0, 5])) == [0, 5]


def test_a_container_gets_the_best_of_what_was_named_for_its_pod():
    assert chosen(whole(range(8), 2, named=[0, 1, 3, 5])) == [0, 3]


def test_named_gpus_that_are_not_free_are_refused_by_name():
    refusal = refused(whole([0, 1, 2], 2, named=[0, 5]))
    assert refusal.reason is Reason.GPU_GROUP
    assert refusal.message == (
        f"{WHOLE}: this container asks for 2 GPUs; the scheduler chose GPU 0, GPU 5 for its pod (annotation "
        "topology.kubernetes.io/gpu-group), and GPU 5 is not free (free: GPU 0, GPU 1, GPU 2)"
    )


def test_named_gpus_that_are_free_and_not_offered_are_distinguished():
    assert refused(whole(range(4), 2, named=[5, 7], spare=[5, 6, 7])).message.endswith(
        "and kubelet does not offer GPU 5, GPU 7, though free: it keeps to the NUMA nodes that its Topology Manager "
        "chose (offered: GPU 0, GPU 1, GPU 2, GPU 3)"
    )
    assert "and GPU 7 is not free (" in refused(whole(range(4), 2, named=[5, 7], spare=[5, 6])).message


def test_gpus_are_listed_in_the_order_of_their_places():
    """The text of their UUIDs has another order."""
    request = whole([2, 0, 1], 2, named=[7, 5])
    positions = {uuid(n): 7 - n for n in range(8)}
    request = replace(request, positions=positions, names={uuid(n): f"GPU {7 - n}" for n in range(8)})
    assert "the scheduler chose GPU 0, GPU 2 for" in refused(request).message
    assert refused(request).message.endswith("GPU 0, GPU 2 is not free (free: GPU 5, GPU 6, GPU 7)")
    assert refused(whole([], 1, named=[3])).message.endswith("GPU 3 is not free (free: none)")


def test_a_named_gpu_that_leaves_is_refused_as_a_decision():
    refusal = refused(whole(range(4), 2, named=[0, 1], leaving=[1]))
    assert refusal.reason is Reason.GPU_GROUP
    assert "and GPU 1 is unhealthy or leaves the mode" in refusal.message


def test_a_reused_gpu_that_was_not_named_is_refused():
    refusal = refused(whole(range(4), 2, named=[0, 1], must_include=[3]))
    assert refusal.reason is Reason.GPU_GROUP
    assert "kubelet has fixed GPU 3, of an init container or by its NUMA node, and annotation" in refusal.message


@given(st.sets(st.integers(0, 7), min_size=1), st.data())
def test_it_is_the_right_number_of_free_gpus_with_all_that_must_be_and_no_needless_doubt(indexes, data):
    size = data.draw(st.integers(1, len(indexes)))
    some = st.sets(st.sampled_from(sorted(indexes)))
    must = data.draw(st.sets(st.sampled_from(sorted(indexes)), max_size=size))
    suspect, leaving = data.draw(some) - must, data.draw(some) - must
    others = data.draw(st.sets(st.integers(0, 7))) - indexes
    together = data.draw(st.lists(st.integers(1, 12), max_size=4).map(lambda sizes: sorted(sizes, reverse=True)))
    got = chosen(
        whole(indexes, size, must_include=must, suspect=suspect, leaving=leaving, job_gpus=others, together=together)
    )
    assert len(set(got)) == size
    assert must <= set(got) <= indexes

    def spoilt(members):
        return sum(n in leaving for n in members), sum(n in suspect for n in members)

    least = min(spoilt(some) for some in combinations(sorted(indexes), size) if must <= set(some))
    assert spoilt(got) == least
