"""More of what people do with ResourceClaims, in worlds of later seeds: see `claim_shapes`."""

import random
from collections.abc import Sequence
from dataclasses import replace

from simworld.claim_shapes import LINKED_SHAPES, SHAPES
from simworld.scenario import LATER_SEEDS, NEWEST_SEEDS, Action, Args, Maker, Scenario, add_actions

GIB = (1, 4, 8, 30, 40)
CORES = (0, 0, 10, 30, 60, 100)
LINKED_GPUS = 4
"""GPUs of each node where they are linked in pairs."""


def with_more_claims(scenario: Scenario, *, is_small: bool = False) -> Scenario:
    """The scenario with claims of more shapes, if it has claims and a later seed; else as it is."""
    if not scenario.has_claims or scenario.seed < LATER_SEEDS:
        return scenario
    chance = random.Random(f"{scenario.seed}/more claims")
    isolates = chance.random() < 0.5
    # In a small world, few kinds of things happen, and often.
    shapes = chance.sample(SHAPES, 3) if is_small else SHAPES
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, chance.choice((0.2, 0.5, 1.2)), [_pod_of(shapes)])
    actions = sorted([*scenario.actions, *more], key=lambda action: action.at)
    return _with_linked_gpus(replace(scenario, actions=tuple(actions), isolates=isolates), is_small=is_small)


def _with_linked_gpus(scenario: Scenario, *, is_small: bool) -> Scenario:
    """The scenario with claims, in half of the newest seeds with linked GPUs and pods that want such; else as it is."""
    chance = random.Random(f"{scenario.seed}/linked GPUs")
    if scenario.seed < NEWEST_SEEDS or chance.random() < 0.5:
        return scenario
    shapes = chance.sample(LINKED_SHAPES, 3) if is_small else LINKED_SHAPES
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, chance.choice((0.2, 0.5, 1.2)), [_pod_of(shapes)])
    actions = sorted([*scenario.actions, *more], key=lambda action: action.at)
    gates_off = ("DRAPartitionableDevices",) if chance.random() < 0.15 else scenario.gates_off
    # Sets are there in mode dra only.
    mode = chance.choice(("dra", "dra", scenario.mode))
    return replace(scenario, actions=tuple(actions), gpus=LINKED_GPUS, mode=mode, has_links=True, gates_off=gates_off)


def _pod_of(shapes: Sequence[str]) -> Maker:
    def draw(chance: random.Random) -> tuple[str, Args]:
        shape = chance.choice(shapes)
        # Most end, so that others find room.
        ends_s = chance.choice((0.0, 0.5, 3.0, 20.0))
        return "create_shaped_claim_pod", (shape, chance.choice(GIB), chance.choice(CORES), ends_s)

    return draw
