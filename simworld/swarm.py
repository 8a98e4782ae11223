"""Small worlds in which a few kinds of things happen, and often.

A world with all kinds of actions seldom does two of them at the moments that matter. So each of these worlds draws a
few kinds and leaves out the others, its pods ask for what its mode has, and they come in bursts.
"""

import random
from collections.abc import Sequence

from simworld.draw_jobs import draw_jobs
from simworld.history import MEMORY, WHOLE
from simworld.scenario import (
    FAULTS,
    MODES,
    SCHEDULER_FAULTS,
    VERSIONS,
    Action,
    Args,
    Maker,
    Scenario,
    add_actions,
    with_more,
)

JOBS_SHARE = 0.5
REPLICAS_SHARE = 0.25
SIZES = ((1, 8), (8, 20, 40), (20, 40, 70), (40, 41), (70,))
"""Units of a pod in a world: what fits together, and what does not."""


def draw_swarm(seed: int) -> Scenario:
    """The small world of a seed, without claims."""
    chance = random.Random(f"{seed}/swarm world")
    lasts_s = chance.choice((10.0, 20.0, 40.0))
    mode = chance.choice(("share", "share", "cgpu", "topology", "core_mem"))
    decides = chance.random() < 0.8
    replicas = 2 if decides and chance.random() < REPLICAS_SHARE else 0
    actions: list[Action] = []
    # More pods would only wait: the nodes are small.
    people = chance.choice((8, 16, 30))
    faults = chance.choice((0, 1, 3, 6))
    add_actions(actions, chance, lasts_s, people / lasts_s, _people(chance, mode))
    add_actions(actions, chance, lasts_s, faults / lasts_s, _faults(chance, replicas))
    names_a_part = False
    has_jobs = decides and not replicas and mode != "core_mem" and chance.random() < JOBS_SHARE
    if has_jobs:
        drawn, names_a_part = draw_jobs(seed, mode, lasts_s, share=1.0, rates=(0.3, 0.6))
        actions += [Action(*action) for action in drawn]
    actions.sort(key=lambda action: action.at)
    return Scenario(
        seed=seed,
        nodes=tuple(chance.choice(VERSIONS) for _ in range(chance.choice((1, 1, 2)))),
        gpus=chance.choice((1, 2, 2, 4)),
        mode=mode,
        decides=decides,
        lasts_s=lasts_s,
        actions=tuple(actions),
        replicas=replicas,
        names_a_part=names_a_part,
    )


def with_more_faults(scenario: Scenario) -> Scenario:
    """The small world. If its seed is odd, it has one more kind of fault, which would be rare among all the others.

    This fault is drawn from a generator of its own, so that the rest of the world stays as it was.
    """
    if scenario.seed % 2 == 0:
        return scenario
    chance = random.Random(f"{scenario.seed}/more faults of a small world")
    kind = chance.choice(_MORE_FAULTS)
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, chance.choice((2, 4)) / scenario.lasts_s, [kind])
    return with_more(scenario, more)


def _people(chance: random.Random, mode: str) -> list[Maker]:
    """What people do in a world: pods of one kind, something that makes room again, and up to two other things."""
    sizes = chance.choice(SIZES)
    wants = Wants(mode, sizes)
    # What is listed several times is drawn more often.
    creators: list[Maker] = [wants.pod, wants.pod, wants.gang, wants.twins, wants.retried_gang]
    # Without one of these, the nodes would be full after a few seconds, and nothing more would start.
    room_makers: list[Maker] = [wants.pod_that_ends, wants.name_again, wants.copy, _deletion]
    editors: list[Maker] = [_keep_editing, _keep_editing, _keep_editing]
    others_count = chance.choice((0, 1, 2))
    others = chance.sample([*creators, *room_makers, *editors], others_count)
    creator = chance.choice(creators)
    room_maker = chance.choice(room_makers)
    return [creator, room_maker, *others]


def _faults(chance: random.Random, replicas: int) -> Sequence[Maker]:
    """Up to three kinds of faults."""
    kinds = (*FAULTS, _slow_agents, restart_slow_agent, restart_slow_agent, restart_slow_agent)
    if replicas:
        kinds = (*kinds, *SCHEDULER_FAULTS)
    return chance.sample(kinds, chance.choice((1, 2, 3)))


