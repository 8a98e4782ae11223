"""What every policy owes its caller: it refuses nothing that fits, and equal questions have equal answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscheduler.core.policy.fleet import Demand, Fleet
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import NAMES, named
from tests.unit.gpuscheduler.core.policy.fleets import all_rows, demands, fitting, fleet, fleets, mixes

policies = st.sampled_from(NAMES)


@given(policies, mixes(), fleets, demands())
def test_the_cost_is_finite_exactly_where_the_demand_fits_and_the_gpu_has_room(name, mix, some, demand):
    costs, gpus = named(name, mix).costs(some, all_rows(some), demand)
    assert costs.shape == gpus.shape == some.gpus.shape
    for row, (cost, gpu) in enumerate(zip(costs, gpus, strict=True)):
        roomy = fitting(some, demand, row)
        assert np.isfinite(cost) == (len(roomy) >= demand.gpus)
        assert not np.isnan(cost)
        if np.isfinite(cost):
            assert gpu in roomy


@given(policies, mixes(), fleets, demands(), st.data())
def test_a_few_rows_cost_exactly_what_they_cost_among_all(name, mix, some, demand, data):
    policy = named(name, mix)
    costs, gpus = policy.costs(some, all_rows(some), demand)
    rows = np.array(data.draw(st.lists(st.integers(0, len(costs) - 1), min_size=1, max_size=3)))
    few, few_gpus = policy.costs(some, rows, demand)
    assert few.tolist() == costs[rows].tolist()
    assert few_gpus.tolist() == gpus[rows].tolist()


@given(policies, mixes(), fleets, demands(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_of_gpus_changes_no_cost(name, mix, some, demand, random):
    rows = list(all_rows(some))
    random.shuffle(rows)
    free = some.free[rows].copy()
    for row, source in enumerate(rows):
        parts = free[row, : some.gpus[source]].tolist()
        random.shuffle(parts)
        free[row, : len(parts)] = parts
    shuffled = Fleet(free, some.gpus[rows], some.cpu_free[rows], some.cpu_total[rows], some.model[rows])
    policy = named(name, mix)
    costs, _ = policy.costs(some, all_rows(some), demand)
    again, _ = policy.costs(shuffled, all_rows(some), demand)
    assert again.tolist() == costs[rows].tolist()


@given(policies, mixes(), fleets, demands())
def test_a_policy_leaves_the_fleet_as_it_is_and_answers_the_same_again(name, mix, some, demand):
    before = some.free.copy(), some.cpu_free.copy()
    answers = [named(name, mix).costs(some, all_rows(some), demand) for _ in range(2)]
    assert [one.tolist() for one in answers[0]] == [one.tolist() for one in answers[1]]
    assert (some.free == before[0]).all()
    assert (some.cpu_free == before[1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_have_no_costs(name):
    costs, gpus = named(name, Mix()).costs(fleet(([1.0], 8.0, 0)), np.array([], dtype=np.int64), Demand(1, 1.0))
    assert len(costs) == len(gpus) == 0


def cheapest(name, demand, *nodes, mix=None):
    """The row of least cost, and its GPU."""
    some = fleet(*nodes)
    costs, gpus = named(name, mix or Mix()).costs(some, all_rows(some), demand)
    row = int(costs.argmin())
    return row, int(gpus[row])


@pytest.mark.parametrize("name", ["strand", "binpack"])
def test_a_share_fills_the_gpu_where_it_leaves_the_least(name):
    nodes = ([1.0, 0.5], 32.0, 0), ([1.0, 1.0], 32.0, 0)
    assert cheapest(name, Demand(1, 0.5, 4.0), *nodes) == (0, 1)


def test_spread_takes_the_emptiest_gpu_on_the_emptiest_node():
    nodes = ([0.5, 0.9], 32.0, 0), ([0.4, 1.0], 32.0, 0), ([1.0, 0.9], 32.0, 0)
    assert cheapest("spread", Demand(1, 0.25), *nodes) == (2, 0)


@pytest.mark.parametrize("name", ["strand", "binpack"])
def test_a_whole_gpu_comes_from_a_broken_node_before_an_empty_one(name):
    nodes = ([1.0] * 8, 96.0, 0), ([0.0] * 5 + [1.0] * 3, 36.0, 0)
    assert cheapest(name, Demand(1, 1.0, 10.0), *nodes)[0] == 1


@pytest.mark.parametrize("name", NAMES)
def test_several_gpus_are_those_with_the_least_free(name):
    assert cheapest(name, Demand(2, 0.25), ([1.0, 0.2, 0.5, 0.3], 32.0, 0)) == (0, 3)


def test_strand_gives_cores_where_gpus_have_cores_to_spare():
    nodes = ([1.0, 1.0], 64.0, 0), ([1.0, 1.0], 20.0, 0)
    assert cheapest("strand", Demand(1, 1.0, 18.0), *nodes)[0] == 0


def test_strand_leaves_a_model_that_pods_name_to_those_pods():
    mix = Mix({Demand(1, 1.0, 10.0): 0.5, Demand(1, 1.0, 10.0, frozenset({1})): 0.5})
    nodes = ([1.0, 1.0], 32.0, 1), ([1.0, 1.0], 32.0, 0)
    assert cheapest("strand", Demand(1, 1.0, 10.0), *nodes, mix=mix)[0] == 1


def test_strand_keeps_room_for_pods_of_several_gpus():
    mix = Mix({Demand(1, 1.0, 10.0): 0.5, Demand(4, 1.0, 40.0): 0.5})
    nodes = ([1.0] * 4, 48.0, 0), ([1.0] * 3, 36.0, 0)
    assert cheapest("strand", Demand(1, 1.0, 10.0), *nodes, mix=mix)[0] == 1


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ValueError, match="no policy 'best'; one of strand, fgd, binpack, spread"):
        named("best", Mix())
