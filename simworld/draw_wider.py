"""Faults of machines and of rights, and clusters of many nodes, in worlds of later seeds.

Clocks are set, disks are slow, and the API server refuses to list, to watch or to write what it served before.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from simworld.scenario import VERSIONS, Action, Args, Maker, Scenario, add_actions, with_more

WIDER_SEEDS = 3_000_000
"""Seeds from this one on draw all of this. The worlds of those below stay as they are."""
FAULTY_SHARE = 0.5
MANY_NODES_SHARE = 0.15
NODES = (4, 6, 10, 20, 50)
"""How many nodes such a cluster has."""
SHORT_S = 30.0
"""How long a cluster of many nodes is busy: each agent takes a while to simulate."""
STEPS_S = (-86_400.0, -60.0, -3.0, 3.0, 60.0, 86_400.0)
"""By how much a clock is set."""
DISK_S = (0.05, 1.0, 8.0)
"""How long a write to a slow disk takes at most."""
FORBIDDEN = (
    "list pods",
    "watch pods",
    "get pods",
    "get nodes",
    "watch nodes",
    "patch nodes",
    "patch nodes/status",
    "create events",
    "patch configmaps",
)
"""Verb and resource that roles may lack for a while. Agents use all of these."""
FORBIDDEN_OF_CLAIMS = ("get resourceclaims", "create resourceslices", "patch resourceslices", "list resourceslices")


def with_wider_faults(scenario: Scenario) -> Scenario:
    """The scenario, in half of the worlds of later seeds with these faults; else as it is."""
    chance = random.Random(f"{scenario.seed}/wider faults")
    if scenario.seed < WIDER_SEEDS or chance.random() >= FAULTY_SHARE:
        return scenario
    more: list[Action] = []
    rate = chance.choice((2, 4, 8)) / scenario.lasts_s
    forbidden = (*FORBIDDEN, *FORBIDDEN_OF_CLAIMS) if scenario.has_claims else FORBIDDEN
    add_actions(more, chance, scenario.lasts_s, rate, [_clock, _disk, _rights_of(forbidden)])
    return with_more(scenario, more)


def with_many_nodes(scenario: Scenario) -> Scenario:
    """The scenario, in some worlds of later seeds with up to 50 nodes, and with pods for them."""
    chance = random.Random(f"{scenario.seed}/many nodes")
    is_plain = not scenario.has_claims and not scenario.replicas
    if scenario.seed < WIDER_SEEDS or not is_plain or chance.random() >= MANY_NODES_SHARE:
        return scenario
    count = chance.choice(NODES)
    nodes = tuple(chance.choice(VERSIONS) for _ in range(count))
    # What is drawn for few nodes would leave most of them empty.
    early = [action for action in scenario.actions if action.at < SHORT_S]
    creations = [action for action in early if action.kind == "create_pod"]
    repeated = creations * (count // 4)
    more = [replace(action, at=chance.random() * SHORT_S) for action in repeated]
    lasts_s = min(scenario.lasts_s, SHORT_S)
    short = replace(scenario, nodes=nodes, lasts_s=lasts_s, actions=tuple(early))
    return with_more(short, more)


def _clock(chance: random.Random) -> tuple[str, Args]:
    return "step_clock", (chance.randrange(1000), chance.choice(STEPS_S))


def _disk(chance: random.Random) -> tuple[str, Args]:
    return "slow_disk", (chance.randrange(1000), chance.choice(DISK_S), chance.choice((5.0, 20.0)))


def _rights_of(forbidden: Sequence[str]) -> Maker:
    def make(chance: random.Random) -> tuple[str, Args]:
        right = chance.choice(forbidden)
        # What a Node does not say, no scheduler can know: it has to know of lost GPUs within 20 s.
        most_s = 5.0 if "nodes" in right else 30.0
        return "forbid", (right, chance.choice((0.5, 5.0, most_s)))

    return make
