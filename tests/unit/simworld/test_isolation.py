"""Isolation drivers that fail: no container with a share starts without its limit, and the checker sees it if one does."""

import pytest

from simworld.claim_scenario import draw_small_world, draw_world
from simworld.draw_isolation import BACKENDS, ISOLATED_SEEDS
from tests.unit.simworld.own_process import output_of

PLAY = """
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.faults import isolation
from simworld.play import play
from simworld.scenario import Action, Scenario

if {fault!r}:
    getattr(isolation, {fault!r})()
memory = "aliyun.com/gpu-mem"
# Each pod that ends leaves an address to the cgroup of a later one.
pods = [Action(2.0 + at, "create_job_pod", (memory, 8, 0, 1.0)) for at in range(6)]
deletions = [Action(10.0, "delete_pod", (0, 0)) for _ in range(3)]
others = [Action(17.0 + at, "create_pod", (memory, 4, 0, 2)) for at in range(3)]
actions = [*pods, *deletions, Action(12.0, "set_mode", (0, "share")), *others, *{faults!r}]
actions.sort(key=lambda action: action.at)
scenario = Scenario(1, ("1.36",), 1, "cgpu", False, 25.0, tuple(actions), limits={backend!r})
with TemporaryDirectory() as folder:
    outcome = play(scenario, Path(folder))
print(outcome.starts, "starts,", sum("was told" in line for line in outcome.story), "limits were told")
print(*outcome.broken, sep="\\n")
"""

SLOW = 'Action(1.0, "slow_limits", (0, 0.5, 10.0))'
REFUSED = 'Action(1.95, "refuse_limits", (0, 2.0))'


def broken_in(backend, fault="", faults=""):
    """What is broken in a world with that backend, a fault of the product, and actions in words."""
    program = PLAY.format(backend=backend, fault=fault, faults=[]).replace("*[]", f"*[{faults}]")
    first, _, broken = output_of(program).partition("\n")
    return first, broken.strip()


def drawn(first):
    """The small and the large worlds of 100 seeds."""
    return [draw(seed) for seed in range(first, first + 100) for draw in (draw_small_world, draw_world)]


def test_only_later_seeds_have_isolation_drivers_that_fail():
    former = drawn(ISOLATED_SEEDS - 100)
    later = drawn(ISOLATED_SEEDS)
    assert not any(scenario.limits for scenario in former)
    assert {scenario.limits for scenario in later} == {"", *BACKENDS}
    assert all(scenario.mode == "cgpu" for scenario in later if scenario.limits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_container_starts_with_the_limit_of_its_units(backend):
    told, broken = broken_in(backend)
    assert not broken
    starts, limits = [int(word) for word in told.split() if word.isdigit()]
    assert starts > 6
    assert limits >= 6


@pytest.mark.parametrize(
    ("backend", "faults"),
    [
        ("dmem", 'Action(1.0, "restart_limits", (0, 8.0))'),
        ("misc", 'Action(1.0, "slow_limits", (0, 8.0, 10.0))'),
        ("dmem", 'Action(1.0, "refuse_limits", (0, 5.0))'),
        ("misc", 'Action(1.0, "strike_limits", (0, 2, "helper carried out", 2.0))'),
        ("dmem", 'Action(1.0, "strike_limits", (0, 2, "agent answered", 2.0))'),
    ],
)
def test_containers_wait_for_a_driver_that_fails(backend, faults):
    _, broken = broken_in(backend, faults=faults)
    assert not broken


@pytest.mark.parametrize(
    ("backend", "fault", "faults", "says"),
    [
        ("dmem", "containers_are_limited_after_their_start", SLOW, "and the driver has no limit for it"),
        ("misc", "containers_are_limited_after_their_start", SLOW, "and the driver has no limit for it"),
        ("dmem", "a_failing_isolation_driver_is_ignored", REFUSED, "and the driver has no limit for it"),
        ("misc", "limits_of_dead_pods_are_inherited", "", "has no share of GPU 0 of node-1, and a limit of"),
        ("dmem", "limits_of_pods_that_are_gone_are_kept", "", "the isolation driver keeps limits of"),
    ],
)
def test_a_limit_that_is_missing_or_left_breaks_a_promise(backend, fault, faults, says):
    _, broken = broken_in(backend, fault, faults)
    assert says in broken
