"""Circumstances that are rare in other worlds with claims: each world of a later seed has one of them, and often.

A feature gate is off while GPUs are lost, slices come late to the scheduler, containers end slowly while GPUs are lost,
or nodes boot again while GPUs are fenced.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from simworld.claim_shapes import SHARE_CLASS, WHOLE_CLASS
from simworld.scenario import Action, Args, Scenario, add_actions, with_more

CIRCUMSTANCE_SEEDS = 4_000_000
"""Seeds from this one on draw all of this. The worlds of those below stay as they are."""
CLASS_SEEDS = 5_000_000
"""Seeds from this one on draw also pods whose extended resources a DeviceClass serves."""
TAINTS_GATE = "DRADeviceTaints"
LATE_S = (2.0, 5.0, 8.0)
"""How late slices come at most. The agent counts on a scheduler that knows of them within 10 s."""
AWAY_S = (0.5, 3.0, 10.0)
"""How long a node takes to boot."""


def with_circumstance(scenario: Scenario) -> Scenario:
    """The scenario, in worlds with claims of later seeds with one of these circumstances; else as it is."""
    if not scenario.has_claims or scenario.seed < CIRCUMSTANCE_SEEDS:
        return scenario
    chance = random.Random(f"{scenario.seed}/circumstance of claims")
    circumstance = chance.choice(_CIRCUMSTANCES)
    # In other modes, the node publishes nothing.
    return circumstance(replace(scenario, mode="dra"), chance)


def with_pods_by_class(scenario: Scenario) -> Scenario:
    """The scenario, in worlds with claims of the newest seeds with pods that get a claim for whole GPUs in limits."""
    if not scenario.has_claims or scenario.seed < CLASS_SEEDS:
        return scenario
    chance = random.Random(f"{scenario.seed}/pods by class")
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, chance.choice((0.2, 0.5, 1.0)), [_pod_by_class])
    return with_more(scenario, more)


def _gate_that_is_off(scenario: Scenario, chance: random.Random) -> Scenario:
    """The API server keeps no taints, from the beginning or from some moment on, and GPUs are lost for good."""
    half_s = scenario.lasts_s / 2
    more: list[Action] = []
    for _ in range(chance.choice((1, 1, 2))):
        lost_at = half_s + chance.random() * half_s
        more.append(Action(lost_at, *_lost_for_good(chance)))
    if chance.random() < 0.5:
        gates_off = (*scenario.gates_off, TAINTS_GATE)
        scenario = replace(scenario, gates_off=tuple(dict.fromkeys(gates_off)))
    else:
        more.append(Action(chance.random() * half_s, "turn_gate_off", (TAINTS_GATE,)))
    return with_more(scenario, more)


def _slices_that_come_late(scenario: Scenario, chance: random.Random) -> Scenario:
    """The scheduler follows slices late. Meanwhile GPUs are lost, and kubelets wipe the slices when they start."""
    more: list[Action] = []
    rate = chance.choice((3, 6)) / scenario.lasts_s
    add_actions(more, chance, scenario.lasts_s, rate, [_late_slices])
    add_actions(more, chance, scenario.lasts_s, rate, [_lost_for_a_while, _kubelet_restart, _slow_agents])
    return with_more(scenario, more)


def _containers_that_end_slowly(scenario: Scenario, chance: random.Random) -> Scenario:
    """Claims wait for GPUs whose former pods were deleted by force and still end. Meanwhile GPUs are lost."""
    more = [Action(0.0, "end_slowly")]
    rate = chance.choice((0.4, 0.8))
    add_actions(more, chance, scenario.lasts_s, rate, [_whole_pod, _whole_pod, _forced_deletion, _name_again])
    for _ in range(3):
        deleted_at = chance.random() * scenario.lasts_s
        more.append(Action(deleted_at, *_forced_deletion(chance)))
        more.append(Action(deleted_at + 2.0, *_lost_for_a_while(chance)))
    # Of many GPUs, the one that is lost is seldom the one for which a claim waits.
    gpus = scenario.gpus if scenario.has_links else 1
    return with_more(replace(scenario, gpus=gpus), more)


def _nodes_that_boot(scenario: Scenario, chance: random.Random) -> Scenario:
    """Nodes boot while GPUs are fenced: pods that ran go on with these GPUs, and new pods do not get them."""
    # All pods run by claims, so no GPU that is fenced is missed in the amounts of another mode.
    in_one_mode = [action for action in scenario.actions if action.kind != "set_mode"]
    more: list[Action] = []
    half_s = scenario.lasts_s / 2
    add_actions(more, chance, half_s, 0.3, [_share_pod])
    for _ in range(chance.choice((2, 4))):
        at = half_s * (1 + chance.random() / 2)
        more.append(Action(at, *_fence(chance)))
    for _ in range(chance.choice((1, 2))):
        at = half_s * (1.5 + chance.random() / 2)
        more.append(Action(at, *_boot(chance)))
    return with_more(replace(scenario, actions=tuple(in_one_mode)), more)


def _late_slices(chance: random.Random) -> tuple[str, Args]:
    return "delay_slices", (chance.choice(LATE_S), chance.choice((10.0, 20.0)))


def _slow_agents(chance: random.Random) -> tuple[str, Args]:
    return "slow_agents", (chance.choice((0.5, 2.0)), chance.choice((5.0, 15.0)))


def _kubelet_restart(chance: random.Random) -> tuple[str, Args]:
    return "restart_kubelet", (chance.randrange(1000), chance.choice((0.0, 0.05, 8.0)))


def _lost_for_a_while(chance: random.Random) -> tuple[str, Args]:
    return "lose_gpu", (chance.randrange(1000), chance.randrange(1000), 0)


def _lost_for_good(chance: random.Random) -> tuple[str, Args]:
    return "break_gpu", (chance.randrange(1000), chance.randrange(1000), 0)


def _whole_pod(chance: random.Random) -> tuple[str, Args]:
    return "create_claim_job_pod", (WHOLE_CLASS, chance.choice((1, 1, 2)), 0, chance.choice((3.0, 20.0)))


def _pod_by_class(chance: random.Random) -> tuple[str, Args]:
    gpus = chance.choice((1, 1, 2))
    containers = chance.choice((1, 1, 2))
    lives_s = chance.choice((0.0, 3.0, 20.0))
    return "create_pod_by_class", (gpus, containers, lives_s)


def _share_pod(chance: random.Random) -> tuple[str, Args]:
    return "create_claim_pod", (SHARE_CLASS, 1, chance.choice((1, 8)), 1)


def _forced_deletion(chance: random.Random) -> tuple[str, Args]:
    return "delete_claim_pod", (chance.randrange(1000), 0)


def _name_again(chance: random.Random) -> tuple[str, Args]:
    device_class, gib = chance.choice(((WHOLE_CLASS, 0), (SHARE_CLASS, 50)))
    return "replace_by_claim_pod", (chance.randrange(1000), device_class, 1, gib)


def _fence(chance: random.Random) -> tuple[str, Args]:
    return "fence_gpu", (chance.randrange(1000), chance.randrange(1000))


def _boot(chance: random.Random) -> tuple[str, Args]:
    return "reboot_node", (chance.randrange(1000), chance.choice(AWAY_S))


_Circumstance = Callable[[Scenario, random.Random], Scenario]
_CIRCUMSTANCES: tuple[_Circumstance, ...] = (
    _gate_that_is_off,
    _slices_that_come_late,
    _containers_that_end_slowly,
    _nodes_that_boot,
)
