"""An extender that crashes beside a kube-scheduler that goes on."""

import pytest

from simworld.claim_scenario import draw_world, with_claims
from simworld.history import MEMORY
from simworld.scenario import POINTS, Action, Scenario, draw
from tests.unit.simworld.own_process import story_of


@pytest.mark.parametrize("point", sorted(set(POINTS)))
def test_pods_run_although_the_extender_has_crashed(point):
    actions = (
        Action(1.0, "strike_extender", (point, 1, 4.0)),
        Action(5.0, "create_gang", (MEMORY, 70, 2, 0.1)),
        Action(5.0, "create_pod", (MEMORY, 8, 0, 1)),
    )
    story = story_of(Scenario(1, ("1.36",), 4, "share", True, 30.0, actions))
    assert "BROKEN" not in story
    _, afterwards = story.split(f"{point}: its extender is killed, for 4 s")
    # The next one has read all, and goes on.
    assert "gpu-scheduler      bound" in afterwards
    for pod in ("job-1-0", "job-1-1", "pod-1"):
        assert f"started {pod}/main-0" in story


def test_many_worlds_with_the_core_alone_have_strikes_and_no_others():
    worlds = [draw_world(seed) for seed in range(1, 101)]
    with_core = [world for world in worlds if world.decides and not world.replicas and not world.has_claims]
    struck = [world for world in worlds if any(action.kind == "strike_extender" for action in world.actions)]
    assert len(struck) > len(with_core) / 3
    assert all(world in with_core for world in struck)


def test_strikes_leave_the_rest_of_a_scenario_as_it_was():
    """What a seed meant before has to stay: the strikes come from a stream of randomness of their own."""
    for seed in range(1, 31):
        former = with_claims(draw(seed))
        others = [action for action in draw_world(seed).actions if action.kind != "strike_extender"]
        assert others == list(former.actions)
