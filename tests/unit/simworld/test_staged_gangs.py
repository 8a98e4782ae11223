"""Staged worlds of gangs: what is drawn, and that their circumstances show the faults that need them."""

import pytest

from simworld.parts.job_controllers import JobControllers
from simworld.staged_gangs import draw_staged_gangs
from simworld.world import World
from tests.unit.simworld.own_process import story_of


@pytest.mark.parametrize("seed", range(14))
def test_a_world_is_drawn_from_its_seed_alone_and_has_actions_of_a_world(seed):
    scenario = draw_staged_gangs(seed)
    assert scenario == draw_staged_gangs(seed)
    assert list(scenario.actions) == sorted(scenario.actions, key=lambda action: action.at)
    for action in scenario.actions:
        assert hasattr(World, action.kind) or hasattr(JobControllers, action.kind), action


@pytest.mark.parametrize(
    ("fault", "seed", "said"),
    [
        ("g1_gated_pods_are_there", 2, "which has a scheduling gate"),
        ("g2_nominations_of_gated_pods_stay", 2, "is nominated for"),
        ("g3_a_tenant_holds_gpus_with_jobs_that_cannot_start", 1, "which cannot start"),
        ("gpuscheduler_reads_the_first_page_of_a_list", 27, "is bound to pods of"),
        ("pods_nobody_asked_about_are_planned", 1, "and kube-scheduler has not asked about it"),
        ("j4_members_that_have_succeeded_are_missed", 3, "waits, and node-1 has room for it"),
        ("jobs_of_all_namespaces_are_one", 4, "and of its job team/"),
    ],
)
def test_a_world_shows_the_fault_that_needs_its_circumstance(fault, seed, said):
    story = story_of(draw_staged_gangs(seed), fault, ends_when_broken=True)
    broken = [line for line in story.splitlines() if "BROKEN" in line]
    assert any(said in line for line in broken)
