"""The simulation itself fails: what is said, and what of the story is left."""

import subprocess
import sys

import pytest

from simworld.scenario import Action, Scenario
from simworld.totals import Totals
from tests.unit.simworld.own_process import output_of

PLAY = """
import select
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld import checker, play
from simworld.parts.node import SimulatedKubelet
from simworld.scenario import Action, Scenario
from simworld.world import World

def waits(self, *_):
    select.epoll().poll(1000)

def fails(*_):
    raise KeyError("a fault of the simulation")

where = {where!r}
if where == "waits":
    play.IDLE_S = 1.0
    World.drop_watches = waits
elif where == "checker":
    checker.check_quiet = fails
elif where == "stand-in":
    SimulatedKubelet._admit = fails
actions = (Action(3.0, "create_pod", ("aliyun.com/gpu-mem", 1, 0, 1)), Action(5.0, "drop_watches"))
scenario = Scenario(1, ("1.36",), 1, "share", False, 8.0, actions)
with TemporaryDirectory(dir="/dev/shm") as folder:
    outcome = play.Fork(scenario, Path(folder)).outcome()
print(outcome.broken[0])
print(*outcome.story, sep="\\n")
"""


@pytest.mark.parametrize(
    ("where", "said", "has_story"),
    [
        ("waits", "it did nothing for 1 s: it waits for something outside of the simulation", False),
        ("checker", "the simulation failed: KeyError: 'a fault of the simulation'", True),
        ("stand-in", "thread standin-pods of node-1 kubelet ended: KeyError: 'a fault of the simulation'", True),
    ],
)
def test_a_failure_of_the_simulation_is_told_as_one(where, said, has_story):
    first, *story = output_of(PLAY.format(where=where)).splitlines()
    assert said in first
    assert ("creates pod-1" in "\n".join(story)) is has_story


def run(module, *arguments):
    """How `python -m` of a module ends."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_faults_are_counted_without_what_people_and_controllers_do():
    kinds = ("create_pod", "create_claim_pod", "create_workload", "use_one_loop", "restart_agent", "step_clock")
    actions = tuple(Action(float(at), kind) for at, kind in enumerate(kinds))
    totals = Totals(1)
    totals.add(Scenario(1, ("1.36",), 1, "share", False, 8.0, actions), turns=1, starts=1, virtual_s=1.0)
    assert totals.faults == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--jobs", "0", "--seeds", "1"), "0 is not a whole number of at least 1"),
        (("--keep", "name", "--seeds", "1"), "--keep keeps the scenario of one seed: give --seed, too"),
        (("--put-back", "nothing", "--seeds", "1"), "there is no such fault, see --put-back list"),
        (("--scenario", "/nowhere.json"), "there is no such file"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(arguments, said):
    done = run("simworld", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--depth", "0"), "0 is not a whole number of at least 1"),
        (("--pods", "3,x"), "x is not a whole number of at least 1"),
        (("--nodes", "0"), "0 is not a whole number of at least 1"),
        (("--put-back", "nothing"), "there is no such fault, see --put-back list"),
    ],
)
def test_small_worlds_that_cannot_be_are_refused_in_words(arguments, said):
    done = run("simworld.small", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
