"""Plans all pods of a job over nodes and links: the fewest nodes, then the best weakest link.

The plan works on copies of the nodes' free GPUs, and places all pods or none. Equal pods are placed together.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import NamedTuple

from gpuscheduler.core.choose_gpus import Choice, Tries, fit, keeps_rules
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

Places = dict[str, tuple[str, Choice]]
"""UID to node name and GPUs."""
PLAN_TRIES = 20_000
"""Work that one plan may take, see `Tries`: other calls wait meanwhile."""
NODES_A_TRY = 2
"""Nodes that are compared in the time of one try."""


@dataclass(frozen=True, slots=True)
class OtherThan:
    """All nodes but these, in the place of a set with the names of thousands."""

    names: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name not in self.names

    def __len__(self) -> int:
        """More than any set of names has, and the more the fewer are left."""
        return 10**9 - len(self.names)


Passed = frozenset[str] | OtherThan
"""Nodes that kube-scheduler does not accept for a pod."""
_Alike = tuple[GpuRequest, Resources, Passed]


def plan(  # noqa: PLR0913 (by name)
    pods: Collection[PodFacts],
    nodes: Mapping[str, NodeUsage],
    links: Links,
    *,
    near: Collection[str] = (),
    without: Mapping[str, Passed] | None = None,
    tries: Tries | None = None,
) -> Places:
    """Nodes and GPUs for the pods; fewer than all if they do not fit together, or the tries are used up.

    Args:
        pods: the members to place.
        nodes: by name, with what is in use.
        links: between the GPUs of each node.
        near: nodes with other members of the job, which are used first.
        without: UID to the nodes that kube-scheduler does not accept for the pod.
        tries: of the plan.
    """
    tries = Tries(PLAN_TRIES) if tries is None else tries
    trial = dict(nodes)
    used = set(near)
    places = Places()
    for (request, requests, passed), equal in _hardest_first(pods, without or {}):
        remaining = equal
        rooms = _Rooms(
            request,
            requests=requests,
            wanted=len(equal),
            nodes=_without(trial, passed),
            links=links,
            used=used,
            tries=tries,
        )
        while remaining:
            room = rooms.next(len(remaining))
            if room is None or tries.gave_up:
                return places
            name, count = room
            # A copy, so that a plan that fails leaves no trace.
            node = trial[name].copy()
            trial[name] = node
            placed = remaining[:count]
            choices = _take(request, placed, node, links)
            for pod, choice in zip(placed, choices, strict=True):
                places[pod.uid] = name, choice
            remaining = remaining[count:]
            # Later pods of the job prefer this node, too.
            used.add(name)
    return places


def _hardest_first(
    pods: Iterable[PodFacts],
    without: Mapping[str, Passed],
) -> list[tuple[_Alike, list[PodFacts]]]:
    """Pods that may have each other's places, in the order of their names; those that are hard to place first."""
    alike: dict[_Alike, list[PodFacts]] = {}
    by_name = sorted(pods, key=lambda pod: pod.name)
    for pod in by_name:
        passed = without.get(pod.uid, frozenset())
        equal = alike.setdefault((pod.request, pod.requests, passed), [])
        equal.append(pod)
    return sorted(alike.items(), key=_demand, reverse=True)


def _without(nodes: Mapping[str, NodeUsage], passed: Passed) -> Mapping[str, NodeUsage]:
    """The nodes that are not passed over."""
    if isinstance(passed, OtherThan):
        accepted = sorted(passed.names)
        return {name: nodes[name] for name in accepted if name in nodes}
    if not passed:
        return nodes
    return {name: node for name, node in nodes.items() if name not in passed}


def _demand(alike: tuple[_Alike, object]) -> tuple[int, Amounts, int, int, int]:
    """How hard equal pods are to place: by what they ask for, then by how many nodes do not accept them."""
    (request, requests, passed), _ = alike
    return request.gpus, request.need, requests.cpu, requests.memory, len(passed)


class _Room(NamedTuple):
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


class _Rooms:
    """The room of every node for one request, best first; each node is taken once."""

    def __init__(  # noqa: PLR0913 (what a plan is made of)
        self,
        request: GpuRequest,
        requests: Resources,
        wanted: int,
        nodes: Mapping[str, NodeUsage],
        links: Links,
        used: Collection[str],
        tries: Tries,
    ) -> None:
        self._remaining: list[_Room] = []
        self._most = 0
        # To compare all nodes takes time even if none is searched.
        tries.spend(len(nodes) // NODES_A_TRY)
        # Nodes that are alike have the same room, so that each kind is looked at once.
        rooms: dict[tuple[Hashable, int], tuple[int, int, int]] = {}
        for name, node in nodes.items():
            limit = requests.times_in(node.facts.allocatable, node.used, wanted)
            alike = node.alike(), limit
            room = rooms.get(alike)
            if room is None:
                if limit < 1 or not tries.spend():
                    continue
                room = _room(
                    request,
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
                    _Room(
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

    def next(self, wanted: int) -> tuple[str, int] | None:
        """A node and how many pods it takes: the tightest that takes all, else the one that takes most."""
        enough: list[_Room] = []
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


def _tightness(room: _Room) -> tuple[bool, int, int, str]:
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


def _take(
    request: GpuRequest,
    pods: Sequence[PodFacts],
    node: NodeUsage,
    links: Links,
) -> list[Choice]:
    """GPUs for each of the pods, which share the best set of the node; `node` counts them from now on."""
    among: Collection[int] | None = None
    if request.kind is RequestKind.WHOLE:
        among = links.choose(node, node.unused(), len(pods) * request.gpus)
    choices = []
    for pod in pods:
        choice = fit(request, node, links=links, among=among)
        assert choice, f"{pod.name} was counted to fit on {node.facts.name}"
        node.use(pod.uid, choice.used)
        node.used += pod.requests
        choices.append(choice)
    return choices
