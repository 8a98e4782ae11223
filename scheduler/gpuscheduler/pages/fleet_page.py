"""The pages /fleet and /pods, which the page of the cluster reads: a row for each node, and the pods of each.

Tens of thousands of people's pods and thousands of nodes are written without keeping the scheduler's loop: some nodes
at a time, and a node that has not changed since the last reading is not written again.

/fleet is JSON with arrays, because names of fields would be most of it::

    {"problemsUrl": "", "agents": [namespace of the agents' pods, port of their pages], "nodes": [
        [name, mode, model, MiB of a unit, usable GPUs, GPUs, pods, waiting pods,
         [memory, core, gpus of the largest free share],
         [[severity, reason, message, whether docs/problems.md has the reason], ...],
         [[minor, usable, whole, memory, held memory, core, held core, pods], ...]], ...],
     "namespaces": [[name, pods, held MiB, held core, held whole GPUs, waiting pods], ...],
     "waiting": [[pod, memory, core, gpus, why], ...], the oldest first, "waitingCount": 12,
     "waitingUnitMib": MiB of a unit that a waiting pod asks for, 0 if the nodes' units differ}

/pods has of each node its pods, as `[name, reserved, memory, core, whole GPUs, {minor: [memory, core]}]`; amounts of -1
are all of a GPU.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import get_args

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.fleet.agent_pods import DEFAULT_NAMESPACE, AgentPods
from gpuagent.domain.fleet.node_problems import NodeProblem
from gpuagent.domain.fleet.node_summary import GpuUse, NodeReading
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.node_usage import Room
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.pages.node_view import Cluster, Holding, NodeView, PodView, node_view, pod_views
from gpuscheduler.pages.pieces import Pieces

MOST_WAITING = 300
"""Waiting pods on the page: those that wait longest. /usage has all."""
NODES_A_PART = 100
"""Nodes that have not changed, between two turns of the loop."""
PODS_A_PART = 2000
"""Pods that are looked at between two turns of the loop."""
_DOCUMENTED = frozenset(get_args(EventReason))
_UNKNOWN_MIB = 1024
"""MiB of a unit on nodes that do not say it, and of pods that wait while no node says it: the default."""


_NamespaceHolding = tuple[str, int, int, int, int]
"""A namespace, and what its pods hold: how many pods, MiB, percent of compute, whole GPUs."""


@dataclass(frozen=True, slots=True)
class _Sources:
    """What a row was made from. These values are replaced, and never changed, so that their identity is enough."""

    facts: NodeFacts | None
    room: Room | None
    reading: NodeReading | None
    reserved: tuple[str, ...]

    def is_same(self, other: "_Sources") -> bool:
        """Whether nothing of the node has changed in between."""
        has_same_node = self.facts is other.facts and self.reading is other.reading
        return has_same_node and self.room is other.room and self.reserved == other.reserved


@dataclass(frozen=True, slots=True)
class _Row:
    """A node as it was written: JSON, the MiB of its unit, and what pods hold of it by namespace."""

    sources: _Sources
    text: bytes
    unit_mib: int
    # Tuples take less memory than a dictionary, and there are thousands of rows.
    namespaces: tuple[_NamespaceHolding, ...]


class FleetPages:
    """Makes both pages on the scheduler's loop, for `PacedReading`.

    Args:
        cluster: read, and never changed.
        problems_url: address of docs/problems.md, to which problems are linked; empty for none.
        agents: where people reach the agents, for commands on the page.
    """

    def __init__(self, cluster: Cluster, problems_url: str, agents: AgentPods) -> None:
        self._cluster = cluster
        self._agents = agents
        self._problems_url = problems_url
        self._rows: dict[str, _Row] = {}

    async def fleet(self) -> tuple[bytes, ...]:
        """The page /fleet."""
        pieces = Pieces()
        agents = [self._agents.namespace or DEFAULT_NAMESPACE, self._agents.port]
        pieces.add(b'{"problemsUrl":' + _json(self._problems_url) + b',"agents":' + _json(agents) + b',"nodes":[')
        namespaces: dict[str, Holding] = {}
        units: set[int] = set()
        rows: dict[str, _Row] = {}
        separator = b""
        for position, name in enumerate(self._cluster.names()):
            row = self._rows.get(name)
            sources = self._sources(name)
            is_current = row is not None and row.sources.is_same(sources)
            if row is None or not is_current:
                view = node_view(name, self._cluster)
                # It may be gone since the page began.
                if view is None:
                    continue
                row = _row(view, sources)
            rows[name] = row
            pieces.add(separator + row.text)
            separator = b","
            units.add(row.unit_mib)
            _add(namespaces, row.namespaces)
            if not is_current or position % NODES_A_PART == 0:
                await asyncio.sleep(0)
        self._rows = rows
        waiting = await self._waiting()
        pieces.add(b'],"namespaces":' + _json(_namespaces(namespaces, waiting)))
        await asyncio.sleep(0)
        first = nsmallest(MOST_WAITING, waiting, key=_by_age)
        shown = [_waiting(pod, self._cluster.others.why(pod)) for pod in first]
        pieces.add(b',"waiting":' + _json(shown) + b',"waitingCount":' + _json(len(waiting)))
        pieces.add(b',"waitingUnitMib":' + _json(_unit_of_waiting(units)) + b"}")
        return pieces.all()

    async def pods(self) -> tuple[bytes, ...]:
        """The page /pods."""
        pieces = Pieces()
        pieces.add(b"{")
        separator = b""
        for name in self._cluster.names():
            node = self._cluster.nodes.get(name)
            if not node or not node.users:
                continue
            views = [_pod(view) for view in pod_views(node, self._cluster)]
            pieces.add(separator + _json(name) + b":" + _json(views))
            separator = b","
            await asyncio.sleep(0)
        pieces.add(b"}")
        return pieces.all()

    async def _waiting(self) -> list[PodFacts]:
        """The pods that ask for GPUs and have no node, whichever scheduler they name."""
        # Of the pods of this moment: others may come and go in between.
        waiting = list(self._cluster.others.pods.values())
        for position, pod in enumerate(list(self._cluster.pods.values())):
            if not pod.node and pod.request.kind is not RequestKind.NONE:
                waiting.append(pod)
            if position % PODS_A_PART == 0:
                await asyncio.sleep(0)
        return waiting

    def _sources(self, name: str) -> _Sources:
        node = self._cluster.nodes.get(name)
        reading = self._cluster.readings.get(name)
        if node is None:
            return _Sources(None, None, reading, ())
        # A reservation ends when its pod is bound, and nothing of the node changes then.
        reserved = [uid for uid in node.users if self._cluster.reservations.get(uid)]
        return _Sources(node.facts, node.room, reading, tuple(reserved))


def _row(view: NodeView, sources: _Sources) -> _Row:
    summary = view.summary
    largest = summary.largest
    values = [
        summary.name,
        summary.mode,
        summary.model,
        summary.unit_mib,
        summary.usable,
        summary.gpus,
        summary.pods,
        summary.waiting,
        [largest.memory, largest.core, largest.gpus],
        [_problem(problem) for problem in summary.problems],
        [_gpu(gpu) for gpu in view.gpus],
    ]
    unit_mib = summary.unit_mib or _UNKNOWN_MIB
    namespaces = tuple(
        (name, held.pods, held.memory * unit_mib, held.core, held.whole) for name, held in view.namespaces.items()
    )
    return _Row(sources, _json(values), summary.unit_mib, namespaces)


def _problem(problem: NodeProblem) -> list[object]:
    is_documented = problem.reason in _DOCUMENTED
    return [problem.severity, problem.reason, problem.message, int(is_documented)]


def _gpu(gpu: GpuUse) -> list[int]:
    return [
        gpu.minor,
        int(gpu.usable),
        int(gpu.whole),
        gpu.memory,
        gpu.held_memory,
        gpu.core,
        gpu.held_core,
        gpu.pods,
    ]


def _pod(view: PodView) -> list[object]:
    gpus = {str(minor): [amounts.memory, amounts.core] for minor, amounts in view.gpus.items()}
    return [view.name, int(view.reserved), view.held.memory, view.held.core, view.whole, gpus]


def _by_age(pod: PodFacts) -> tuple[str, str, str]:
    """The oldest pod first, and pods of one second by name."""
    return pod.created, pod.name.namespace, pod.name.name


def _waiting(pod: PodFacts, why: str) -> list[object]:
    request = pod.request
    whole = request.gpus if request.kind is RequestKind.WHOLE else 0
    return [str(pod.name), request.need.memory, request.need.core, whole, why]


def _unit_of_waiting(units: Iterable[int]) -> int:
    """The MiB of a unit that a waiting pod asks for; 0 if the nodes' units differ.

    A pod asks for units before it is known on which node it will be.
    """
    known = {unit_mib for unit_mib in units if unit_mib}
    if len(known) > 1:
        return 0
    return known.pop() if known else _UNKNOWN_MIB


def _namespaces(holdings: Mapping[str, Holding], waiting: Iterable[PodFacts]) -> list[list[object]]:
    """The rows of the namespaces, by name."""
    waits = Counter(pod.name.namespace for pod in waiting)
    names = sorted({*holdings, *waits})
    rows: list[list[object]] = []
    for name in names:
        holding = holdings.get(name, Holding())
        rows.append([name, holding.pods, holding.memory, holding.core, holding.whole, waits[name]])
    return rows


def _add(sums: dict[str, Holding], holdings: Iterable[_NamespaceHolding]) -> None:
    """Add what pods hold on a node. The memory of these sums is in MiB, because units of nodes differ."""
    for name, pods, mib, core, whole in holdings:
        holding = sums.get(name)
        if holding is None:
            holding = sums.setdefault(name, Holding())
        holding.add(pods, mib, core, whole)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
