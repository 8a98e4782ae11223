"""Draws the jobs that controllers and Kueue have in a scenario, from a stream of their own."""

import random
from collections.abc import Iterator, Sequence

from simworld.history import MEMORY, WHOLE

SHARE = 0.35
"""How often a world with gpuscheduler has such jobs."""
RATES = (0.05, 0.1, 0.3)
"""Actions a second."""
NEVER = -1.0

KINDS = frozenset(("create_workload", "evict_workload", "suspend_workload", "delete_workload", "lose_member"))
"""Kinds of the actions of controllers and Kueue."""

Drawn = tuple[float, str, tuple[str | int | float, ...]]
"""When, the kind of an action, and its arguments."""


def draw_jobs(
    seed: int, mode: str, lasts_s: float, *, share: float = SHARE, rates: Sequence[float] = RATES
) -> tuple[list[Drawn], bool]:
    """The actions of controllers and Kueue, in most worlds none; and whether kube-scheduler names a part of the nodes.

    In a cluster of more than a hundred nodes it does. Such worlds have few nodes, and count as if they had many.
    """
    chance = random.Random(f"{seed}/jobs")
    if chance.random() >= share:
        return [], False
    names_a_part = chance.random() < 0.4
    rate = chance.choice(rates)
    return list(_actions(chance, mode, lasts_s, rate)), names_a_part


def _actions(chance: random.Random, mode: str, lasts_s: float, rate: float) -> Iterator[Drawn]:
    at = chance.expovariate(rate)
    while at < lasts_s:
        yield _action(chance, mode, at)
        at += 0.0 if chance.random() < 0.3 else chance.expovariate(rate)


def _action(chance: random.Random, mode: str, at: float) -> Drawn:
    which = chance.randrange(1000)
    match chance.randrange(10):
        case 0:
            return at, "evict_workload", (which, chance.choice((0.5, 10.0, NEVER)))
        case 1:
            return at, "suspend_workload", (which, chance.choice((0.1, 5.0, 20.0)))
        case 2:
            return at, "delete_workload", (which, chance.choice((0, 1, 1, 2)))
        case 3:
            return at, "lose_member", (which, chance.randrange(4))
        case _:
            return at, "create_workload", _workload(chance, mode)


def _workload(chance: random.Random, mode: str) -> tuple[str | int | float, ...]:
    sizes = (1,) if mode == "topology" else (8, 20, 40, 70)
    resource = WHOLE if mode == "topology" else MEMORY
    members = chance.choice((1, 2, 2, 3, 4))
    gated = chance.choice((0, 1, members, members))
    is_possible = chance.random() < 0.8
    return (
        resource,
        chance.choice(sizes),
        members,
        gated,
        chance.choice((0.0, 2.0, 20.0, 60.0, NEVER)),
        chance.choice((0, 1)),
        chance.choice((0, 1)),
        int(is_possible),
        # Pauses count against a namespace, so those who cannot start have another one.
        "default" if is_possible else "tenant",
    )
