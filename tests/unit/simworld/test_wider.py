"""Clocks that are set, slow disks, rights that are missing, and many nodes."""

from simworld.claim_scenario import draw_small_world, draw_world
from simworld.draw_wider import WIDER_SEEDS, with_many_nodes, with_wider_faults
from simworld.scenario import LATER_SEEDS, Action, Scenario, draw
from tests.unit.simworld.own_process import story_of

KINDS = {"step_clock", "slow_disk", "forbid"}
SEARCHED = 400
"""Seeds in which all kinds are looked for: about one large world of 100 has 50 nodes."""

ACTIONS = (
    Action(2.0, "step_clock", (0, 86400.0)),
    Action(2.0, "slow_disk", (0, 8.0, 20.0)),
    Action(3.0, "create_pod", ("aliyun.com/gpu-mem", 8, 0, 1)),
    Action(4.0, "forbid", ("list pods", 5.0)),
    Action(4.0, "restart_agent", (0, 0.5)),
    Action(6.0, "create_pod", ("aliyun.com/gpu-mem", 8, 0, 1)),
)
PLAY = Scenario(1, ("1.36",) * 5, 1, "share", True, 12.0, ACTIONS)


def test_a_world_with_such_faults_and_five_nodes_breaks_no_promise():
    told = story_of(PLAY)
    assert "has its clock set by +86400 s" in told
    assert "takes up to 8 s for each write to its disk, for 20 s" in told
    assert "forbids to list pods for 5 s" in told
    assert "started pod-1/main-0" in told
    assert "node-5 kubelet     started probe-" in told
    assert "BROKEN" not in told


def test_the_worlds_of_former_seeds_stay_as_they_are():
    for seed in (1, 158, LATER_SEEDS, WIDER_SEEDS - 1):
        scenario = draw(seed)
        assert with_wider_faults(scenario) is scenario
        assert with_many_nodes(scenario) is scenario


def test_later_seeds_have_each_kind_of_fault_and_up_to_fifty_nodes():
    seeds = range(WIDER_SEEDS, WIDER_SEEDS + SEARCHED)
    drawn = [*map(draw_world, seeds), *map(draw_small_world, seeds)]
    kinds = {action.kind for scenario in drawn for action in scenario.actions}
    assert kinds >= KINDS
    assert max(len(scenario.nodes) for scenario in drawn) == 50


def test_many_nodes_have_pods_for_them():
    seeds = range(WIDER_SEEDS, WIDER_SEEDS + SEARCHED)
    large = next(scenario for scenario in map(draw_world, seeds) if len(scenario.nodes) == 50)
    plain = draw(large.seed)
    assert len(large.actions) > len([action for action in plain.actions if action.at < large.lasts_s])
    assert list(large.actions) == sorted(large.actions, key=lambda action: action.at)
