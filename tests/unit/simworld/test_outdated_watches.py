"""Watches of an agent that end, and cannot go on because what they have missed is forgotten."""

import pytest

from simworld.history import MEMORY
from simworld.scenario import Action, Scenario
from tests.unit.simworld.own_process import story_of


@pytest.mark.parametrize(
    ("fault", "are_broken"),
    [
        ("", 0),
        ("", 1),
        ("an_outdated_watch_goes_on_from_now", 0),
        ("a_new_list_adds_to_the_former_one", 1),
    ],
)
def test_an_agent_forgets_a_pod_whose_deletion_no_watch_has_shown(fault, are_broken):
    actions = (
        Action(5.0, "create_pod", (MEMORY, 8, 0, 1)),
        Action(8.0, "outdate_watches", (1.0, are_broken)),
        Action(8.5, "delete_pod", (0, 0)),
    )
    story = story_of(Scenario(1, ("1.36",), 1, "share", False, 10.0, actions), fault)
    assert "deletes pod-1 by force" in story
    assert ("the agent knows of pod-1, which is gone" in story) is bool(fault)
