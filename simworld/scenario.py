"""What people and faults do to a world: a list of actions with times, drawn from a seed, and a value of its own.

A shrunk scenario is the same list with actions left out.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from simworld.draw_jobs import draw_jobs
from simworld.history import CORES, MEMORY, WHOLE

MODES = ("share", "topology", "core_mem", "cgpu", "default")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that happens to the world.

    Attributes:
        at: virtual seconds since the world began.
        kind: name of a method of `World`.
        args: its arguments.
    """

    at: float
    kind: str
    args: tuple[str | int | float, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world and what happens to it.

    Attributes:
        seed: of everything that the actions do not say: delays, order of tasks.
        nodes: kubelet's version of each node.
        gpus: of each node.
        mode: of each node at the beginning.
        decides: whether pods are gpuscheduler's; else a kube-scheduler without it binds them.
        lasts_s: virtual seconds until everything is repaired and left in peace.
        actions: by time.
        replicas: of the whole gpuscheduler, each beside a kube-scheduler of its own; 0 for its core alone.
        has_claims: whether there are pods with ResourceClaims.
        gates_off: feature gates of the API server that are off.
        names_a_part: whether kube-scheduler names a part of the nodes, as in a cluster of more than a hundred.
        isolates: whether each node has an isolation driver, which works all the time.
        limits: how the driver of each node accounts memory by cgroups, ``dmem`` or ``misc``, if agents have the
            isolation driver `limits` and let no container start without it; else empty.
        has_links: whether each node's GPUs are linked in pairs, and its agent publishes sets of them.
        page: how many objects agents and replicas ask for in each page of a list; 0 for the product's own number.
    """

    seed: int
    nodes: tuple[str, ...]
    gpus: int
    mode: str
    decides: bool
    lasts_s: float
    actions: tuple[Action, ...]
    replicas: int = 0
    has_claims: bool = False
    gates_off: tuple[str, ...] = ()
    names_a_part: bool = False
    isolates: bool = False
    has_links: bool = False
    page: int = 0
    # Not in its text: by a hash of that, the worlds of earlier seeds are compared with what they were.
    limits: str = field(default="", repr=False)


LATER_SEEDS = 1_000_000
"""Seeds from this one on draw also what came later: those below stay the worlds that CI plays and the tables name."""
NEWEST_SEEDS = 2_000_000
"""Seeds from this one on draw also what came after that: tables name worlds of the seeds between the two."""
REPLICAS_SHARE = 0.4
"""How often pods that are gpuscheduler's are placed by two whole replicas of it."""
VERSIONS = ("1.20", "1.24", "1.26", "1.30", "1.33", "1.34", "1.36", "1.36", "1.37")


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(seed)
    nodes = tuple(chance.choice(VERSIONS) for _ in range(chance.choice((1, 1, 2, 3))))
    lasts_s = chance.choice((40.0, 90.0, 200.0))
    # Some worlds are only busy, some have a few faults, some have many.
    busy = chance.choice((0.3, 0.6, 1.5))
    faulty = chance.choice((0.0, 0.05, 0.2))
    actions: list[Action] = []
    add_actions(actions, chance, lasts_s, busy, [_pod, _pod, _pod, _pod_that_ends, _gang, _deletion, _name_again])
    add_actions(actions, chance, lasts_s, faulty, FAULTS)
    add_actions(actions, chance, lasts_s, chance.choice((0.0, 0.02, 0.1)), [_mode])
    actions.sort(key=lambda action: action.at)
    scenario = Scenario(
        seed=seed,
        nodes=nodes,
        gpus=chance.choice((1, 2, 4)),
        mode=chance.choice(MODES[:4]),
        decides=chance.random() < 0.7,
        lasts_s=lasts_s,
        actions=tuple(actions),
    )
    return with_jobs(with_replicas(with_rarer_actions(scenario, busy, faulty)))


def with_replicas(scenario: Scenario) -> Scenario:
    """The scenario, in some seeds with the whole gpuscheduler in two replicas, and with their faults."""
    chance = random.Random(f"{scenario.seed}/scheduler replicas")
    if not scenario.decides or chance.random() >= REPLICAS_SHARE:
        return scenario
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, 0.3, [_small_pod_that_ends])
    # A change of leaders takes longer than a lease lasts. With more faults, nothing is scheduled between them.
    add_actions(more, chance, scenario.lasts_s, chance.choice((0.0, 0.03, 0.06)), SCHEDULER_FAULTS)
    mode = chance.choice(("share", "share", "cgpu", scenario.mode))
    return replace(with_more(scenario, more), replicas=2, mode=mode)


