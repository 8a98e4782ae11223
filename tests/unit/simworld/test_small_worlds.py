"""Small worlds: the searches end, hold for the product, and find faults that are put back."""

import subprocess
import sys

import pytest

from simworld.small import faults
from simworld.small.canonical import EARLIEST, renamed, text_of, with_moments
from simworld.small.copies import copied
from simworld.small.faults import FAULTS
from simworld.small.model import Scope, World, first_world
from simworld.small.search import search

ONE_POD = Scope(nodes=2, gpus=1, pods=(3,), crashes=0, ends=1, slow=0)
TWO_PODS = Scope(nodes=1, gpus=1, pods=(3, 3), crashes=0, ends=0, slow=0, begins="waiting")


def small(*arguments):
    """Exit status and output of `python -m simworld.small`."""
    done = subprocess.run(
        [sys.executable, "-m", "simworld.small", *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("scope", [ONE_POD, TWO_PODS], ids=["one pod", "two pods for one GPU"])
def test_every_order_of_a_small_world_keeps_the_promises(scope):
    result = search(scope, depth=100)
    assert not result.broken, "\n".join([*result.story, *result.broken])
    assert result.complete
    assert result.quiet > 1
    assert result.transitions == result.states - 1 + result.merged


def test_a_crash_in_every_place_keeps_the_promises():
    result = search(Scope(nodes=1, gpus=2, pods=(3, 3), begins="running", ends=0), depth=7)
    assert not result.broken, "\n".join([*result.story, *result.broken])
    assert result.depth == 7


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(name, monkeypatch):
    fault = FAULTS[name]
    monkeypatch.setattr(faults, "put", monkeypatch.setattr)
    fault.put_back()
    result = search(fault.scope, depth=30)
    assert result.broken, result
    assert result.story


def test_the_way_to_a_fault_is_told_and_is_a_shortest_one():
    """A decision for the second pod is not followed: both come, each is asked about, one is bound and admitted."""
    status, text = small("--put-back", "the_agent_follows_no_decision")
    assert status == 1
    story = text.partition("BROKEN after 8 events")[2].splitlines()
    assert story[-2].endswith("kubelet allocates for u1z"), text
    assert story[-1] == "u1z got GPU [0] of n0z, and the scheduler decided GPU 1"


def test_a_copy_of_a_world_changes_alone():
    world = first_world(Scope(nodes=1, pods=(3,), begins="waiting"))
    before = world.keys()
    for _ in range(4):
        moves = list(world.moves())
        after = world.after(moves[0])
        assert after.keys() != before
        assert world.keys() == before
        world = after
        before = world.keys()


def test_worlds_that_differ_in_names_only_are_one():
    world = World(Scope(nodes=2, gpus=1, pods=(3, 3)))
    crashes = [world.after(move) for move in world.moves() if move.what.endswith("the agent crashes")]
    first, second = crashes
    assert first.keys()[0] != second.keys()[0]
    assert first.keys()[1] == second.keys()[1]


def test_names_change_places():
    assert renamed("a1 b1 a1", {"a1": "b1", "b1": "a1"}) == "b1 a1 b1"


def test_moments_count_by_their_order_and_their_distance():
    def text(*moments):
        return with_moments(text_of([EARLIEST + moment for moment in moments]), EARLIEST)

    assert text(0.001, 30.0) == text(0.002, 30.1)
    assert text(0.001, 30.0) != text(0.001, 60.0)
    assert text(0.001, 0.002) != text(0.002, 0.001)


def test_a_function_that_remembers_a_part_of_a_core_is_not_copied():
    kept = []
    with pytest.raises(TypeError, match="remembers a part of the core"):
        copied([kept, lambda: kept])
