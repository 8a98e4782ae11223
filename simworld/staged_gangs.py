"""Small worlds that stage one rare circumstance each of gangs: jobs whose pods start together.

They are like those of `staged`, and beside them, so that the staged worlds of the seeds stay what they were.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from simworld.draw_jobs import NEVER
from simworld.draw_pages import PAGES
from simworld.history import GIB_PER_GPU, MEMORY
from simworld.scenario import SCHEDULER_FAULTS, Action, Scenario, with_more
from simworld.stage import LASTS_S, LEADS_AFTER_S, SIZES, at_random, forced_deletion, staged


def draw_staged_gangs(seed: int) -> Scenario:
    """The staged world of gangs of a seed. Seeds that follow each other have different circumstances."""
    stage = _STAGES[seed % len(_STAGES)]
    return stage(seed, random.Random(f"{seed}/staged gangs"))


def _jobs_that_wait_for_kueue(seed: int, chance: random.Random) -> Scenario:
    """Jobs have room, and Kueue has not admitted some or all of their pods. Others want the room."""
    size = chance.choice(SIZES)
    gpus = chance.choice((2, 4))
    room = gpus * (GIB_PER_GPU // size)
    actions = []
    for at in (1.0, 6.0, 12.0):
        members = chance.randint(2, room)
        gated = chance.choice((1, members - 1, members))
        admitted_after_s = chance.choice((8.0, 20.0, NEVER))
        actions.append(_workload(at, chance, size, members, gated=gated, admitted_after_s=admitted_after_s))
    actions += [_pod_that_ends(size, 2.0 + chance.random() * 20.0) for _ in range(room)]
    scenario = staged(seed, chance, gpus=gpus, mode="share", actions=actions)
    return _in_some_cluster(scenario, chance)


def _jobs_that_cannot_start(seed: int, chance: random.Random) -> Scenario:
    """A tenant creates one job after another whose last pod fits nowhere, and deletes it. Others want the room."""
    size = chance.choice(SIZES)
    gpus = chance.choice((1, 2))
    room = gpus * (GIB_PER_GPU // size)
    members = max(2, room)
    actions = []
    at = 1.0
    while at < LASTS_S - 8.0:
        actions.append(_workload(at, chance, size, members, is_possible=False))
        lives_s = chance.choice((6.0, 11.0, 20.0))
        actions.append(Action(at + lives_s, "delete_workload", (0, 0)))
        at += lives_s + 0.1
    actions += [_pod_that_ends(size, 2.0 + chance.random() * 20.0) for _ in range(room)]
    scenario = staged(seed, chance, gpus=gpus, mode="share", actions=actions)
    return _in_some_cluster(scenario, chance)


def _jobs_that_are_evicted(seed: int, chance: random.Random) -> Scenario:
    """Kueue takes jobs back and admits them again, while others want their room."""
    size = chance.choice((20, *SIZES))
    gpus = chance.choice((1, 2))
    room = gpus * (GIB_PER_GPU // size)
    members = max(2, room)
    actions = [_workload(at, chance, size, members, gated=members, admitted_after_s=0.0) for at in (1.0, 1.5)]
    at = 5.0
    while at < LASTS_S - 5.0:
        which = chance.randrange(2)
        actions.append(Action(at, "evict_workload", (which, chance.choice((0.5, 2.0)))))
        at += chance.choice((1.0, 3.0, 6.0))
    scenario = staged(seed, chance, gpus=gpus, mode="share", actions=actions)
    return _in_some_cluster(scenario, chance)


def _workers_that_come_again(seed: int, chance: random.Random) -> Scenario:
    """The last worker of a job comes again after the others have succeeded."""
    size = chance.choice((8, 20, 40))
    actions = []
    for number in range(3):
        at = 1.0 + 8.0 * number + chance.random()
        members = chance.choice((2, 3))
        lives_s = chance.choice((0.5, 3.0))
        actions.append(Action(at, "create_retried_gang", (MEMORY, size, members, lives_s)))
    return staged(seed, chance, gpus=2, mode="share", actions=actions)


def _jobs_of_one_name(seed: int, chance: random.Random) -> Scenario:
    """Two namespaces have a job of one name, and the last pods of both come late."""
    size = chance.choice((20, 40))
    actions = []
    for number in range(3):
        at = 1.0 + 8.0 * number + chance.random()
        members = chance.choice((2, 3))
        lag_s = chance.choice((0.1, 2.0, 4.0))
        actions.append(Action(at, "create_twins", (MEMORY, size, members, lag_s)))
    actions += at_random(chance, [forced_deletion], 6, 4.0, LASTS_S)
    return staged(seed, chance, gpus=4, mode="share", actions=actions)


def _pods_that_are_lost_while_their_job_starts(seed: int, chance: random.Random) -> Scenario:
    """Pods are deleted by force just after their job has come, and come again."""
    size = chance.choice(SIZES)
    gpus = chance.choice((2, 4))
    room = gpus * (GIB_PER_GPU // size)
    members = chance.randint(2, room)
    actions = []
    for number in range(3):
        at = 1.0 + 8.0 * number
        actions.append(_workload(at, chance, size, members))
        for _ in range(chance.choice((1, 2))):
            # The pods come within a second or two, and are bound within another one.
            lost_at = at + chance.random() * 3.0
            actions.append(Action(lost_at, "lose_member", (number, chance.randrange(members))))
        actions.append(Action(at + 7.5, "delete_workload", (0, 0)))
    actions += [_pod_that_ends(size, 1.5 + chance.random() * 20.0) for _ in range(room)]
    scenario = staged(seed, chance, gpus=gpus, mode="share", actions=actions)
    return _in_some_cluster(scenario, chance)


def _leaders_that_read_pages(seed: int, chance: random.Random) -> Scenario:
    """Jobs run, and the replica that leads ends. The next leader reads all pods, a few at a time. Others want room."""
    size = chance.choice(SIZES)
    gpus = chance.choice((2, 4))
    room = gpus * (GIB_PER_GPU // size)
    begins = LEADS_AFTER_S
    actions = [Action(begins, "create_gang", (MEMORY, size, room, 0.0))]
    for _ in range(2):
        ends_at = begins + 4.0 + chance.random() * 6.0
        away_s = chance.choice((0.05, 1.0, 18.0))
        actions.append(Action(ends_at, "restart_scheduler", (chance.randrange(2), away_s)))
    actions += [_pod_that_ends(size, begins + 4.0 + chance.random() * 14.0) for _ in range(room)]
    actions += at_random(chance, [forced_deletion], 2, begins + 4.0, LASTS_S)
    scenario = staged(seed, chance, gpus=gpus, mode="share", actions=actions, replicas=2)
    return replace(scenario, page=chance.choice(PAGES))


def _workload(  # noqa: PLR0913 (what a job is)
    at: float,
    chance: random.Random,
    size: int,
    members: int,
    *,
    gated: int = 0,
    admitted_after_s: float = NEVER,
    is_possible: bool = True,
) -> Action:
    """The creation of a job, named by this project's labels or by those of Kueue."""
    by_labels = chance.choice((0, 1))
    keeps_names = chance.choice((0, 1))
    # Pauses count against a namespace, so those who cannot start have another one.
    namespace = "default" if is_possible else "tenant"
    job = (MEMORY, size, members, gated, admitted_after_s, by_labels, keeps_names, int(is_possible), namespace)
    return Action(at, "create_workload", job)