def with_strikes_of_the_extender(scenario: Scenario) -> Scenario:
    """The scenario, in half of the worlds with the core of gpuscheduler alone with moments at which it crashes."""
    chance = random.Random(f"{scenario.seed}/strikes of the extender")
    has_core_alone = scenario.decides and not scenario.replicas
    if not has_core_alone or scenario.has_claims or chance.random() < 0.5:
        return scenario
    more: list[Action] = []
    # As often in a short world as in a long one: what comes after each strike is what matters.
    rate = chance.choice((2, 4, 8)) / scenario.lasts_s
    add_actions(more, chance, scenario.lasts_s, rate, [_strike_of_the_extender])
    return with_more(scenario, more)


def with_rarer_actions(scenario: Scenario, busy: float, faulty: float) -> Scenario:
    """The scenario, in half of the seeds with more of what people and faults do."""
    chance = random.Random(f"{scenario.seed}/rarer actions")
    if chance.random() < 0.5:
        return scenario
    more: list[Action] = []
    add_actions(more, chance, scenario.lasts_s, busy / 10, [_twins, _retried_gang, _copy])
    add_actions(more, chance, scenario.lasts_s, faulty / 6, [_of_gpu("break_gpu"), _claim])
    return with_more(scenario, more)


def with_jobs(scenario: Scenario) -> Scenario:
    """The scenario, in some seeds with the jobs of controllers and Kueue."""
    if not scenario.decides or scenario.replicas:
        return scenario
    drawn, names_a_part = draw_jobs(scenario.seed, scenario.mode, scenario.lasts_s)
    jobs = [Action(*action) for action in drawn]
    return replace(with_more(scenario, jobs), names_a_part=names_a_part)


def with_more(scenario: Scenario, more: Sequence[Action]) -> Scenario:
    """The scenario with more actions, each at its time."""
    actions = sorted([*scenario.actions, *more], key=lambda action: action.at)
    return replace(scenario, actions=tuple(actions))


Args = tuple[str | int | float, ...]
Maker = Callable[[random.Random], tuple[str, Args]]
"""Draws the kind of an action and its arguments."""


def add_actions(
    actions: list[Action], chance: random.Random, lasts_s: float, rate: float, makers: Sequence[Maker]
) -> None:
    """Add actions at this rate per second."""
    if not rate:
        return
    at = chance.expovariate(rate)
    while at < lasts_s:
        kind, args = chance.choice(makers)(chance)
        actions.append(Action(at, kind, args))
        # People and controllers make many pods at a time.
        at += 0.0 if chance.random() < 0.4 else chance.expovariate(rate)


def _wanted(chance: random.Random) -> tuple[str, int, int]:
    resource = chance.choice((MEMORY, MEMORY, WHOLE, CORES))
    amount = chance.choice((1, 8, 8, 20, 40, 70))
    if resource == WHOLE:
        return resource, chance.choice((1, 1, 2)), 0
    if resource == CORES:
        return MEMORY, amount, chance.choice((10, 30, 50, 100))
    return resource, amount, 0


def _pod(chance: random.Random) -> tuple[str, Args]:
    return "create_pod", (*_wanted(chance), chance.choice((1, 1, 1, 2)))


def _pod_that_ends(chance: random.Random) -> tuple[str, Args]:
    return "create_job_pod", (*_wanted(chance), chance.choice((0.5, 3.0, 20.0)))


def _gang(chance: random.Random) -> tuple[str, Args]:
    resource, amount = chance.choice(((MEMORY, 8), (MEMORY, 70), (WHOLE, 1)))
    members = chance.choice((2, 2, 3, 4))
    return "create_gang", (resource, amount, members, chance.choice((0.0, 0.1, 2.0)))


def _twins(chance: random.Random) -> tuple[str, Args]:
    _, args = _gang(chance)
    return "create_twins", args


def _retried_gang(chance: random.Random) -> tuple[str, Args]:
    resource, amount = chance.choice(((MEMORY, 8), (MEMORY, 20), (WHOLE, 1)))
    return "create_retried_gang", (resource, amount, chance.choice((2, 2, 3)), chance.choice((0.5, 3.0)))


def _copy(chance: random.Random) -> tuple[str, Args]:
    is_of_other_size = chance.random() < 0.5
    resource, amount, cores = _wanted(chance)
    return "copy_pod", (chance.randrange(1000), resource, amount if is_of_other_size else 0, cores)


def _claim(chance: random.Random) -> tuple[str, Args]:
    """A tenant claims more than it asked for, or less."""
    return "edit_annotations", (chance.randrange(1000), chance.randrange(4), chance.choice((1, 80, 640)))


