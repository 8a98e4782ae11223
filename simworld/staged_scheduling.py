"""Staged worlds for gpuscheduler: what real clusters have around a Binding, a job's plan, or a change of leaders."""

import random
from collections.abc import Callable

from simworld.history import GIB_PER_GPU, MEMORY
from simworld.scenario import Action, Args, Maker, Scenario
from simworld.stage import LASTS_S, LEADS_AFTER_S, SIZES, at_random, forced_deletion, pod_of, staged
from simworld.swarm import Wants

NEXT_LEADS_S = 20.0
"""How much later the other one does, if the first has ended."""


def _older_pods_at_a_change_of_leaders(seed: int, chance: random.Random) -> Scenario:
    """The leader ends or stands still in the middle of a start. Pods that came before have room by then."""
    gpus = 2
    begins = LEADS_AFTER_S + 3.0
    # Beside these, pods of 30 GiB have room and those of 40 have none. When they are gone, those of 40 take all of it.
    leavers = [_leaver(50, LEADS_AFTER_S, begins + 1.0 + chance.random() * 8.0) for _ in range(gpus)]
    older = [pod_of(40, LEADS_AFTER_S + 1.5 + chance.random()) for _ in range(3 * gpus)]
    # The first Binding is tried again a moment later.
    refused = Action(begins - 0.1, "fail_bindings", (0.0, chance.choice((500, 503))))
    if chance.random() < 0.5:
        strike = Action(begins - 0.1, "strike_scheduler", ("binding done", 1, "kill_both", NEXT_LEADS_S))
        begun = [refused, strike, Action(begins, "create_gang", (MEMORY, 30, gpus, 0.0))]
    else:
        strike = Action(begins + 0.1 + chance.random() * 0.4, "stall_leader", (NEXT_LEADS_S,))
        begun = [refused, strike, pod_of(30, begins)]
    lasts_s = begins + NEXT_LEADS_S + 10.0
    actions = [*leavers, *older, *begun]
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, replicas=2, lasts_s=lasts_s)


def _deletions_that_no_watch_shows(seed: int, chance: random.Random) -> Scenario:
    """Pods are deleted while watches say nothing, and then all objects are listed again."""
    size = chance.choice(SIZES)
    gpus = chance.choice((1, 2))
    room = gpus * (GIB_PER_GPU // size)
    begins = LEADS_AFTER_S + 5.0
    actions = [pod_of(size, LEADS_AFTER_S + chance.random()) for _ in range(room)]
    silent_s = chance.choice((2.0, 4.0))
    are_broken = chance.choice((0, 1))
    actions.append(Action(begins, "outdate_watches", (silent_s, are_broken)))
    deleted_at = [begins + 0.2 + chance.random() for _ in range(room)]
    actions += [Action(at, *forced_deletion(chance)) for at in deleted_at]
    for _ in range(room):
        next_at = begins + 6.0 + chance.random() * 4.0
        actions.append(pod_of(size, next_at))
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, replicas=2)


def _job_that_waits_for_room(seed: int, chance: random.Random) -> Scenario:
    """A job waits until other pods end. Kube-scheduler sees room for each pod of it, but no GPU has that."""
    gpus = chance.choice((2, 4))
    size = chance.choice((40, 60))
    members = chance.choice((2, gpus))
    actions: list[Action] = []
    for _ in range(gpus):
        ends_at = 10.0 + chance.random() * 15.0
        actions.append(_leaver(50, 1.0, ends_at))
    job = (MEMORY, size, members, 0, 0.0, 1, 1, 1, "default")
    actions.append(Action(4.0, "create_workload", job))
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions)


