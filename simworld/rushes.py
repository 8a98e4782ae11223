"""Small worlds in which the agent starts again and again while pods are in admission and their names change hands.

What the agent makes of kubelet's calls before it has read its pods, or just afterwards, matters only if three things
happen within seconds. In other worlds they seldom do.
"""

import random

from simworld.scenario import VERSIONS, Action, Args, Maker, Scenario
from simworld.swarm import Wants, restart_slow_agent

SHARE = 0.125
"""How many of the small worlds are such worlds."""
RUSH_S = 14.0
"""From one rush to the next: about so long the requests of an agent are slow."""
RUSHES = 3
FIRST_RUSH_S = 12.0
"""A scheduler has decided on pods by then: on a node where none ever has, calls wait shorter for the list of pods."""
SIZES = ((8, 40), (20, 40), (30, 40), (40,), (40, 70))
"""Units of a pod in a world."""


def has_rushes(seed: int) -> bool:
    """Whether the small world of a seed is such a world."""
    return random.Random(f"{seed}/rushes").random() < SHARE


def draw_rushes(seed: int) -> Scenario:
    """One node and some pods, and then one rush after the other."""
    chance = random.Random(f"{seed}/rush world")
    mode = chance.choice(("share", "share", "cgpu", "topology", "core_mem"))
    wants = Wants(mode, chance.choice(SIZES))
    # Pods whose names and GPUs others get.
    first_pods = [Action(0.1, *wants.pod(chance)) for _ in range(4)]
    # What is deleted and created during an admission comes to a real kubelet afterwards.
    actions = [Action(0.0, "use_one_loop"), *first_pods]
    for number in range(RUSHES):
        actions += _rush(chance, wants, FIRST_RUSH_S + number * RUSH_S)
    actions.sort(key=lambda action: action.at)
    return Scenario(
        seed=seed,
        nodes=(chance.choice(VERSIONS),),
        gpus=chance.choice((2, 4, 4)),
        mode=mode,
        decides=True,
        lasts_s=FIRST_RUSH_S + RUSHES * RUSH_S,
        actions=tuple(actions),
    )


def _rush(chance: random.Random, wants: Wants, at: float) -> list[Action]:
    """A slow start of the agent, and what comes while it has not read its pods; then some pods make room."""
    actions = [Action(at, *restart_slow_agent(chance))]
    kinds: list[Maker] = [wants.pod, wants.pod_that_ends, wants.gang, wants.name_of_a_running_pod, _forced_deletion]
    for _ in range(chance.choice((4, 6, 10))):
        kind = chance.choice(kinds)
        actions.append(Action(at + chance.random() * 5.0, *kind(chance)))
    deletions = [Action(at + 10.0 + chance.random(), *_forced_deletion(chance)) for _ in range(4)]
    return [*actions, *deletions]


def _forced_deletion(chance: random.Random) -> tuple[str, Args]:
    return "delete_pod", (chance.randrange(1000), 0)
