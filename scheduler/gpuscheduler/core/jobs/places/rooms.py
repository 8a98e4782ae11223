"""How many pods of a group each node takes, the best node first."""

from collections.abc import Collection, Hashable, Mapping
from heapq import heapify, heappop
from typing import NamedTuple

from gpuscheduler.core.choose_gpus import fit, keeps_rules
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
from gpuscheduler.core.jobs.places.groups import Group
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage

NODES_A_TRY = 2
"""Nodes that are compared in the time of one try."""
RESOURCES_A_NODE = 4
"""Resources that are compared in the time of one node with CPU and memory alone."""


def look_tries(nodes: int, resources: int) -> int:
    """What it takes to compare so many nodes, and so many resources of each besides CPU and memory."""
    return nodes * (1 + resources // RESOURCES_A_NODE) // NODES_A_TRY


class Room(NamedTuple):
    """How many pods of a request a node takes. The best room is the least.

    Attributes:
        apart: the node has no pod of the job.
        missing: how many of the wanted pods it does not take.
        weakest: negative MB/s of the weakest link among their GPUs.
        name: of the node.
        pods: how many it takes.
        size: number of GPUs that are free.
    """

    apart: bool
    missing: int
    weakest: int
    name: str
    pods: int
    size: int


class Rooms:
    """The room of every node for one group, best first; each node is taken once.

    Args:
        group: pods that are alike.
        wanted: how many of them have no place yet.
        nodes: that kube-scheduler accepts for them.
        links: between the GPUs of each node.
        used: names of nodes with other members of the job.
        tries: of the plan.
    """

    def __init__(  # noqa: PLR0913 (what a plan is made of)
        self,
        group: Group,
        wanted: int,
        nodes: Mapping[str, NodeUsage],
        links: Links,
        used: Collection[str],
        tries: Tries,
    ) -> None:
        self._remaining: list[Room] = []
        self._most = 0
        # To compare all nodes takes time even if none is searched.
        if not tries.spend(look_tries(len(nodes), len(group.requests.others))):
            return
        # Nodes that are alike have the same room, so that each kind is looked at once.
        rooms: dict[tuple[Hashable, int], tuple[int, int, int]] = {}
        for name, node in nodes.items():
            limit = group.requests.times_in(node.facts.allocatable, node.used, wanted)
            alike = node.alike(), limit
            room = rooms.get(alike)
            if room is None:
                if limit < 1 or not tries.spend():
                    continue
                room = _room(
                    group.request,
                    limit,
                    node,
                    links,
                    tries,
                )
                rooms[alike] = room
            pods, weakest, size = room
            if pods > 0:
                is_apart = name not in used
                self._remaining.append(
                    Room(
                        is_apart,
                        wanted - pods,
                        -weakest,
                        name,
                        pods,
                        size,
                    )
                )
                self._most = max(self._most, pods)
        heapify(self._remaining)

    def best_first(self) -> list[Room]:
        """All rooms."""
        return sorted(self._remaining)

    def next(self, wanted: int) -> tuple[str, int] | None:
        """A node and how many pods it takes: the tightest that takes all, else the one that takes most."""
        enough: list[Room] = []
        # To look for one costs a look at every node, which is in vain while none takes so many.
        if wanted <= self._most:
            enough = [room for room in self._remaining if room.pods >= wanted]
        if enough:
            tightest = min(enough, key=_tightness)
            self._remaining.remove(tightest)
            heapify(self._remaining)
            return tightest.name, wanted
        if not self._remaining:
            return None
        best = heappop(self._remaining)
        return best.name, best.pods


def _tightness(room: Room) -> tuple[bool, int, int, str]:
    """The least first: with pods of the job, then with the fewest free GPUs, then with the best links."""
    return room.apart, room.size, room.weakest, room.name


def _room(
    request: GpuRequest,
    limit: int,
    node: NodeUsage,
    links: Links,
    tries: Tries,
) -> tuple[int, int, int]:
    """How many pods a node takes, at most `limit`; MB/s of the weakest link among their GPUs; its free GPUs."""
    pods = min(limit, _capacity(request, node, limit, tries))
    if pods < 1 or request.kind is not RequestKind.WHOLE:
        return pods, 0, 0
    free = node.room.unused
    together = links.choose(node, free, pods * request.gpus)
    return pods, links.weakest(node, together), len(free)


def _capacity(
    request: GpuRequest,
    node: NodeUsage,
    wanted: int,
    tries: Tries,
) -> int:
    """How many pods with this request fit on the node; counting ends at `wanted`."""
    if request.kind is RequestKind.WHOLE:
        return len(node.room.unused) // request.gpus
    if len(request.groups) == request.gpus == 1:
        # Each pod takes its need from one GPU, whichever order they come in, so there is nothing to search.
        if not keeps_rules(request, node):
            return 0
        fitting = 0
        for position, _ in node.usable():
            fitting += request.need.times_in(node.free[position], node.pods_left[position])
        return fitting
    # Containers of a pod may need several GPUs, so that only a trial shows how many pods fit.
    trial = node.copy()
    for count in range(wanted):
        choice = fit(request, trial, tries=tries)
        if choice is None:
            return count
        trial.use(str(count), choice.used)
    return wanted
