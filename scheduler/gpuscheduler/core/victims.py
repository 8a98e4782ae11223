"""Preemption: the pods of one node that have to go so that a request fits, chosen by GPU."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from gpuscheduler.core.fit import Tries, fits
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
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
    bound = {uid: one for uid in node.users if (one := pods.get(uid)) and one.node and not one.deleting}
    lower = {uid: one for uid, one in bound.items() if one.priority < pod.priority}
    minors = {minor for uid in lower for minor, _ in _gpus(node, uid)}
    pools = [[uid for uid in lower if minor in dict(_gpus(node, uid))] for minor in sorted(minors)]
    if not _fits_without(request, node, lower, tries):
        return None
    if request.kind is not RequestKind.SHARE or request.gpus > 1 or len(request.groups) > 1:
        pools.append(list(lower))  # it may take pods of several GPUs
    found = [some for pool in pools if (some := _fewest(request, node, pool, pods, tries)) is not None]
    return None if tries.gave_up else min(found, key=lambda uids: _price(uids, pods, size), default=None)


def _fewest(
    request: GpuRequest, node: NodeUsage, pool: Iterable[str], pods: Mapping[str, PodFacts], tries: Tries
) -> frozenset[str] | None:
    """Evict all of the pool, then keep each that need not go: the highest priority first, then the oldest."""
    gone = set(pool)
    trial = _without(node, gone, tries)
    if not fits(request, trial, tries):
        return None
    for uid in sorted(gone, key=lambda uid: (-pods[uid].priority, pods[uid].created)):
        trial.use(uid, node.users[uid])
        if fits(request, trial, tries):
            gone.discard(uid)
        else:
            trial.release(uid)
    return frozenset(gone)


def _fits_without(request: GpuRequest, node: NodeUsage, gone: Collection[str], tries: Tries) -> bool:
    return fits(request, _without(node, gone, tries), tries)


def _without(node: NodeUsage, gone: Collection[str], tries: Tries) -> NodeUsage:
    """The node without some of its users."""
    tries.spend(len(gone) // PODS_A_TRY)
    trial = node.copy()
    for uid in gone:
        trial.release(uid)
    return trial


def _price(
    uids: frozenset[str], pods: Mapping[str, PodFacts], size: Callable[[PodFacts], int]
) -> tuple[int, int, float]:
    gone = [pods[uid] for uid in uids]
    top = max((pod.priority for pod in gone), default=0)
    oldest = min((pod.created for pod in gone), default="")
    ended = {(pod.name.namespace, pod.job) if size(pod) > 1 else pod.uid: size(pod) for pod in gone}
    return top, sum(ended.values()), -_seconds(oldest)


def _seconds(created: str) -> float:
    """Unix time of a creationTimestamp; 0 where it is none."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _gpus(node: NodeUsage, uid: str) -> tuple[tuple[int, object], ...]:
    use = node.users[uid]
    return () if isinstance(use, GpuRequest) else use
