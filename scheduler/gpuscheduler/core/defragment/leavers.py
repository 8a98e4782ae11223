"""Which pods of one node have to leave so that a pod fits there."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import combinations

from gpuscheduler.core.choose_gpus import Choice, fit
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.defragment.acceptance import has_resources
from gpuscheduler.core.gpu_request import Amounts, RequestKind
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.single_pods.victims import created_s

USERS_A_TRY = 32
"""Users of a node that are copied in the time of one try."""
Price = tuple[int, int, Amounts, float]
_Pool = tuple[Sequence[PodFacts], int | None]
"""Pods, and the position of the GPU that they are on, if the pod that waits needs one only."""


@dataclass(frozen=True, slots=True)
class Leavers:
    """Pods without which the pod that waits fits.

    Attributes:
        pods: that leave, the largest first.
        node: where they are now, with the pod that waits in their place.
        choice: the GPUs of the pod that waits.
    """

    pods: tuple[PodFacts, ...]
    node: NodeUsage
    choice: Choice

    @property
    def price(self) -> Price:
        """What it costs to move the pods: the least is best."""
        return _price(self.pods)


class LeaverSearch:
    """Looks for sets of pods without which one pod fits.

    Args:
        waiting: the pod that needs room.
        links: between the GPUs of nodes.
        tries: of the whole search.
    """

    def __init__(self, waiting: PodFacts, links: Links, tries: Tries) -> None:
        self._waiting = waiting
        self._links = links
        self._tries = tries

    def of(self, node: NodeUsage, movable: Sequence[PodFacts], count: int) -> Iterator[Leavers]:
        """The sets of `count` pods of a node, as far as the tries go."""
        for pool, position in self._pools(node, movable, count):
            cheapest_first = sorted(pool, key=lambda pod: _price([pod]))
            for pods in combinations(cheapest_first, count):
                # The node is copied, with the uses of its pods.
                if not self._tries.spend(1 + len(node.users) // USERS_A_TRY):
                    return
                candidate = self._without(node, pods, position)
                if candidate:
                    yield candidate

    def _pools(self, node: NodeUsage, movable: Sequence[PodFacts], count: int) -> Iterator[_Pool]:
        """Pods of which so many may be enough. Most nodes and GPUs are ruled out here, without a search."""
        request = self._waiting.request
        if request.kind is RequestKind.WHOLE:
            unused = len(node.room.unused)
            if request.gpus <= unused + _most_gpus(movable, count):
                yield movable, None
        elif len(request.groups) > 1:
            yield movable, None
        else:
            yield from self._pools_of_share(node, movable, count)

    def _pools_of_share(self, node: NodeUsage, movable: Sequence[PodFacts], count: int) -> Iterator[_Pool]:
        request = self._waiting.request
        each = request.need.over(request.gpus)
        on_gpu = _by_minor(movable)
        has_room = 0
        may_have: dict[int, list[PodFacts]] = {}
        for position, gpu in enumerate(node.facts.gpus.gpus):
            if not gpu.usable:
                continue
            pool = on_gpu.get(gpu.minor, [])
            free = node.free[position]
            if node.pods_left[position] > 0 and each.within(free):
                has_room += 1
            elif each.within(free + _most_freed(pool, gpu.minor, count)):
                may_have[position] = pool
        if request.gpus == 1:
            yield from ((pool, position) for position, pool in may_have.items())
            return
        lacking = request.gpus - has_room
        if lacking <= min(len(may_have), _most_gpus(movable, count)):
            pods = {pod.uid: pod for pool in may_have.values() for pod in pool}
            yield list(pods.values()), None

    def _without(self, node: NodeUsage, pods: tuple[PodFacts, ...], position: int | None) -> Leavers | None:
        """These pods, if the one that waits fits on the node without them."""
        waiting = self._waiting
        trial = node.copy()
        for pod in pods:
            trial.release(pod.uid)
            trial.used -= pod.requests
        if not has_resources(waiting, trial):
            return None
        preferred = [] if position is None else [position]
        choice = fit(waiting.request, trial, preferred, links=self._links, tries=self._tries)
        if choice is None:
            return None
        trial.use(waiting.uid, choice.used)
        trial.used += waiting.requests
        largest_first = sorted(pods, key=_size, reverse=True)
        return Leavers(tuple(largest_first), trial, choice)


def _by_minor(pods: Sequence[PodFacts]) -> dict[int, list[PodFacts]]:
    """Minor number of each GPU to the pods on it."""
    by_minor: dict[int, list[PodFacts]] = {}
    for pod in pods:
        for minor, _ in pod.used or ():
            by_minor.setdefault(minor, []).append(pod)
    return by_minor


def _most_gpus(movable: Sequence[PodFacts], count: int) -> int:
    """The most GPUs on which so many pods are."""
    return sum(nlargest(count, (len(pod.used or ()) for pod in movable)))


def _most_freed(pool: Sequence[PodFacts], minor: int, count: int) -> Amounts:
    """The most that so many pods free on one GPU."""
    uses = [dict(pod.used or ())[minor] for pod in pool]
    return Amounts(
        memory=sum(nlargest(count, (use.memory for use in uses))),
        core=sum(nlargest(count, (use.core for use in uses))),
    )


def _size(pod: PodFacts) -> tuple[int, Amounts]:
    """How hard a pod is to place."""
    return pod.request.gpus, pod.request.need


def _price(pods: Sequence[PodFacts]) -> Price:
    """Highest priority, whole GPUs, units, and age of the oldest: the first that differs counts."""
    sizes = Counter[str]()
    for pod in pods:
        sizes["whole"] += pod.request.gpus if pod.request.kind is RequestKind.WHOLE else 0
        sizes["memory"] += pod.request.need.memory
        sizes["core"] += pod.request.need.core
    highest = max(pod.priority for pod in pods)
    oldest = min(pod.created for pod in pods)
    units = Amounts(sizes["memory"], sizes["core"])
    return highest, sizes["whole"], units, -created_s(oldest)
