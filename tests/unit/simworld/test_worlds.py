"""Whole worlds, as `make simulate` plays them."""

import subprocess
import sys

from simworld.scenario import Action, Scenario, draw
from simworld.shrink import kind_of, shrunk
from tests.unit.simworld.own_process import output_of


def simulate(*arguments):
    """Exit status and output of `python -m simworld`."""
    done = subprocess.run(
        [sys.executable, "-m", "simworld", *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


SLOW_MACHINE = """
import itertools
from pathlib import Path
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld import play
class Fork:
    def __init__(self, scenario, root):
        self.scenario = scenario
    def outcome(self):
        return play.Outcome(self.scenario.seed, (), turns=1, seconds=1.0, starts=1, story=())
play.Fork = Fork
an_hour_passes_at_each_look = itertools.count(0.0, 3600.0).__next__
totals = play.play_many(1, {seconds}, {most}, 2, Path("unused"), an_hour_passes_at_each_look)
"""


def test_a_number_of_seeds_is_played_however_slow_the_machine_is():
    """Else a busy machine would pass with a few of them."""
    assert "100 seeds from 1: 0 broken" in output_of(SLOW_MACHINE.format(seconds=None, most=100))


def test_no_seeds_begin_when_the_time_is_over():
    assert "2 seeds from 1: 0 broken" in output_of(SLOW_MACHINE.format(seconds=3.5 * 3600.0, most=None))


def test_a_number_of_seeds_has_no_time():
    refused = subprocess.run(
        [sys.executable, "-m", "simworld", "--seeds", "3", "--minutes", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "--minutes: not allowed with argument --seeds" in refused.stderr


def test_a_run_without_a_world_fails():
    status, said = simulate("--minutes", "0")
    assert status == 1
    assert "No world was played" in said


def test_a_seed_is_played_the_same_twice():
    first, second = (simulate("--seed", "3") for _ in range(2))
    assert first == second
    status, story = first
    assert status == 0
    assert "kubelet     started" in story


def test_a_fault_that_is_put_back_is_found_and_told_as_a_story():
    status, told = simulate(
        "--put-back", "annotations_are_never_written", "--first", "9", "--seeds", "30", "--jobs", "1"
    )
    assert status == 1
    assert "its annotation says" in told


def test_a_scenario_is_drawn_from_its_seed_alone():
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert list(draw(5).actions) == sorted(draw(5).actions, key=lambda action: action.at)


def test_a_failing_scenario_is_shrunk_to_what_matters():
    actions = tuple(Action(float(at), "create_pod", (at,)) for at in range(40))
    scenario = Scenario(1, ("1.36", "1.36", "1.30"), 2, "share", True, 60.0, actions)

    def fails(tried):
        ats = {action.at for action in tried.actions}
        return "pod-17 is lost" if {7.0, 23.0} <= ats else ""

    short = shrunk(scenario, fails, 200)
    assert [action.at for action in short.actions] == [7.0, 23.0]
    assert len(short.nodes) == 1


def test_promises_differ_by_their_words_and_not_by_names():
    first = kind_of("unit vmkdg4xz5x-mc-0 has two living containers: 9d247304-5fab-45fd-8864-db1d598eb82e and pod-3")
    second = kind_of("unit ab3dg4xz5y-mc-12 has two living containers: 1d247304-5fab-45fd-8864-db1d598eb82e and pod-14")
    assert first == second
    assert first != kind_of("pod-3 does not run")
