"""Preemption: the pods of one node that have to go so that a request fits, chosen by GPU."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime

from gpuscheduler.core.choose_gpus import fits
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

PODS_A_TRY = 4
"""Pods that are taken from a node in the time of one try."""


def victims(  # noqa: PLR0913 (what a choice is made of)
    pod: PodFacts,
    node: NodeUsage,
    pods: Mapping[str, PodFacts],
    proposed: Collection[str] = (),
    size: Callable[[PodFacts], int] = lambda _: 1,
    tries: Tries | None = None,
) -> frozenset[str] | None:
    """UIDs of the pods to evict; None if even all of lower priority are not enough, or the tries are used up.

    The cheapest set has the lowest top priority, then the fewest pods that cannot go on, then the youngest.

    Args:
        pod: the pod that waits.
        node: with what is in use.
        pods: UID to pod, for the pods that use the node.
        proposed: UIDs that kube-scheduler proposes. They are evicted where they are enough.
        size: how many pods cannot go on without a pod, itself included: those of its job.
        tries: of the call, in which kube-scheduler proposes hundreds of nodes.
    """
    tries = Tries() if tries is None else tries
    request = pod.request
    if proposed and _fits_without(request, node, proposed, tries):
        return frozenset(proposed)
    lower = _lower(pod, node, pods)
    if not _fits_without(request, node, lower, tries):
        return None
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
    if tries.gave_up:
        return None
    return min(sets, key=lambda uids: _price(uids, pods, size), default=None)


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
    size: Callable[[PodFacts], int],
) -> tuple[int, int, float]:
    """What it costs to evict these pods, in the order that counts, see `victims`."""
    evicted = [pods[uid] for uid in uids]
    highest = max((pod.priority for pod in evicted), default=0)
    oldest = min((pod.created for pod in evicted), default="")
    # The pods of a job end together, so a job counts once, with all of its pods.
    ended: dict[Hashable, int] = {}
    for pod in evicted:
        pods_that_end = size(pod)
        key: Hashable = pod.uid
        if pod.job and pods_that_end > 1:
            # Not by what its label says, because the labels of a job that was scaled differ.
            key = pod.job.key_in(pod.name.namespace)
        ended[key] = pods_that_end
    all_that_end = sum(ended.values())
    return highest, all_that_end, -created_s(oldest)


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