def _pods_of_others_while_volumes_are_made(seed: int, chance: random.Random) -> Scenario:
    """Volumes take seconds between the two calls of kube-scheduler, and pods of another one come meanwhile."""
    gpus = 4
    size = chance.choice((50, 70))
    most_s = chance.choice((12.0, 20.0))
    actions = [Action(0.5, "slow_volumes", (most_s, LASTS_S))]
    begins = 2.0
    if chance.random() < 0.5:
        actions.append(Action(begins, "create_gang", (MEMORY, size, 2, 0.0)))
    else:
        actions += [pod_of(size, begins + chance.random() * 0.2) for _ in range(2)]
    others_come = [begins + 1.5 + chance.random() for _ in range(2)]
    actions += [Action(at, "create_stock_pod", (MEMORY, size, 0, 1)) for at in others_come]
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, lasts_s=LASTS_S + 10.0)


def _job_that_comes_again(seed: int, chance: random.Random) -> Scenario:
    """A job is created again under its name while pods of the former one still end."""
    gpus = 2
    members = chance.choice((2, 3))
    size = chance.choice((8, 20))
    actions = [
        Action(0.5, "end_pods_slowly", (chance.choice((5.0, 10.0, 20.0)),)),
        Action(1.0, "create_gang", (MEMORY, size, members, 0.0)),
    ]
    for begins in (8.0, 20.0):
        lag_s = chance.choice((1.0, 2.0, 4.0))
        actions.append(Action(begins, "create_gang_again", (MEMORY, size, members, lag_s)))
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, lasts_s=LASTS_S + 10.0)


def _pod_that_its_node_refuses(seed: int, chance: random.Random) -> Scenario:
    """A pod of another scheduler is faster, so the agent refuses one of a controller, which makes another one."""
    gpus = 8
    size = chance.choice((50, 70))
    actions: list[Action] = []
    for begins in (12.0, 16.0, 20.0, 24.0):
        actions.append(Action(begins, "create_controlled_pod", (MEMORY, size)))
        actions.append(Action(begins + chance.random() * 0.03, "create_stock_pod", (MEMORY, size, 0, 1)))
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, replicas=2)


def _many_pods_in_a_large_cluster(seed: int, chance: random.Random) -> Scenario:
    """Pods come faster than kube-scheduler takes them, so that gpuscheduler decides on the next ones before."""
    gpus = chance.choice((2, 4))
    sizes = chance.choice(((8, 20), (20, 40)))
    wants = Wants("share", sizes)
    kinds: list[Maker] = [wants.pod, wants.pod_that_ends, wants.pod_that_ends]
    more: list[Maker] = [_gated, _gated, wants.gang, _deletion, _deletion, _deletion]
    cycle_s = chance.choice((0.3, 1.0))
    actions = [Action(0.2, "grow", (cycle_s,))]
    for begins in (1.0, 14.0):
        actions += at_random(chance, kinds, 16, begins, begins + 1.0)
        actions += at_random(chance, more, 8, begins + 0.5, begins + 8.0)
        for _ in range(2):
            refused_at = begins + 0.2 + chance.random() * 6.0
            actions.append(Action(refused_at, "refuse_nominated_pod"))
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, lasts_s=LASTS_S + 10.0)


def _gated(chance: random.Random) -> tuple[str, Args]:
    return "create_gated_pod", (MEMORY, chance.choice((8, 20, 40)), chance.choice((1.0, 5.0, -1.0)))


def _deletion(chance: random.Random) -> tuple[str, Args]:
    return "delete_pod", (chance.randrange(1000), chance.choice((0, 30)))


def _leaver(size: int, at: float, until: float) -> Action:
    """A pod that comes at a moment and ends at another one, about."""
    return Action(at, "create_job_pod", (MEMORY, size, 0, until - at))


SCHEDULING_STAGES: tuple[Callable[[int, random.Random], Scenario], ...] = (
    _older_pods_at_a_change_of_leaders,
    _deletions_that_no_watch_shows,
    _job_that_waits_for_room,
    _pods_of_others_while_volumes_are_made,
    _job_that_comes_again,
    _pod_that_its_node_refuses,
    _many_pods_in_a_large_cluster,
)
