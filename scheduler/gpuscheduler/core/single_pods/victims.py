"""Preemption: the pods of one node that have to go so that a request fits, chosen by GPU."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuscheduler.core.choose_gpus import fits
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

PODS_A_TRY = 4
"""Pods that are taken from a node in the time of one try."""

Ending = Callable[[PodFacts, int], int]
"""How many pods cannot go on once so many pods of a pod's job, itself included, are evicted."""


def alone(_pod: PodFacts, evicted: int) -> int:
    """No other pods end."""
    return evicted


def victims(  # noqa: PLR0913 (what a choice is made of)
    pod: PodFacts,
    node: NodeUsage,
    pods: Mapping[str, PodFacts],
    proposed: Collection[str] = (),
    ending: Ending = alone,
    tries: Tries | None = None,
) -> frozenset[str] | None:
    """UIDs of the pods to evict; None if even all of lower priority are not enough, or the tries are used up.

    The cheapest set has the lowest top priority, then the fewest pods that cannot go on, then the youngest.

    Args:
        pod: the pod that waits.
        node: with what is in use.
        pods: UID to pod, for the pods that use the node.
        proposed: UIDs that kube-scheduler proposes. They are evicted where they are enough, unless another set has the
            same top priority, and fewer pods end with it, because no pod of a job is in it.
        ending: how many pods end.
        tries: of the call, in which kube-scheduler proposes hundreds of nodes.
    """
    tries = Tries() if tries is None else tries
    request = pod.request
    are_enough = bool(proposed) and _fits_without(request, node, proposed, tries)
    if are_enough:
        cost = cost_of(proposed, pods, ending)
        # If there is room for the GPUs, the proposed pods have to go for another reason.
        are_for_gpus = cost.breaks_jobs and not fits(request, node, tries)
        if not are_for_gpus:
            return frozenset(proposed)
    lower = _lower(pod, node, pods)
    if not _fits_without(request, node, lower, tries):
        return frozenset(proposed) if are_enough else None
    sets: list[frozenset[str]] = []
    for pool in _pools(request, node, lower):
        fewest = _fewest(
            request,
            node,
            pool,
            pods,
            tries,
        )
        if fewest is not None:
            sets.append(fewest)
    if are_enough:
        sets.append(frozenset(proposed))
    elif tries.gave_up:
        return None
    return min(sets, key=lambda uids: _price(uids, pods, ending), default=None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What it costs to evict pods.

    Attributes:
        highest: their top priority.
        ended: how many pods end, with those of their jobs.
        breaks_jobs: a job cannot go on.
    """

    highest: int
    ended: int
    breaks_jobs: bool


def cost_of(
    uids: Iterable[str],
    pods: Mapping[str, PodFacts],
    ending: Ending,
) -> Cost:
    """What it costs to evict these pods; those that are not known count as one each."""
    evicted = [pods[uid] for uid in uids if uid in pods]
    highest = max((pod.priority for pod in evicted), default=0)
    # The pods of a job end together, so a job counts once, with all of its pods.
    jobs: dict[Hashable, list[PodFacts]] = {}
    for pod in evicted:
        # Not by what its label says, because the labels of a job that was scaled differ.
        key: Hashable = pod.job.key_in(pod.name.namespace) if pod.job else pod.uid
        jobs.setdefault(key, []).append(pod)
    ended = 0
    breaks_jobs = False
    for members in jobs.values():
        pods_that_end = ending(members[0], len(members))
        ended += pods_that_end
        breaks_jobs |= pods_that_end > len(members)
    return Cost(highest, ended, breaks_jobs)


def _lower(
    pod: PodFacts,
    node: NodeUsage,
    pods: Mapping[str, PodFacts],
) -> list[str]:
    """UIDs of the node's pods of lower priority that do not end already."""
    lower = []
    for uid in node.users:
        user = pods.get(uid)
        # A pod with a reservation is not on the node yet, so that it cannot be evicted.
        if user is None or not user.node or user.deleting:
            continue
        if user.priority < pod.priority:
            lower.append(uid)
    return lower


def _pools(
    request: GpuRequest,
    node: NodeUsage,
    lower: Sequence[str],
) -> list[list[str]]:
    """Which of these users may have to go together: those of each GPU, and all, if the request may need several."""
    by_minor: dict[int, list[str]] = {}
    for uid in lower:
        for minor in _minors(node, uid):
            on_gpu = by_minor.setdefault(minor, [])
            on_gpu.append(uid)
    pools = [by_minor[minor] for minor in sorted(by_minor)]
    if not request.is_single_share:
        pools.append(list(lower))
    return pools


def _fewest(
    request: GpuRequest,
    node: NodeUsage,
    pool: Iterable[str],
    pods: Mapping[str, PodFacts],
    tries: Tries,
) -> frozenset[str] | None:
    """Evict all of the pool, then keep each that need not go: the highest priority first, then the oldest."""
    evicted = set(pool)
    trial = _without(node, evicted, tries)
    if not fits(request, trial, tries):
        return None

    def rank(uid: str) -> tuple[int, str]:
        pod = pods[uid]
        return -pod.priority, pod.created

    for uid in sorted(evicted, key=rank):
        trial.use(uid, node.users[uid])
        if fits(request, trial, tries):
            evicted.discard(uid)
        else:
            trial.release(uid)
    return frozenset(evicted)


def _fits_without(
    request: GpuRequest,
    node: NodeUsage,
    evicted: Collection[str],
    tries: Tries,
) -> bool:
    trial = _without(node, evicted, tries)
    return fits(request, trial, tries)


def _without(node: NodeUsage, evicted: Collection[str], tries: Tries) -> NodeUsage:
    """The node without some of its users."""
    # A call has hundreds of nodes, each with up to a hundred pods.
    tries.spend(len(evicted) // PODS_A_TRY)
    trial = node.copy()
    for uid in evicted:
        trial.release(uid)
    return trial


def _price(
    uids: frozenset[str],
    pods: Mapping[str, PodFacts],
    ending: Ending,
) -> tuple[int, int, float]:
    """What it costs to evict these pods, in the order that counts, see `victims`."""
    cost = cost_of(uids, pods, ending)
    oldest = min((pods[uid].created for uid in uids if uid in pods), default="")
    return cost.highest, cost.ended, -created_s(oldest)


def created_s(created: str) -> float:
    """Unix time of a creationTimestamp; 0 if it is not one."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError):
        # The API server writes the time itself. Whatever else stands there must not end the call.
        return 0.0


def _minors(node: NodeUsage, uid: str) -> set[int]:
    """Minor numbers of the GPUs that a pod uses; none where only its request is known."""
    use = node.users[uid]
    if isinstance(use, GpuRequest):
        return set()
    return {minor for minor, _ in use}
