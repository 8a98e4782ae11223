"""Isolation drivers that fail, in worlds of later seeds: no container with a share may start without its limit.

The driver is `limits`. Its helper answers late, is away for a while, ends beside an answer, or is refused by NVIDIA's
driver. Modes that need another isolation driver have nothing on such nodes, and say so.
"""

import random
from dataclasses import replace

from simworld.scenario import Action, Args, Scenario, add_actions, with_more

ISOLATED_SEEDS = 6_000_000
"""Seeds from this one on draw all of this. The worlds of those below stay as they are."""
SHARE = 0.75
"""How many of the worlds have it whose pods ask for memory alone: in other modes, `limits` alone isolates nothing."""
MOST_NODES = 3
MODES = ("share", "cgpu")
BACKENDS = ("dmem", "misc")
AWAY_S = (0.0, 0.05, 1.0, 8.0, 25.0)
LATE_S = (0.5, 3.0, 8.0)
"""How late answers come at most. Agents wait for 5 s."""
AT_ANSWER = ("helper answered", "helper carried out", "agent answered", "kubelet answered")
"""Who ends beside an answer, and whether the answer was sent."""


def with_isolation(scenario: Scenario) -> Scenario:
    """The scenario, in many worlds without claims of later seeds with such a driver; else as it is."""
    chance = random.Random(f"{scenario.seed}/isolation")
    is_possible = not scenario.has_claims and scenario.mode in MODES and len(scenario.nodes) <= MOST_NODES
    if scenario.seed < ISOLATED_SEEDS or not is_possible or chance.random() >= SHARE:
        return scenario
    more: list[Action] = []
    rate = chance.choice((0, 3, 6, 12)) / scenario.lasts_s
    add_actions(more, chance, scenario.lasts_s, rate, [_restart, _slow, _refusal, _strike, _strike])
    isolated = replace(scenario, mode="cgpu", limits=chance.choice(BACKENDS))
    return with_more(isolated, more)


def _restart(chance: random.Random) -> tuple[str, Args]:
    return "restart_limits", (chance.randrange(1000), chance.choice(AWAY_S))


def _slow(chance: random.Random) -> tuple[str, Args]:
    return "slow_limits", (chance.randrange(1000), chance.choice(LATE_S), chance.choice((5.0, 20.0)))


def _refusal(chance: random.Random) -> tuple[str, Args]:
    return "refuse_limits", (chance.randrange(1000), chance.choice((0.5, 5.0, 20.0)))


def _strike(chance: random.Random) -> tuple[str, Args]:
    return "strike_limits", (
        chance.randrange(1000),
        chance.choice((1, 1, 2, 3)),
        chance.choice(AT_ANSWER),
        chance.choice((0.05, 1.0, 8.0)),
    )
