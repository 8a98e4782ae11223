"""Worlds with the whole gpuscheduler in two replicas."""

from simworld.scenario import draw
from tests.unit.simworld.test_worlds import simulate


def test_a_seed_with_two_replicas_is_played_the_same_twice():
    assert draw(6).replicas == 2
    first, second = (simulate("--seed", "6", "--tries", "0") for _ in range(2))
    assert first == second
    status, story = first
    assert status == 0
    assert "gpu-scheduler-2    bound" in story
