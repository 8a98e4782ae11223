"""Small worlds that stage one rare circumstance of admissions each, between the agent and kubelet.

They are like those of `staged`, and beside them, so that the staged worlds of the seeds stay what they were.
"""

import random
from collections.abc import Callable, Sequence

from simworld.history import MEMORY, WHOLE
from simworld.scenario import Action, Args, Maker, Scenario
from simworld.stage import LASTS_S, at_random, forced_deletion, staged
from simworld.swarm import Wants

LATEST_ANSWER_S = 1.8
"""How late kubelet may get the agent's answer. The agent takes back no unit for 2 seconds after one."""
MORE_SEEDS = 6_000_000
"""Seeds from this one on have more circumstances: those below stay the worlds that tables name."""
OLD_KUBELETS = ("1.20", "1.24", "1.26", "1.30", "1.33")
"""They list pods that have ended or were rejected."""
NEW_KUBELETS = ("1.34", "1.36", "1.37")
"""They end if a unit vanishes while they wait for the answer that gives it to a container."""


def draw_staged_admissions(seed: int) -> Scenario:
    """The staged world of admissions of a seed. Seeds that follow each other have different circumstances."""
    stages = _STAGES if seed < MORE_SEEDS else (*_STAGES, *_MORE_STAGES)
    stage = stages[seed % len(stages)]
    return stage(seed, random.Random(f"{seed}/staged admissions"))


def _answers_that_come_late(seed: int, chance: random.Random) -> Scenario:
    """Kubelet waits for the agent's answers for a while. The mode changes while a pod is in admission."""
    mode = chance.choice(("share", "cgpu", "core_mem"))
    other_mode = "share" if mode == "cgpu" else "cgpu"
    wants = Wants(mode, (8, 20))
    actions = [Action(0.5, "slow_calls", (LATEST_ANSWER_S, LASTS_S))]
    at = 2.0
    while at < LASTS_S - 4.0:
        pods = at_random(chance, [wants.pod_that_ends], 3, at, at + 1.0)
        change = Action(at + chance.random(), "change_mode_for", (0, other_mode, chance.choice((0.5, 3.0))))
        deletions = at_random(chance, [forced_deletion], 6, at + 3.6, at + 4.0)
        actions += [*pods, change, *deletions]
        at += 5.0
    decides = chance.random() < 0.5
    return staged(seed, chance, gpus=4, mode=mode, actions=actions, versions=NEW_KUBELETS, decides=decides)


def _last_pod_that_ends(seed: int, chance: random.Random) -> Scenario:
    """The pod that kubelet has admitted last ends, and kubelet still lists it. Then the node may get another mode."""
    mode = chance.choice(("share", "cgpu", "core_mem", "topology"))
    wants = Wants(mode, (8, 20, 40))
    actions = at_random(chance, [wants.pod, wants.pod_that_ends], 4, 0.1, 6.0)
    actions.append(Action(8.0, *wants.pod_that_ends(chance)))
    if chance.random() < 0.5:
        next_mode = chance.choice(("share", "topology", "core_mem"))
        actions.append(Action(20.0, "set_mode", (0, next_mode)))
    decides = chance.random() < 0.5
    return staged(seed, chance, gpus=2, mode=mode, actions=actions, versions=OLD_KUBELETS, decides=decides)


def _modes_that_change_beside_pods(seed: int, chance: random.Random) -> Scenario:
    """The mode changes while pods run. Pods come for what each of the modes has."""
    modes = ("share", "cgpu", "topology")
    mode = chance.choice(modes)
    actions = at_random(chance, [_pod_for_some_mode, _job_pod_for_some_mode], 40, 0.1, LASTS_S)
    for number in range(6):
        next_mode = chance.choice(modes)
        actions.append(Action(3.0 + 4.0 * number + chance.random(), "set_mode", (0, next_mode)))
    decides = chance.random() < 0.5
    gpus = chance.choice((1, 2))
    return staged(seed, chance, gpus=gpus, mode=mode, actions=actions, decides=decides)


def _monitor_that_lists(seed: int, chance: random.Random) -> Scenario:
    """Another program lists kubelet's allocations while kubelet waits for the agent, so that reservations are lost."""
    mode = chance.choice(("share", "cgpu", "core_mem", "topology"))
    wants = Wants(mode, chance.choice(((8, 20), (20, 40))))
    actions = [
        Action(0.5, "lose_reservations", (0,)),
        Action(0.6, "slow_calls", (chance.choice((0.2, 1.0)), LASTS_S)),
        Action(0.7, "monitor", (0, chance.choice((0.05, 0.2)), LASTS_S)),
    ]
    kinds: list[Maker] = [wants.pod, wants.pod_that_ends, wants.pod_that_ends, forced_deletion]
    actions += at_random(chance, kinds, 40, 1.0, LASTS_S)
    decides = chance.random() < 0.5
    gpus = chance.choice((2, 4))
    return staged(seed, chance, gpus=gpus, mode=mode, actions=actions, decides=decides)


