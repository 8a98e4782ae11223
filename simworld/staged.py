"""Small worlds that stage one rare circumstance each.

Some faults matter only if several things happen within a second. In worlds whose actions are drawn one by one, that
happens too seldom to be found by. So each of these worlds has what leads to one such circumstance.
"""

import random
from collections.abc import Callable

from simworld.history import GIB_PER_GPU, MEMORY
from simworld.scenario import Action, Maker, Scenario
from simworld.stage import LASTS_S, SIZES, at_random, forced_deletion, pod_of, staged
from simworld.staged_scheduling import SCHEDULING_STAGES
from simworld.swarm import Wants, restart_slow_agent

MORE_SEEDS = 72
"""Seeds from this one on have more circumstances: those below stay the worlds that tables name."""
SCHEDULING_SEEDS = 5_000_000
"""Seeds from this one on have those of `staged_scheduling`, too."""


def draw_staged_world(seed: int) -> Scenario:
    """The staged world of a seed. Seeds that follow each other have different circumstances."""
    stages = _STAGES
    if seed >= MORE_SEEDS:
        stages = (*stages, *_MORE_STAGES)
    if seed >= SCHEDULING_SEEDS:
        stages = (*stages, *SCHEDULING_STAGES)
    stage = stages[seed % len(stages)]
    return stage(seed, random.Random(f"{seed}/staged world"))