class Wants:
    """Draws pods that ask for what a mode has.

    Args:
        mode: of the nodes.
        sizes: units of shares.
    """

    def __init__(self, mode: str, sizes: Sequence[int]) -> None:
        self._mode = mode
        self._sizes = sizes

    def wanted(self, chance: random.Random) -> tuple[str, int, int]:
        """Resource, amount, and percent of compute."""
        if self._mode == "topology":
            return WHOLE, chance.choice((1, 1, 2)), 0
        amount = chance.choice(self._sizes)
        cores = chance.choice((10, 30, 50, 100)) if self._mode == "core_mem" else 0
        return MEMORY, amount, cores

    def pod(self, chance: random.Random) -> tuple[str, Args]:
        return "create_pod", (*self.wanted(chance), chance.choice((1, 1, 1, 2)))

    def pod_that_ends(self, chance: random.Random) -> tuple[str, Args]:
        return "create_job_pod", (*self.wanted(chance), chance.choice((0.5, 3.0, 20.0)))

    def gang(self, chance: random.Random) -> tuple[str, Args]:
        return "create_gang", self._gang(chance)

    def twins(self, chance: random.Random) -> tuple[str, Args]:
        return "create_twins", self._gang(chance)

    def _gang(self, chance: random.Random) -> Args:
        resource, amount, _ = self.wanted(chance)
        return resource, amount, chance.choice((2, 2, 3, 4)), chance.choice((0.0, 0.1, 2.0))

    def retried_gang(self, chance: random.Random) -> tuple[str, Args]:
        resource, amount, _ = self.wanted(chance)
        return "create_retried_gang", (resource, amount, chance.choice((2, 2, 3)), chance.choice((0.5, 3.0)))

    def name_again(self, chance: random.Random) -> tuple[str, Args]:
        return "replace_pod", (chance.randrange(1000), *self.wanted(chance))

    def name_of_a_running_pod(self, chance: random.Random) -> tuple[str, Args]:
        """A pod takes a name, and often has two containers where the former pod had one."""
        return "replace_running_pod", (chance.randrange(1000), *self.wanted(chance), chance.choice((1, 2, 2)))

    def copy(self, chance: random.Random) -> tuple[str, Args]:
        resource, amount, cores = self.wanted(chance)
        is_of_other_size = chance.random() < 0.5
        return "copy_pod", (chance.randrange(1000), resource, amount if is_of_other_size else 0, cores)


def _deletion(chance: random.Random) -> tuple[str, Args]:
    return "delete_pod", (chance.randrange(1000), chance.choice((0, 0, 30)))


def _keep_editing(chance: random.Random) -> tuple[str, Args]:
    """A tenant writes the same annotations again and again, against the agent, which corrects them."""
    amount = chance.choice((0, 0, 0, 80, 640))
    return "keep_editing", (chance.randrange(1000), chance.randrange(2), amount, chance.choice((5.0, 60.0)))


def restart_slow_agent(chance: random.Random) -> tuple[str, Args]:
    which = chance.randrange(1000)
    away_s = chance.choice((0.0, 0.05, 1.0))
    most_s = chance.choice((2.0, 6.0))
    return "restart_slow_agent", (which, away_s, most_s)


def _slow_agents(chance: random.Random) -> tuple[str, Args]:
    return "slow_agents", (chance.choice((0.5, 2.0, 4.0, 6.0)), chance.choice((5.0, 20.0)))


def _other_mode(chance: random.Random) -> tuple[str, Args]:
    """A node is in another mode for a while. Its containers still have units of the former one."""
    return "change_mode_for", (chance.randrange(1000), chance.choice(MODES), chance.choice((0.5, 3.0, 10.0)))


def _broken_gpu(chance: random.Random) -> tuple[str, Args]:
    return "break_gpu", (chance.randrange(1000), chance.randrange(1000), 0)


def _outdated_watches(chance: random.Random) -> tuple[str, Args]:
    return "outdate_watches", (chance.choice((0.2, 1.0, 4.0)), chance.choice((0, 1)))


def _new_kubelet(chance: random.Random) -> tuple[str, Args]:
    return "restart_kubelet", (chance.randrange(1000), chance.choice((0.0, 0.05, 1.0)))


def _fault_of_gpu(chance: random.Random) -> tuple[str, Args]:
    kind = chance.choice(("raise_xid", "lose_gpu"))
    return kind, (chance.randrange(1000), chance.randrange(1000), 79)


def _forbidden_writes(chance: random.Random) -> tuple[str, Args]:
    return "deny_pods", (chance.choice((2.0, 15.0, 40.0)),)


_MORE_FAULTS: tuple[Maker, ...] = (
    _other_mode,
    _other_mode,
    _broken_gpu,
    _fault_of_gpu,
    _outdated_watches,
    _outdated_watches,
    _new_kubelet,
    _new_kubelet,
    _forbidden_writes,
)