def _pod_that_ends(size: int, at: float) -> Action:
    return Action(at, "create_job_pod", (MEMORY, size, 0, 4.0))


def _in_some_cluster(scenario: Scenario, chance: random.Random) -> Scenario:
    """The scenario, the same GPUs on two nodes that count as a large cluster, or the scenario with two replicas."""
    kind = chance.choice(("small", "large", "large", "replicas"))
    if kind == "large":
        gpus = max(1, scenario.gpus // 2)
        return replace(scenario, nodes=scenario.nodes * 2, gpus=gpus, names_a_part=True)
    if kind == "replicas":
        return _with_replicas(scenario, chance)
    return scenario


def _with_replicas(scenario: Scenario, chance: random.Random) -> Scenario:
    """The scenario with the faults of two replicas of gpuscheduler. It takes some time until one of them leads."""
    later = [replace(action, at=action.at + LEADS_AFTER_S) for action in scenario.actions]
    faults = at_random(chance, SCHEDULER_FAULTS, 2, LEADS_AFTER_S, LEADS_AFTER_S + LASTS_S)
    delayed = replace(scenario, actions=tuple(later), lasts_s=scenario.lasts_s + LEADS_AFTER_S, replicas=2)
    return with_more(delayed, faults)


_STAGES: tuple[Callable[[int, random.Random], Scenario], ...] = (
    _jobs_that_wait_for_kueue,
    _jobs_that_cannot_start,
    _jobs_that_are_evicted,
    _workers_that_come_again,
    _jobs_of_one_name,
    _pods_that_are_lost_while_their_job_starts,
    _leaders_that_read_pages,
)
