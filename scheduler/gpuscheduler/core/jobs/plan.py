"""Plans all pods of a job over nodes and links: the fewest nodes, then the best weakest link.

The plan works on copies of the nodes' free GPUs, and places all pods or none. Equal pods are placed together.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop

from gpuscheduler.core.fit import Choice, fit, keeps_rules
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

Places = dict[str, tuple[str, Choice]]
"""UID to node name and GPUs."""


def plan(
    pods: Collection[PodFacts],
    nodes: Mapping[str, NodeUsage],
    links: Links,
    *,
    near: Collection[str] = (),
    without: Mapping[str, frozenset[str]] | None = None,
) -> Places:
    """Nodes and GPUs for the pods; fewer than all if they do not fit together.

    Args:
        pods: the members to place.
        nodes: by name, with what is in use.
        links: between the GPUs of each node.
        near: nodes with other members of the job, which are used first.
        without: UID to the nodes that kube-scheduler does not accept for the pod.
    """
    trial = dict(nodes)
    used, places = set(near), Places()
    alike: dict[tuple[GpuRequest, frozenset[str]], list[PodFacts]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        alike.setdefault((pod.request, (without or {}).get(pod.uid, frozenset())), []).append(pod)
    for (request, passed), equal in sorted(alike.items(), key=_demand, reverse=True):
        left = equal
        suitable = {name: node for name, node in trial.items() if name not in passed} if passed else trial
        rooms = _Rooms(request, max(pod.cpu for pod in left), len(left), suitable, links, used)
        while left:
            if (found := rooms.next(len(left))) is None:
                return places
            name, count = found
            trial[name] = trial[name].copy()
            choices = _take(request, left[:count], trial[name], links)
            places |= {pod.uid: (name, choice) for pod, choice in zip(left, choices, strict=False)}
            left = left[count:]
            used.add(name)
    return places


def _demand(alike: tuple[tuple[GpuRequest, frozenset[str]], object]) -> tuple[int, Amounts, int]:
    """How hard equal pods are to place: by what they ask for, then by how many nodes do not accept them."""
    (request, passed), _ = alike
    return request.gpus, request.need, len(passed)


@dataclass(frozen=True, slots=True, order=True)
class _Room:
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
        cpu: float,
        wanted: int,
        nodes: Mapping[str, NodeUsage],
        links: Links,
        used: Collection[str],
    ) -> None:
        self._left: list[_Room] = []
        for name, node in nodes.items():
            by_cpu = int((node.facts.cpu - node.cpu_used) // cpu) if cpu and node.facts.cpu else wanted
            pods = min(wanted, by_cpu, _capacity(request, node, wanted))
            if pods > 0:
                free = node.unused() if request.kind is RequestKind.WHOLE else []
                together = links.choose(node, free, pods * request.gpus) if free else ()
                weakest = links.weakest(node, together)
                self._left.append(_Room(name not in used, wanted - pods, -weakest, name, pods, len(free)))
        heapify(self._left)

    def next(self, wanted: int) -> tuple[str, int] | None:
        """A node and how many pods it takes: the tightest that takes all, else the one that takes most."""
        enough = [room for room in self._left if room.pods >= wanted]
        if enough:
            best = min(enough, key=lambda room: (room.apart, room.size, room.weakest, room.name))
            self._left.remove(best)
            heapify(self._left)
            return best.name, wanted
        return (best.name, best.pods) if self._left and (best := heappop(self._left)) else None


def _capacity(request: GpuRequest, node: NodeUsage, wanted: int) -> int:
    """How many pods with this request fit on the node; counting ends at `wanted`."""
    if request.kind is RequestKind.WHOLE:
        return len(node.unused()) // request.gpus
    if len(request.groups) == request.gpus == 1:  # each takes its need from one GPU, whichever order they come in
        fitting = (request.need.times_in(node.free[position], node.places[position]) for position, _ in node.usable())
        return sum(fitting) if keeps_rules(request, node) else 0
    trial = node.copy()
    for count in range(wanted):
        if (choice := fit(request, trial)) is None:
            return count
        trial.use(str(count), choice.used)
    return wanted


def _take(request: GpuRequest, pods: Sequence[PodFacts], node: NodeUsage, links: Links) -> list[Choice]:
    """GPUs for each of the pods, which share the best set of the node; `node` counts them from now on."""
    among: Collection[int] | None = None
    if request.kind is RequestKind.WHOLE:
        among = links.choose(node, node.unused(), len(pods) * request.gpus)
    choices = []
    for pod in pods:
        choice = fit(request, node, links=links, among=among)
        assert choice, f"{pod.name} was counted to fit on {node.facts.name}"
        node.use(pod.uid, choice.used)
        node.cpu_used += pod.cpu
        choices.append(choice)
    return choices
