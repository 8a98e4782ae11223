"""More of what people do with ResourceClaims, in worlds of later seeds: see `claim_shapes`."""

import random
from collections.abc import Sequence
from dataclasses import replace

from simworld.claim_shapes import LINKED_SHAPES, MONITOR, SHAPES
from simworld.scenario import LATER_SEEDS, NEWEST_SEEDS, Action, Args, Maker, Scenario, add_actions, with_more

GIB = (1, 4, 8, 30, 40)
CORES = (0, 0, 10, 30, 60, 100)
SHARED_CLAIM = 2
"""Number of the claim with two shares that pods have together."""
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
    with_shapes = replace(with_more(scenario, more), isolates=isolates)
    return _with_linked_gpus(_with_shared_claims(with_shapes), is_small=is_small)


def _with_shared_claims(scenario: Scenario) -> Scenario:
    """The scenario with claims, in the newest seeds with monitors and with pods that share a claim; else as it is."""
    if scenario.seed < NEWEST_SEEDS:
        return scenario
    chance = random.Random(f"{scenario.seed}/shared claims")
    kinds: list[Maker] = [_pod_of_shared_claim, _pod_of_shared_claim]
    # Without consumable capacity, devices have no sharers, so nothing is there for a request that names such.
    if "DRAConsumableCapacity" not in scenario.gates_off:
        kinds.append(_pod_of((MONITOR,)))
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, chance.choice((0.1, 0.3)), kinds)
    add_actions(more, chance, scenario.lasts_s, 0.05, [_shared_claim_end])
    return with_more(scenario, more)


def _with_linked_gpus(scenario: Scenario, *, is_small: bool) -> Scenario:
    """The scenario with claims, in half of the newest seeds with linked GPUs and pods that want such; else as it is."""
    chance = random.Random(f"{scenario.seed}/linked GPUs")
    if scenario.seed < NEWEST_SEEDS or chance.random() < 0.5:
        return scenario
    shapes = chance.sample(LINKED_SHAPES, 3) if is_small else LINKED_SHAPES
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, chance.choice((0.2, 0.5, 1.2)), [_pod_of(shapes)])
    if chance.random() < 0.25:
        # A GPU is lost and stays lost, and so do its sets.
        lost_at = chance.random() * scenario.lasts_s
        which = chance.randrange(1000)
        more.append(Action(lost_at, "break_gpu", (0, which, 0)))
    gates_off = ("DRAPartitionableDevices",) if chance.random() < 0.15 else scenario.gates_off
    # Sets are there in mode dra only.
    mode = chance.choice(("dra", "dra", scenario.mode))
    linked = with_more(scenario, more)
    return replace(linked, gpus=LINKED_GPUS, mode=mode, has_links=True, gates_off=gates_off)


def _pod_of_shared_claim(chance: random.Random) -> tuple[str, Args]:
    return "create_pod_of_shared_claim", (SHARED_CLAIM, chance.choice(("first", "second")))


def _shared_claim_end(_chance: random.Random) -> tuple[str, Args]:
    return "delete_standing_claim", (SHARED_CLAIM,)


def _pod_of(shapes: Sequence[str]) -> Maker:
    def draw(chance: random.Random) -> tuple[str, Args]:
        shape = chance.choice(shapes)
        # Most end, so that others find room.
        ends_s = chance.choice((0.0, 0.5, 3.0, 20.0))
        return "create_shaped_claim_pod", (shape, chance.choice(GIB), chance.choice(CORES), ends_s)

    return draw