def _pods_that_kubelet_rejects(seed: int, chance: random.Random) -> Scenario:
    """Kubelet rejects pods before it asks the agent, reports that late, and goes on with pods of the same size."""
    mode = chance.choice(("share", "cgpu"))
    sizes = chance.choice(((40,), (70,)))
    wants = Wants(mode, sizes)
    actions = [Action(0.1, "use_one_loop")]
    for number in range(7):
        begins = 2.0 + 4.0 * number
        lasts_s = chance.choice((0.05, 0.2, 0.5))
        late_s = chance.choice((0.2, 0.5, 0.9))
        actions.append(Action(begins, "press_disk", (0, lasts_s, late_s)))
        actions += at_random(chance, [wants.pod], 2, begins - 0.1, begins + lasts_s)
        actions += at_random(chance, [wants.pod], 2, begins + lasts_s, begins + lasts_s + late_s)
        actions += at_random(chance, [forced_deletion], 6, begins + 2.0, begins + 3.0)
    return staged(seed, chance, gpus=4, mode=mode, actions=actions, versions=OLD_KUBELETS)


def _units_that_change_hands(seed: int, chance: random.Random) -> Scenario:
    """A pod with a decision gets the units of one that has just gone. Then a pod without a decision gets the rest.

    A list that was on its way shows the former pod, or that the next one has nothing yet. The pod without a decision is
    the oldest, and waits for room. So by their age, the agent cannot know that kubelet is done with the other one.
    """
    size = chance.choice((20, 30))
    rest = 80 - size
    # Admissions ask kubelet for lists, too. If some are in time, the next pod may come before the list that is late.
    share = chance.choice((0.5, 1.0))
    actions = [Action(0.5, "slow_some_lists", (share, 3.0, LASTS_S))]
    for number in range(5):
        begins = 1.0 + 5.5 * number
        actions.append(Action(begins, "create_stock_pod", (MEMORY, rest, 0, 1)))
        actions.append(Action(begins + 0.3, "create_stock_pod", (MEMORY, rest, 0, 1)))
        actions.append(Action(begins + 1.5, "create_pod", (MEMORY, size, 0, 1)))
        # Pods are numbered by age: this is the third one, and below the first one goes.
        gone_at = begins + 1.8 + chance.random() * 0.4
        actions.append(Action(gone_at, "delete_pod", (2, 0)))
        # Kubelet gives the units of an init container to the container after it.
        has_init = chance.random() < 0.5
        next_pod = ("create_init_pod", (MEMORY, size, 0, size, 0, 0.0)) if has_init else _pod_of(size)
        actions.append(Action(gone_at + 0.05, *next_pod))
        actions.append(Action(gone_at + 0.3 + chance.random() * 1.2, "delete_pod", (0, 0)))
        actions += at_random(chance, [forced_deletion], 10, begins + 5.0, begins + 5.3)
    # They answer for one pod, too, so that few admissions wait for a list.
    return staged(seed, chance, gpus=1, mode="share", actions=actions, versions=NEW_KUBELETS)


def _pod_of(size: int) -> tuple[str, Args]:
    return "create_pod", (MEMORY, size, 0, 1)


def _unseen_pods_on_one_gpu(seed: int, chance: random.Random) -> Scenario:
    """Many small pods with two containers come to one GPU, and neither watches nor lists show them for a while."""
    mode = chance.choice(("share", "cgpu"))
    containers = 2
    actions = [Action(0.5, "slow_lists", (4.0, LASTS_S))]
    for begins in (2.0, 14.0):
        actions.append(Action(begins, "silence_api", (8.0,)))
        actions.append(Action(begins, "slow_agents", (6.0, 8.0)))
        for number in range(12):
            at = begins + 0.5 + 0.4 * number
            actions.append(Action(at, "create_pod", (MEMORY, chance.choice((1, 2)), 0, containers)))
        actions += at_random(chance, [forced_deletion], 14, begins + 10.0, begins + 11.0)
    return staged(seed, chance, gpus=1, mode=mode, actions=actions, decides=False)


def _names_of_bound_pods(seed: int, chance: random.Random) -> Scenario:
    """Pods are deleted by force just after they were bound, and others have their names at once."""
    sizes = chance.choice(((8, 20), (20, 40), (8, 20, 40)))
    actions = []
    at = 1.0
    while at < LASTS_S - 3.0:
        after_s = chance.choice((0.0, 0.001, 0.003, 0.01))
        # Of two pods of one name that ask for the same, the agent may take one for the other.
        first, second = chance.sample(sizes, 2)
        actions.append(Action(at, "replace_bound_pod", (MEMORY, first, second, after_s)))
        for _ in range(chance.choice((0, 1, 2))):
            size = chance.choice(sizes)
            actions.append(Action(at, *_pod_of(size)))
        actions += at_random(chance, [forced_deletion], 3, at + 0.4, at + 0.7)
        at += 0.7
    decides = chance.random() < 0.8
    return staged(seed, chance, gpus=4, mode="share", actions=actions, decides=decides)


def _pod_for_some_mode(chance: random.Random) -> tuple[str, Args]:
    resource, amount = chance.choice(((MEMORY, 20), (MEMORY, 40), (WHOLE, 1)))
    return "create_pod", (resource, amount, 0, 1)


def _job_pod_for_some_mode(chance: random.Random) -> tuple[str, Args]:
    resource, amount = chance.choice(((MEMORY, 20), (MEMORY, 40), (WHOLE, 1)))
    return "create_job_pod", (resource, amount, 0, chance.choice((0.5, 3.0, 8.0)))


_STAGES: Sequence[Callable[[int, random.Random], Scenario]] = (
    _answers_that_come_late,
    _last_pod_that_ends,
    _modes_that_change_beside_pods,
    _monitor_that_lists,
    _pods_that_kubelet_rejects,
    _units_that_change_hands,
    _unseen_pods_on_one_gpu,
)
_MORE_STAGES = (_names_of_bound_pods,) * 3
