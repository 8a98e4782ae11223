"""What staged worlds are made of: one node, and actions in the order of their times."""

import random
from collections.abc import Sequence

from simworld.history import MEMORY
from simworld.scenario import VERSIONS, Action, Args, Maker, Scenario

LASTS_S = 30.0
LEADS_AFTER_S = 10.0
"""When one of two replicas certainly leads."""
SIZES = (40, 70)
"""GiB of pods of which two, or one, fill a GPU."""


def staged(  # noqa: PLR0913 (the fields of a scenario)
    seed: int,
    chance: random.Random,
    *,
    gpus: int,
    mode: str,
    actions: Sequence[Action],
    versions: Sequence[str] = VERSIONS,
    decides: bool = True,
    replicas: int = 0,
    lasts_s: float = LASTS_S,
) -> Scenario:
    """A scenario of one node."""
    in_order = sorted(actions, key=lambda action: action.at)
    return Scenario(
        seed=seed,
        nodes=(chance.choice(versions),),
        gpus=gpus,
        mode=mode,
        decides=decides,
        lasts_s=lasts_s,
        actions=tuple(in_order),
        replicas=replicas,
    )


def at_random(chance: random.Random, kinds: Sequence[Maker], count: int, first: float, last: float) -> list[Action]:
    """So many actions of these kinds between two moments."""
    actions = []
    for _ in range(count):
        at = first + chance.random() * (last - first)
        kind = chance.choice(kinds)
        actions.append(Action(at, *kind(chance)))
    return actions


def pod_of(size: int, at: float) -> Action:
    """A pod that asks for so many GiB of a GPU and stays."""
    return Action(at, "create_pod", (MEMORY, size, 0, 1))


def forced_deletion(chance: random.Random) -> tuple[str, Args]:
    """Some pod is deleted without a grace."""
    return "delete_pod", (chance.randrange(1000), 0)