def _job_that_is_bound_in_part(seed: int, chance: random.Random) -> Scenario:
    """The scheduler ends when some pods of a job are bound. Others want the room that is left for the rest of it."""
    size, gpus = chance.choice(((40, 2), (70, 2), (70, 4)))
    # The job takes all of the room, so that any other pod that is placed meanwhile takes a place of the job.
    members = gpus * (GIB_PER_GPU // size)
    bound = chance.randint(1, members - 1)
    replicas = chance.choice((0, 0, 2))
    away_s = chance.choice((0.05, 1.0, 4.0))
    strike = Action(1.0, "strike_extender", ("binding done", bound, away_s))
    if replicas:
        # A kube-scheduler that goes on tries the pods of the job again after their back-off, and others before them.
        what = chance.choice(("kill_both", "kill_extender", "kill_extender"))
        strike = Action(1.0, "strike_scheduler", ("binding done", bound, what, away_s))
    # Replicas need some time until one of them leads.
    begins = 10.0 if replicas else 2.0
    job = Action(begins, "create_gang", (MEMORY, size, members, 0.0))
    others = [pod_of(size, begins + chance.random() * 4.0) for _ in range(members)]
    return staged(seed, chance, gpus=gpus, mode="share", actions=[strike, job, *others], replicas=replicas)


def _pod_that_is_forgotten(seed: int, chance: random.Random) -> Scenario:
    """Kube-scheduler does not come back to a pod for which GPUs are reserved. Others need the room."""
    size = chance.choice(SIZES)
    gpus = chance.choice((1, 2))
    room = gpus * (GIB_PER_GPU // size)
    is_of_job = chance.choice((0, 1))
    forget = Action(1.0, "forget_asked_pod", (is_of_job,))
    first = pod_of(size, 2.0)
    if is_of_job and room > 1:
        first = Action(2.0, "create_gang", (MEMORY, size, chance.randint(2, room), 0.0))
    others = [pod_of(size, 3.0 + chance.random() * 4.0) for _ in range(room + 1)]
    return staged(seed, chance, gpus=gpus, mode="share", actions=[forget, first, *others])


def _slow_lists(seed: int, chance: random.Random) -> Scenario:
    """Kubelet's lists do not have what was allocated while they were on their way."""
    mode = chance.choice(("share", "cgpu", "core_mem"))
    size = chance.choice((20, 40))
    wants = Wants(mode, (size,))
    late_s = chance.choice((1.0, 2.0, 4.0))
    actions = [Action(0.5, "slow_lists", (late_s, LASTS_S))]
    kinds: list[Maker] = [wants.pod, wants.pod_that_ends, wants.pod_that_ends, wants.name_again, forced_deletion]
    actions += at_random(chance, kinds, 24, 1.0, LASTS_S)
    if chance.random() < 0.5:
        actions += at_random(chance, [_other_mode], 3, 3.0, LASTS_S - 5.0)
    decides = chance.random() < 0.8
    gpus = chance.choice((2, 4))
    return staged(seed, chance, gpus=gpus, mode=mode, actions=actions, decides=decides)


def _mode_that_changes_while_calls_wait(seed: int, chance: random.Random) -> Scenario:
    """The agent has not read its pods yet, so kubelet's calls wait; then the node gets another mode."""
    mode = chance.choice(("share", "cgpu", "core_mem"))
    wants = Wants(mode, (8, 20))
    first_pods = [Action(0.1, *wants.pod(chance)) for _ in range(3)]
    actions = [*first_pods]
    for begins in (10.0, 26.0):
        actions.append(Action(begins, *restart_slow_agent(chance)))
        actions += at_random(chance, [wants.pod, wants.pod_that_ends], 6, begins, begins + 6.0)
        actions += at_random(chance, [_other_mode], 2, begins + 1.0, begins + 8.0)
        actions += at_random(chance, [forced_deletion], 4, begins + 10.0, begins + 12.0)
    return staged(seed, chance, gpus=2, mode=mode, actions=actions, versions=("1.34", "1.36", "1.37"), lasts_s=42.0)


def _gpu_that_stays_lost(seed: int, chance: random.Random) -> Scenario:
    """A GPU is lost, and pods go on to come and end."""
    mode = chance.choice(("share", "cgpu", "core_mem", "topology"))
    wants = Wants(mode, chance.choice(((8, 20), (40, 70))))
    lost_at = 2.0 + chance.random() * 5.0
    which = chance.randrange(1000)
    lost = Action(lost_at, "break_gpu", (0, which, 0))
    kinds: list[Maker] = [wants.pod, wants.pod_that_ends, wants.pod_that_ends, forced_deletion]
    pods = at_random(chance, kinds, 20, 0.1, LASTS_S)
    decides = chance.random() < 0.5
    gpus = chance.choice((2, 4))
    return staged(seed, chance, gpus=gpus, mode=mode, actions=[lost, *pods], decides=decides)


def _reservations_that_kubelet_loses(seed: int, chance: random.Random) -> Scenario:
    """Kubelet forgets what it reserves for a pod if it is asked for a list meanwhile, and offers that to the next."""
    mode = chance.choice(("share", "cgpu", "core_mem", "topology"))
    wants = Wants(mode, chance.choice(((8, 20), (20, 40))))
    actions = [Action(0.5, "lose_reservations", (0,))]
    for begins in (3.0, 15.0):
        actions.append(Action(begins, *restart_slow_agent(chance)))
        actions += at_random(chance, [wants.pod, wants.pod, wants.pod_that_ends], 8, begins, begins + 8.0)
    decides = chance.random() < 0.5
    gpus = chance.choice((2, 4))
    return staged(seed, chance, gpus=gpus, mode=mode, actions=actions, decides=decides)


def _forbidden_writes(seed: int, chance: random.Random) -> Scenario:
    """The last change of pods and of the node comes while the agent may not write it."""
    mode = chance.choice(("share", "cgpu", "core_mem"))
    wants = Wants(mode, (8, 20))
    begins = 5.0
    lasts_s = chance.choice((5.0, 15.0))
    actions = at_random(chance, [wants.pod], 3, 0.1, begins)
    # If both are forbidden, the agent says so on the Node, and writes that again when it may write pods.
    forbidden = chance.choice((("deny_pods",), ("deny_nodes",), ("deny_pods", "deny_nodes")))
    actions += [Action(begins, kind, (lasts_s,)) for kind in forbidden]
    actions += at_random(chance, [wants.pod], 3, begins + 0.1, begins + 1.0)
    if chance.random() < 0.5:
        next_mode = chance.choice(("share", "topology", "core_mem"))
        actions.append(Action(begins + 1.5, "set_mode", (0, next_mode)))
    # Where gpuscheduler decides, it has written the annotations of a pod with the Binding, and the agent seldom has to.
    decides = chance.random() < 0.5
    return staged(seed, chance, gpus=2, mode=mode, actions=actions, decides=decides)


def _decisions_of_tenants(seed: int, chance: random.Random) -> Scenario:
    """Pods come with decisions that their authors have written, for what they ask for or for more."""
    actions = [Action(0.1, "use_one_loop")]
    for number in range(10):
        amount = chance.choice((8, 20, 40, 100))
        claimed = chance.choice((amount, 80, 100, 640))
        at = 1.0 + 2.0 * number + chance.random()
        gpu = chance.randrange(2)
        actions.append(Action(at, "create_pod_with_decision", (amount, gpu, claimed)))
        size = chance.choice((8, 20, 40))
        actions.append(pod_of(size, at + chance.random() * 0.2))
    actions += at_random(chance, [forced_deletion], 12, 4.0, LASTS_S)
    decides = chance.random() < 0.5
    mode = chance.choice(("share", "cgpu"))
    return staged(seed, chance, gpus=2, mode=mode, actions=actions, decides=decides)


def _plans_of_tenants(seed: int, chance: random.Random) -> Scenario:
    """The scheduler starts again, and reads a plan that a tenant has written for a pod of a job that runs."""
    actions = [Action(1.5, "create_gang", (MEMORY, 8, 2, 0.0))]
    away_s = chance.choice((2.0, 4.0))
    for begins in (8.0, 20.0):
        amount = chance.choice((8, 20))
        index = chance.randrange(2)
        claimed = chance.choice((0, 1, amount, 72, 80, 640))
        actions.append(Action(begins, "restart_scheduler", (0, away_s)))
        actions.append(Action(begins + 1.0, "forge_plan", (index, claimed, amount)))
        for _ in range(2):
            size = chance.choice((20, 40))
            actions.append(pod_of(size, begins + chance.random() * 6.0))
    return staged(seed, chance, gpus=2, mode="share", actions=actions)


def _labels_of_tenants(seed: int, chance: random.Random) -> Scenario:
    """A tenant labels pods that run as pods of a job that still waits for the last one of its own."""
    actions = [pod_of(8, 1.0 + chance.random()) for _ in range(3)]
    for number in (1, 2):
        begins = 6.0 + 10.0 * number
        members = chance.choice((2, 3))
        lag_s = chance.choice((3.0, 4.0))
        size = chance.choice((8, 20))
        actions.append(Action(begins, "create_gang", (MEMORY, size, members, lag_s)))
        labeled_at = begins - 1.0 + chance.random() * 2.0
        which = chance.randrange(1000)
        actions.append(Action(labeled_at, "label_as_member", (which, f"job-{number}", members)))
    return staged(seed, chance, gpus=2, mode="share", actions=actions)


def _bindings_that_are_refused(seed: int, chance: random.Random) -> Scenario:
    """The API server refuses a Binding of a job, as if the pod had just changed. Others want the pod's place."""
    size, gpus = chance.choice(((40, 2), (70, 2), (70, 4)))
    members = gpus * (GIB_PER_GPU // size)
    codes = chance.choice(((409,), (409, 409), (422,), (500,), (0, 409)))
    begins = 10.0
    behind_s = chance.choice((0.0, 3.0))
    actions = [
        Action(begins, "fail_bindings", (behind_s, *codes)),
        Action(begins, "create_gang", (MEMORY, size, members, 0.0)),
    ]
    others_come = [begins + 0.2 + chance.random() * 4.0 for _ in range(members + 2)]
    actions += [pod_of(size, at) for at in others_come]
    return staged(seed, chance, gpus=gpus, mode="share", actions=actions, replicas=2)


def _other_mode(chance: random.Random) -> tuple[str, tuple[int, str, float]]:
    mode = chance.choice(("share", "cgpu", "core_mem", "topology", "default"))
    return "change_mode_for", (0, mode, chance.choice((0.5, 3.0, 10.0)))


_STAGES: tuple[Callable[[int, random.Random], Scenario], ...] = (
    _job_that_is_bound_in_part,
    _pod_that_is_forgotten,
    _slow_lists,
    _mode_that_changes_while_calls_wait,
    _gpu_that_stays_lost,
    _reservations_that_kubelet_loses,
    _forbidden_writes,
    _decisions_of_tenants,
)
_MORE_STAGES = (
    _plans_of_tenants,
    _labels_of_tenants,
    _bindings_that_are_refused,
)
