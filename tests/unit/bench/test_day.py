"""A simulated day: the same for every policy, the same every time, and judged by the true bandwidths."""

from itertools import pairwise

import pytest

from bench.node import BenchError
from bench.placement import day
from bench.placement.day import Days, Handed, Request, requests, served
from bench.placement.published import first_fit
from bench.placement.topologies import box_topology

TWO_BRIDGES = box_topology("4 x A40, two bridges")


def last_fit(free, size):
    return tuple(sorted(free)[-size:])


def test_the_same_seed_makes_the_same_day_and_another_one_another():
    assert requests(8, 3) == requests(8, 3) != requests(8, 4)


def test_requests_come_one_after_the_other_within_the_day_and_fit_the_box():
    wanted = requests(4, 0)
    assert all(one.arrives_h < other.arrives_h for one, other in pairwise(wanted))
    assert all(0 < one.arrives_h < one.leaves_h and one.arrives_h < day.HOURS for one in wanted)
    assert {one.size for one in wanted} == {1, 2, 4}


def test_as_much_is_requested_as_configured():
    days = [requests(8, seed) for seed in range(200)]
    hours = sum((one.leaves_h - one.arrives_h) * one.size for wanted in days for one in wanted)
    assert hours / (200 * 8 * day.HOURS) == pytest.approx(day.OFFERED, rel=0.05)


def test_who_does_not_fit_is_turned_away_and_who_leaves_makes_room():
    wanted = [Request(1, 5, 3), Request(2, 3, 2), Request(3, 9, 1), Request(5, 6, 3), Request(6, 7, 1)]
    assert served(4, wanted, first_fit) == [(0, 1, 2), (), (3,), (0, 1, 2), (0,)]


def test_every_policy_serves_the_same_requests():
    for seed in range(20):
        wanted = requests(8, seed)
        assert list(map(bool, served(8, wanted, first_fit))) == list(map(bool, served(8, wanted, last_fit)))


@pytest.mark.parametrize("got", [(0,), (0, 0), (0, 7)])
def test_a_policy_that_gives_what_it_may_not_ends_the_measurement(got):
    with pytest.raises(BenchError, match=r"asked for 2 of \[0, 1, 2\]"):
        served(3, [Request(1, 2, 2)], lambda _free, _size: got)


def test_sets_are_judged_by_bandwidth_and_single_gpus_are_not():
    bridge, far = 56.25, 15.752
    judged = day.judged(TWO_BRIDGES, [(0,), (0, 1), (0, 2), (), (0, 1, 2)])
    assert judged.weakest == pytest.approx((bridge + far + far) / 3)
    assert judged.total == pytest.approx((bridge + far + bridge + 2 * far) / 3)


def test_days_are_the_same_every_time():
    assert day.days(TWO_BRIDGES, 3) == day.days(TWO_BRIDGES, 3)


def test_the_lead_is_over_the_best_of_the_others_day_by_day():
    handed = {
        "first fit": [Handed(1, 9), Handed(1, 9)],
        "pair sum": [Handed(10, 1), Handed(20, 1)],
        "best partition": [Handed(2, 2), Handed(2, 2)],
        "ours": [Handed(12, 9), Handed(22, 9)],
    }
    days = Days(handed, 0.5, 2)
    assert days.lead(lambda one: one.weakest) == day.Lead("pair sum", 2, 0)
    assert days.lead(lambda one: one.total) == day.Lead("first fit", 0, 0)


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [(0, 0, "equal every day"), (1, 2, "no difference seen"), (2, 1, "ahead"), (-2, 1, "behind")],
)
def test_what_a_lead_amounts_to(mean, half, verdict):
    assert day.Lead("pair sum", mean, half).verdict == verdict