def _edit(chance: random.Random) -> tuple[str, Args]:
    return "edit_annotations", (chance.randrange(1000), chance.randrange(4))


def _deletion(chance: random.Random) -> tuple[str, Args]:
    return "delete_pod", (chance.randrange(1000), chance.choice((0, 0, 30)))


def _name_again(chance: random.Random) -> tuple[str, Args]:
    return "replace_pod", (chance.randrange(1000), *_wanted(chance))


def _mode(chance: random.Random) -> tuple[str, Args]:
    return "set_mode", (chance.randrange(1000), chance.choice(MODES))


def _of_node(kind: str) -> Maker:
    def make(chance: random.Random) -> tuple[str, Args]:
        return kind, (chance.randrange(1000), chance.choice((0.0, 0.05, 1.0, 8.0, 25.0)))

    return make


XIDS = (48, 79, 31, 74)


def _of_gpu(kind: str) -> Maker:
    def make(chance: random.Random) -> tuple[str, Args]:
        node = chance.randrange(1000)
        gpu = chance.randrange(1000)
        return kind, (node, gpu, chance.choice(XIDS))

    return make


def _of_api(kind: str) -> Maker:
    def make(chance: random.Random) -> tuple[str, Args]:
        return kind, (chance.choice((0.1, 2.0, 15.0, 40.0)),)

    return make


def _plain(kind: str) -> Maker:
    return lambda _: (kind, ())


FAULTS: tuple[Maker, ...] = (
    _of_node("restart_agent"),
    _of_node("restart_agent"),
    _of_node("restart_kubelet"),
    _of_node("restart_both"),
    _of_gpu("raise_xid"),
    _of_gpu("lose_gpu"),
    _of_node("hang_driver"),
    _of_api("stop_api"),
    _of_api("pause_api"),
    _of_api("silence_api"),
    _of_api("deny_pods"),
    _plain("drop_watches"),
    _plain("expire_versions"),
    _of_node("jump_clock"),
    _of_node("restart_scheduler"),
    _of_node("restart_scheduler"),
    _edit,
)

POINTS = ("reserved", "reserved", "binding asked", "binding done", "binding done", "commit asked", "commit done")
"""Moments at which gpuscheduler is struck, see `SchedulerReplicas.happened` and `GpuScheduler.strike`."""
STRIKES: dict[str, tuple[float, ...]] = {
    "kill_both": (0.05, 1.0, 18.0),
    "kill_extender": (0.05, 1.0, 4.0),
    "kill_kube_scheduler": (0.05, 1.0, 18.0),
    "kill_before_others_know": (4.0, 20.0, 20.0),
    "stall": (4.0, 11.0, 18.0, 25.0),
    "cut": (4.0, 11.0, 18.0, 25.0),
    "delay_watches": (1.0, 4.0, 20.0),
}
"""What strikes a replica, and for how many seconds. A lease lasts for 15."""
ANSWERS = ((0,), (0, 503), (0, 0), (409,), (500,), (503, 503))
"""Codes of the answers to the next Bindings. With 0, the API server does it, and the answer is lost."""


def _strike(chance: random.Random) -> tuple[str, Args]:
    what = chance.choice(("kill_before_others_know", *STRIKES))
    return "strike_scheduler", (chance.choice(POINTS), chance.choice((1, 1, 2, 3)), what, chance.choice(STRIKES[what]))


def _strike_of_the_extender(chance: random.Random) -> tuple[str, Args]:
    away_s = chance.choice(STRIKES["kill_extender"])
    return "strike_extender", (chance.choice(POINTS), chance.choice((1, 1, 2, 3)), away_s)


def _small_pod_that_ends(chance: random.Random) -> tuple[str, Args]:
    return "create_job_pod", (MEMORY, chance.choice((8, 20, 40)), 0, chance.choice((3.0, 20.0, 60.0)))


def _failed_bindings(chance: random.Random) -> tuple[str, Args]:
    return "fail_bindings", (chance.choice((0.0, 3.0, 15.0)), *chance.choice(ANSWERS))


def _of_replica(kind: str, what: str) -> Maker:
    return lambda chance: (kind, (chance.randrange(1000), chance.choice(STRIKES[what])))


SCHEDULER_FAULTS: tuple[Maker, ...] = (
    _strike,
    _strike,
    _strike,
    _failed_bindings,
    _of_replica("stall_scheduler", "stall"),
    _of_replica("cut_scheduler", "cut"),
    _of_replica("restart_scheduler", "kill_both"),
)
