"""Staged worlds of admissions: what is drawn, and that their circumstances show the faults that need them."""

import pytest

from simworld.staged_admissions import draw_staged_admissions
from simworld.world import World
from tests.unit.simworld.own_process import story_of


@pytest.mark.parametrize("seed", range(14))
def test_a_world_is_drawn_from_its_seed_alone_and_has_actions_of_a_world(seed):
    scenario = draw_staged_admissions(seed)
    assert scenario == draw_staged_admissions(seed)
    assert list(scenario.actions) == sorted(scenario.actions, key=lambda action: action.at)
    for action in scenario.actions:
        assert hasattr(World, action.kind), action


@pytest.mark.parametrize(
    ("fault", "seed", "said"),
    [
        ("ended_pods_hold_their_units", 1, "still has"),
        ("no_audit_after_a_switch", 0, "its usable GPUs have"),
        ("held_gpus_are_sold_in_another_mode", 16, "was sold in modes"),
        ("units_that_kubelet_offers_are_free", 3, "has two living containers"),
        ("units_of_unnamed_containers_are_nobodys", 6, "was refused, but no GPU of node-1 has more than"),
        ("units_leave_while_a_call_is_open", 7, "vanished from the list during Allocate"),
        ("the_first_of_several_listed_pods_asks", 4, "and the scheduler decided"),
        ("a_list_counts_from_its_end", 54, "free, of which others needed 0"),
        ("allocations_are_forgotten_before_they_are_read", 54, "free, of which others needed 0"),
        ("init_containers_are_listed_like_others", 12, "free, of which others needed 0"),
    ],
)
def test_a_world_shows_the_fault_that_needs_its_circumstance(fault, seed, said):
    story = story_of(draw_staged_admissions(seed), fault, ends_when_broken=True)
    broken = [line for line in story.splitlines() if "BROKEN" in line]
    assert any(said in line for line in broken)
