"""Worlds with jobs of controllers and Kueue."""

import pytest

from simworld.draw_jobs import draw_jobs
from simworld.history import MEMORY
from simworld.scenario import Action, Scenario
from tests.unit.simworld.own_process import story_of
from tests.unit.simworld.test_worlds import simulate

SEED = "1019"
"""One node, several jobs, and some of them are admitted."""


def play_one_job(fault, *, gated, admitted_after_s, is_possible):
    """The story of a job of two pods on one node, and what it broke."""
    job = (MEMORY, 8, 2, gated, admitted_after_s, 1, 0, is_possible, "default")
    return story_of(Scenario(1, ("1.36",), 2, "share", True, 40.0, (Action(5.0, "create_workload", job),)), fault)


def test_a_world_with_jobs_of_kueue_is_played_the_same_twice():
    first, second = (simulate("--seed", SEED, "--tries", "0") for _ in range(2))
    assert first == second
    status, story = first
    assert status == 0
    assert "lifts the gate of" in story


def test_nothing_is_held_until_kueue_admits_a_job_and_then_it_runs():
    story = play_one_job("", gated=2, admitted_after_s=20.0, is_possible=1)
    assert "BROKEN" not in story
    assert story.index("kueue              admits work-1") < story.index("bound work-1-0")
    assert "started work-1-1/main-0" in story


@pytest.mark.parametrize(
    ("fault", "gated", "is_possible", "told"),
    [
        ("g1_gated_pods_are_there", 2, 1, "GPUs are reserved for work-1-0, which has a scheduling gate"),
        ("g3_a_tenant_holds_gpus_with_jobs_that_cannot_start", 0, 0, "and kube-scheduler has not asked about it"),
        ("pods_nobody_asked_about_are_planned", 0, 0, "which cannot start"),
    ],
)
def test_gpus_for_jobs_that_cannot_start_are_found(fault, gated, is_possible, told):
    assert told in play_one_job(fault, gated=gated, admitted_after_s=-1.0, is_possible=is_possible)


def test_jobs_are_drawn_from_their_seed_alone():
    assert draw_jobs(1019, "topology", 40.0) == draw_jobs(1019, "topology", 40.0)
    assert draw_jobs(1019, "topology", 40.0) != draw_jobs(1020, "topology", 40.0)
