"""Staged worlds: what is drawn, and that a world can do it."""

import pytest

from simworld.parts.job_controllers import JobControllers
from simworld.staged import MORE_SEEDS, SCHEDULING_SEEDS, draw_staged_world
from simworld.world import World
from tests.unit.simworld.own_process import output_of

FORGETS = """
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.play import play
from simworld.put_back import FAULTS
from simworld.scenario import Action, Scenario
if {fault!r}:
    FAULTS[{fault!r}]()
asks = "aliyun.com/gpu-mem", 70
actions = (
    Action(1.0, "forget_asked_pod", ({is_of_job},)),
    Action(2.0, *{first}),
    Action(4.0, "create_pod", (*asks, 0, 1)),
    Action(4.5, "create_pod", (*asks, 0, 1)),
)
scenario = Scenario(1, ("1.36",), 2, "share", True, 10.0, actions)
# pytest's own folders are too long for the sockets in them.
with TemporaryDirectory() as folder:
    outcome = play(scenario, Path(folder))
print(*outcome.story, sep="\\n")
"""
JOB = ("create_gang", ("aliyun.com/gpu-mem", 70, 2, 0.0))
POD = ("create_pod", ("aliyun.com/gpu-mem", 70, 0, 1))


@pytest.mark.parametrize(
    "seed", [*range(16), *range(MORE_SEEDS, MORE_SEEDS + 22), *range(SCHEDULING_SEEDS, SCHEDULING_SEEDS + 40)]
)
def test_a_staged_world_is_drawn_from_its_seed_alone_and_has_actions_of_a_world(seed):
    scenario = draw_staged_world(seed)
    assert scenario == draw_staged_world(seed)
    assert list(scenario.actions) == sorted(scenario.actions, key=lambda action: action.at)
    for action in scenario.actions:
        assert hasattr(World, action.kind) or hasattr(JobControllers, action.kind), action


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ("", JOB),
        ("", POD),
        ("a_plan_outlives_its_end", JOB),
        ("a_reservation_outlives_its_end", POD),
    ],
)
def test_what_is_reserved_for_a_forgotten_pod_goes_to_others(fault, first):
    story = output_of(FORGETS.format(fault=fault, is_of_job=int(first is JOB), first=first))
    assert "does not come back to" in story
    assert ("BROKEN" in story) is bool(fault), story
