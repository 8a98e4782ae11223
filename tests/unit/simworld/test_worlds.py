"""Whole worlds, as `make simulate` plays them."""

import subprocess
import sys

from simworld.scenario import Action, Scenario, draw
from simworld.shrink import kind_of, shrunk


def simulate(*arguments):
    """Exit status and output of `python -m simworld`."""
    done = subprocess.run(
        [sys.executable, "-m", "simworld", *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


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
