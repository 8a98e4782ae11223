"""What people do with ResourceClaims: actions for a part of the scenarios, from a stream of randomness of their own."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from simworld.claim_shapes import SHARE_CLASS, WHOLE_CLASS
from simworld.draw_circumstances import with_circumstance, with_pods_by_class
from simworld.draw_claims import with_more_claims
from simworld.draw_init import with_init_containers
from simworld.draw_isolation import with_isolation
from simworld.draw_jobs import KINDS as JOB_KINDS
from simworld.draw_pages import with_small_pages
from simworld.draw_wider import with_many_nodes, with_wider_faults
from simworld.rushes import draw_rushes, has_rushes
from simworld.scenario import Action, Args, Maker, Scenario, draw, with_strikes_of_the_extender
from simworld.swarm import draw_swarm, with_more_faults

SHARE_OF_WORLDS = 0.35
"""How many of the worlds have claims."""
VERSIONS = ("1.34", "1.36", "1.36", "1.37")
MODES = ("dra", "dra", "dra", "share", "topology", "core_mem")
NOT_BESIDE_CLAIMS = frozenset(("set_mode", *JOB_KINDS))
GATES = ("DRAConsumableCapacity", "DRADeviceTaints")


def draw_world(seed: int) -> Scenario:
    """The scenario of a seed, with claims if it has some."""
    drawn = with_strikes_of_the_extender(with_more_claims(with_claims(draw(seed))))
    with_faults = with_circumstance(with_wider_faults(with_many_nodes(drawn)))
    return with_isolation(with_small_pages(with_pods_by_class(with_faults)))


def draw_small_world(seed: int) -> Scenario:
    """The small world of a seed, with claims if it has some, see `swarm`; or with rushes, see `rushes`."""
    return with_small_pages(_draw_small_world(seed))


def _draw_small_world(seed: int) -> Scenario:
    if has_rushes(seed):
        return draw_rushes(seed)
    scenario = with_strikes_of_the_extender(with_claims(draw_swarm(seed)))
    if scenario.has_claims:
        with_faults = with_circumstance(with_wider_faults(with_more_claims(scenario, is_small=True)))
        return with_pods_by_class(with_faults)
    return with_isolation(with_wider_faults(with_init_containers(with_more_faults(scenario))))


def with_claims(scenario: Scenario) -> Scenario:
    """The scenario with claims, if its seed has some; else as it is."""
    chance = random.Random(f"{scenario.seed}/claims")
    if chance.random() >= SHARE_OF_WORLDS:
        return scenario
    lasts_s = scenario.lasts_s
    rate = chance.choice((0.2, 0.5, 1.2))
    added = list(_actions(chance, lasts_s, rate, (_pod, _pod, _job_pod, _standing, _standing_end, _name_again)))
    added += _actions(chance, lasts_s, rate * 0.6, (_deletion, _deletion, _deletion, _restart, _restart_both))
    added += _actions(chance, lasts_s, chance.choice((0.0, 0.02, 0.08)), (_mode, _mode, _placement))
    # These draw modes of their own: with the others, nodes would be in mode dra for moments only. And the jobs of
    # controllers ask for what one mode has.
    others = [action for action in scenario.actions if action.kind not in NOT_BESIDE_CLAIMS]
    actions = sorted((*others, *added), key=lambda action: action.at)
    gates_off = (chance.choice(GATES),) if chance.random() < 0.25 else ()
    return replace(
        scenario,
        nodes=tuple(chance.choice(VERSIONS) for _ in scenario.nodes),
        mode=chance.choice(MODES),
        actions=tuple(actions),
        has_claims=True,
        names_a_part=False,
        gates_off=gates_off,
    )


def _actions(chance: random.Random, lasts_s: float, rate: float, makers: Sequence[Maker]) -> Iterator[Action]:
    """Actions at this rate per second."""
    if not rate:
        return
    at = chance.expovariate(rate)
    while at < lasts_s:
        kind, args = chance.choice(makers)(chance)
        yield Action(at, kind, args)
        at += 0.0 if chance.random() < 0.4 else chance.expovariate(rate)


def _wanted(chance: random.Random) -> tuple[str, int, int]:
    """Class, count and GiB; 0 GiB for whole GPUs."""
    if chance.random() < 0.4:
        return WHOLE_CLASS, chance.choice((1, 1, 2)), 0
    return SHARE_CLASS, chance.choice((1, 1, 1, 2)), chance.choice((1, 8, 8, 30, 50))


def _pod(chance: random.Random) -> tuple[str, Args]:
    return "create_claim_pod", (*_wanted(chance), chance.choice((1, 1, 2)))


def _job_pod(chance: random.Random) -> tuple[str, Args]:
    return "create_claim_job_pod", (*_wanted(chance), chance.choice((0.5, 3.0, 20.0)))


def _standing(chance: random.Random) -> tuple[str, Args]:
    return "create_pod_of_standing_claim", (chance.randrange(2), *_wanted(chance))


def _standing_end(chance: random.Random) -> tuple[str, Args]:
    return "delete_standing_claim", (chance.randrange(2),)


def _name_again(chance: random.Random) -> tuple[str, Args]:
    return "replace_by_claim_pod", (chance.randrange(1000), *_wanted(chance))


def _deletion(chance: random.Random) -> tuple[str, Args]:
    return "delete_claim_pod", (chance.randrange(1000), chance.choice((0, 0, 30)))


def _restart(chance: random.Random) -> tuple[str, Args]:
    kind = chance.choice(("restart_agent", "restart_agent", "restart_kubelet"))
    return kind, (chance.randrange(1000), chance.choice((0.0, 0.05, 1.0, 8.0, 45.0)))


def _restart_both(chance: random.Random) -> tuple[str, Args]:
    return "restart_both", (chance.randrange(1000), chance.choice((0.0, 0.05, 1.0, 8.0, 25.0)))


def _mode(chance: random.Random) -> tuple[str, Args]:
    return "set_mode", (chance.randrange(1000), chance.choice(MODES))


def _placement(chance: random.Random) -> tuple[str, Args]:
    return "set_placement", (chance.randrange(1000), chance.choice(("binpack", "spread")))
