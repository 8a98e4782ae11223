"""The mix: learned from the pods that came, the newest most, bounded, and the same for the same pods."""

import pytest

from gpuscheduler.core.policy.fleet import Demand
from gpuscheduler.core.policy.mix import CHECK_PODS, MEMORY_PODS, MOST_DEMANDS, PRIOR, Mix, shares

HALF, WHOLE = Demand(1, 0.5, 4.0), Demand(1, 1.0, 8.0)


def seen(mix, demand, pods):
    for _ in range(pods):
        mix.saw(demand)


def test_a_mix_begins_with_the_prior():
    mix = Mix()
    assert mix.shares == pytest.approx(dict(PRIOR))
    assert sum(PRIOR.values()) == pytest.approx(1.0)


def test_pods_outweigh_the_prior_and_later_pods_the_earlier_ones():
    mix = Mix({WHOLE: 1.0})
    seen(mix, HALF, 2000)
    assert mix.shares[HALF] > 0.8
    seen(mix, WHOLE, int(2 * MEMORY_PODS))
    assert mix.shares[WHOLE] > 0.8


def test_shares_add_up_to_one_the_most_frequent_first():
    mix = Mix()
    seen(mix, HALF, 20 * CHECK_PODS)
    assert sum(mix.shares.values()) == pytest.approx(1.0)
    assert list(mix.shares) == sorted(mix.shares, key=mix.shares.get, reverse=True)
    assert next(iter(mix.shares)) == HALF


def test_the_version_changes_with_the_shares_and_only_then():
    mix = Mix({HALF: 0.5, WHOLE: 0.5})
    versions = {mix.version: mix.shares}
    for pod in range(4000):
        mix.saw(HALF if pod < 2000 or pod % 2 else WHOLE)
        assert versions.setdefault(mix.version, mix.shares) is mix.shares
    assert 2 < len(versions) < 4000 / CHECK_PODS


def test_a_mix_that_does_not_drift_keeps_its_version():
    mix = Mix({HALF: 0.5, WHOLE: 0.5})
    for _ in range(5000):
        mix.saw(HALF)
        mix.saw(WHOLE)
    assert mix.version == 1


def test_the_number_of_demands_is_bounded_and_the_frequent_ones_stay():
    mix = Mix()
    for number in range(20 * MOST_DEMANDS):
        mix.saw(Demand(1, 1.0, float(number)))
        mix.saw(HALF)
    assert len(mix.shares) <= MOST_DEMANDS + CHECK_PODS
    assert next(iter(mix.shares)) == HALF


def test_the_same_pods_make_the_same_mix():
    def mixes():
        mix = Mix()
        for number in range(1000):
            mix.saw(Demand(1, (number % 7 + 1) / 8, float(number % 3), frozenset({number % 2}) if number % 5 else None))
        return list(mix.shares.items()), mix.version

    assert mixes() == mixes()


def test_shares_are_parts_of_the_sum():
    assert shares([(HALF, 3.0), (WHOLE, 1.0)]) == {HALF: 0.75, WHOLE: 0.25}
