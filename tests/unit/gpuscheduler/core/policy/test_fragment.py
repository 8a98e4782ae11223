"""The expected fragment and the expected waste against their definitions, word by word."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuscheduler.core.policy.choices import Choices
from gpuscheduler.core.policy.fleet import Demand
from gpuscheduler.core.policy.fragment import Fragments
from gpuscheduler.core.policy.waste import LEAVING, STEPS, expected_waste, steps_free
from tests.unit.gpuscheduler.core.policy.fleets import all_rows, demands, fitting, fleet, fleets

weights = st.dictionaries(demands(), st.floats(0.01, 1.0), min_size=1, max_size=10)


def fragment(free, cores, model, mix):
    """ATC'23, 4.2: of each demand, the GPUs that it cannot use, or all if it does not fit; the mean over the mix."""
    total = 0.0
    for demand, weight in mix.items():
        usable = [part for part in free if part >= demand.fraction - 1e-9]
        accepted = demand.models is None or model in demand.models
        fits = accepted and cores >= demand.cpu - 1e-9 and len(usable) >= demand.gpus
        total += weight * (sum(free) - (sum(usable) if fits else 0.0))
    return total


@given(weights, fleets, demands())
def test_the_rise_of_the_fragment_is_that_of_the_definition(mix, some, demand):
    rows = all_rows(some)
    choices = Choices.of(some, rows, demand)
    rise = Fragments.of(mix).rise(choices, some.model)
    for row, choice in np.argwhere(choices.fits):
        before = some.free[row].tolist()
        cores, model = max(some.cpu_free[row], 0.0), some.model[row]
        roomy = sorted(fitting(some, demand, row), key=lambda gpu: (before[gpu], gpu))
        taken = {choices.first[row, choice]} if choices.taken is None else set(roomy[: demand.gpus])
        assert choices.first[row, choice] in taken
        after = [part - demand.fraction if gpu in taken else part for gpu, part in enumerate(before)]
        grown = fragment(after, max(cores - demand.cpu, 0.0), model, mix) - fragment(before, cores, model, mix)
        assert rise[row, choice] == pytest.approx(grown, abs=1e-6)


def test_demands_without_gpus_count_all_that_is_free_as_fragment():
    mix = {Demand(0, 0.0, 4.0): 0.5, Demand(1, 1.0, 4.0): 0.5}
    choices = Choices.of(fleet(([1.0, 1.0], 32.0, 0)), np.array([0]), Demand(1, 1.0, 4.0))
    assert Fragments.of(mix).rise(choices, np.array([0]))[0].tolist() == [pytest.approx(-0.5)]


def test_a_model_that_was_not_seen_before_is_one_that_no_demand_names():
    mix = {Demand(1, 1.0, 4.0): 0.5, Demand(1, 1.0, 4.0, frozenset({1})): 0.5}
    choices = Choices.of(fleet(*[([1.0, 1.0], 32.0, model) for model in (0, 1, 7)]), np.arange(3), Demand(1, 1.0, 32.0))
    assert Fragments.of(mix).rise(choices, np.array([0, 1, 7]))[:, 0] == pytest.approx([0.0, 1.0, 0.0])


@given(
    st.dictionaries(st.integers(1, STEPS).map(lambda size: Demand(1, size / STEPS)), st.floats(0.01, 1.0), min_size=1)
)
def test_the_expected_waste_is_that_of_the_definition_and_at_most_what_is_free(mix):
    total = sum(mix.values())
    waste = expected_waste(mix)
    for free in range(1, STEPS + 1, 97):
        fitting_sizes = {round(one.fraction * STEPS): weight / total for one, weight in mix.items()}
        fitting_sizes = {size: weight for size, weight in fitting_sizes.items() if size <= free}
        rest = sum(weight * waste[free - size] for size, weight in fitting_sizes.items())
        expected = (LEAVING * free / STEPS + rest) / (LEAVING + sum(fitting_sizes.values()))
        assert waste[free] == pytest.approx(expected, abs=1e-8)
        assert 0 <= waste[free] <= free / STEPS + 1e-9


def test_a_gpu_that_no_pod_fits_is_wasted_and_one_that_pods_fill_exactly_is_not():
    waste = expected_waste({Demand(1, 0.5): 1.0})
    assert waste[steps_free(np.array([0.0, 0.4, 0.5, 0.9, 1.0]))] == pytest.approx(
        [0.0, 0.4, LEAVING * 0.5 / (1 + LEAVING), (LEAVING * 0.9 + 0.4) / (1 + LEAVING), waste[STEPS]]
    )
    assert waste[STEPS] < 0.05


@given(weights, fleets, demands())
def test_the_fragment_never_rises_by_more_than_was_usable(mix, some, demand):
    choices = Choices.of(some, all_rows(some), demand)
    assume(choices.fits.any())
    rise = Fragments.of(mix).rise(choices, some.model)[choices.fits]
    free = np.broadcast_to(some.free.sum(axis=1)[:, None], choices.fits.shape)[choices.fits]
    assert (rise <= sum(mix.values()) * free + 1e-6).all()
