"""Pods with init containers and sidecars, in small worlds of later seeds."""

import random

from simworld.history import WHOLE
from simworld.scenario import LATER_SEEDS, Action, Args, Maker, Scenario, add_actions, with_more
from simworld.swarm import SIZES, Wants

SHARE = 0.5
"""How many of the worlds have such pods."""
LARGER_BY = 20
"""Units by which an init container is larger than the container after it."""
MOST_UNITS = 79
FIRST_WITH_SIDECARS = 29
"""Minor version of the first kubelet that knows sidecars."""


def with_init_containers(scenario: Scenario) -> Scenario:
    """The small world, with such pods if it has no claims, no jobs that wait for places, and a later seed."""
    chance = random.Random(f"{scenario.seed}/init containers of pods")
    if scenario.seed < LATER_SEEDS or scenario.has_claims or chance.random() >= SHARE:
        return scenario
    knows_sidecars = all(_minor(version) >= FIRST_WITH_SIDECARS for version in scenario.nodes)
    more: list[Action] = []
    wants = Wants(scenario.mode, chance.choice(SIZES))
    maker = _pod_with_init(wants, has_sidecars=knows_sidecars)
    add_actions(more, chance, scenario.lasts_s, chance.choice((8, 16)) / scenario.lasts_s, [maker])
    return with_more(scenario, more)


def _pod_with_init(wants: Wants, *, has_sidecars: bool) -> Maker:
    def draw(chance: random.Random) -> tuple[str, Args]:
        resource, amount, cores = wants.wanted(chance)
        least = max(1, amount // 2)
        init_amount = chance.choice((amount, least))
        # Kubelet keeps what nothing reuses until the pod ends.
        if chance.random() < 0.5:
            init_amount = amount + 1 if resource == WHOLE else min(amount + LARGER_BY, MOST_UNITS)
        sidecar_amount = 0
        if has_sidecars and not cores:
            sidecar_amount = chance.choice((0, 1))
            init_amount = chance.choice((0, init_amount)) if sidecar_amount else init_amount
        return "create_init_pod", (
            resource,
            amount,
            cores,
            init_amount,
            sidecar_amount,
            chance.choice((0.0, 3.0, 20.0)),
        )

    return draw


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
