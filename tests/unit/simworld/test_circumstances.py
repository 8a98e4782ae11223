"""Gates that go off, slices that come late, containers that end slowly, fences and reboots, in worlds with claims."""

from simworld.claim_scenario import draw_small_world, draw_world
from simworld.draw_circumstances import (
    CIRCUMSTANCE_SEEDS,
    CLASS_SEEDS,
    TAINTS_GATE,
    with_circumstance,
    with_pods_by_class,
)
from simworld.draw_wider import WIDER_SEEDS
from simworld.scenario import Action, Scenario
from tests.unit.simworld.own_process import story_of

KINDS = {"turn_gate_off", "delay_slices", "end_slowly", "fence_gpu", "reboot_node"}
SEARCHED = 60
"""Seeds in which all kinds are looked for: one of three worlds has claims, and one of four circumstances."""

SHARE = ("gpu-share.gpuagent.io", 1, 8, 1)
ACTIONS = (
    Action(0.0, "end_slowly"),
    Action(1.0, "create_claim_pod", SHARE),
    Action(4.0, "fence_gpu", (0, 0)),
    Action(5.0, "delay_slices", (5.0, 10.0)),
    Action(16.0, "reboot_node", (0, 1.0)),
    Action(17.0, "turn_gate_off", ("DRADeviceTaints",)),
    Action(18.0, "break_gpu", (0, 1, 0)),
    Action(22.0, "create_claim_pod", SHARE),
)
PLAY = Scenario(1, ("1.36",), 3, "dra", True, 30.0, ACTIONS, has_claims=True)


def test_a_world_with_all_of_them_breaks_no_promise():
    told = story_of(PLAY)
    assert "operator           fences GPU 0 of node-1" in told
    assert "follows slices up to 5 s late, for 10 s" in told
    assert "node-1             boots, which takes 1 s" in told
    assert "starts again with DRADeviceTaints off" in told
    assert told.count("started claim-pod-1/main-0") == 2, "before and after the reboot"
    assert "started claim-pod-2/main-0" in told
    assert "BROKEN" not in told


def test_the_worlds_of_former_seeds_stay_as_they_are():
    for seed in range(WIDER_SEEDS, WIDER_SEEDS + 20):
        scenario = draw_small_world(seed)
        assert with_circumstance(scenario) is scenario


def test_later_worlds_with_claims_have_each_of_them_and_a_node_in_mode_dra():
    seeds = range(CIRCUMSTANCE_SEEDS, CIRCUMSTANCE_SEEDS + SEARCHED)
    drawn = [*map(draw_world, seeds), *map(draw_small_world, seeds)]
    with_claims = [scenario for scenario in drawn if scenario.has_claims]
    kinds = {action.kind for scenario in with_claims for action in scenario.actions}
    assert kinds >= KINDS
    assert all(scenario.mode == "dra" for scenario in with_claims)
    assert any(TAINTS_GATE in scenario.gates_off for scenario in with_claims)
    without_claims = [scenario for scenario in drawn if not scenario.has_claims]
    assert not any(action.kind in KINDS for scenario in without_claims for action in scenario.actions)


BY_CLASS_ACTIONS = (
    Action(1.0, "create_pod_by_class", (1, 2, 0.0)),
    Action(2.0, "create_pod_by_class", (2, 1, 3.0)),
    Action(4.0, "restart_agent", (0, 1.0)),
    Action(6.0, "restart_kubelet", (0, 1.0)),
    Action(10.0, "delete_claim_pod", (0, 0)),
)
BY_CLASS = Scenario(1, ("1.36",), 3, "dra", True, 14.0, BY_CLASS_ACTIONS, has_claims=True)


def test_pods_with_gpus_in_their_limits_get_a_claim_and_the_gpus_of_its_requests():
    told = story_of(BY_CLASS)
    assert "creates claim-pod-1 (" in told
    assert "2 x 1 aliyun.com/gpu by the class" in told
    assert "started claim-pod-1/main-0: nothing on GPU-" in told
    assert "started claim-pod-1/main-1: nothing on GPU-" in told
    # Three GPUs have no room for it before the first pod is gone.
    assert told.index("ended claim-pod-1") < told.index("started claim-pod-2/main-0")
    assert "BROKEN" not in told


def test_newest_worlds_with_claims_have_pods_that_get_a_claim_for_their_limits():
    seeds = range(CLASS_SEEDS, CLASS_SEEDS + 20)
    with_claims = [scenario for scenario in map(draw_small_world, seeds) if scenario.has_claims]
    kinds = {action.kind for scenario in with_claims for action in scenario.actions}
    assert "create_pod_by_class" in kinds
    for seed in range(CIRCUMSTANCE_SEEDS, CIRCUMSTANCE_SEEDS + 20):
        scenario = draw_small_world(seed)
        assert with_pods_by_class(scenario) is scenario
