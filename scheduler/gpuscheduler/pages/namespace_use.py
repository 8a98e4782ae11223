"""The page /use: what the pods of each namespace use of what they hold, summed up from the answers of agents.

Agents are asked only while a reader looks at the page, only those of nodes on which pods hold GPUs, a few at a time,
and at most once a minute. Nothing of it is written to the API server::

    {"isOn": true, "asked": 40, "nodes": 40, "unknown": [[why, how many nodes, one of them], ...],
     "namespaces": [[name, pods, pods of which the use is not known, pods idle for an hour,
                     held bytes, used bytes (p95), peak bytes, unused bytes], ...]}

`nodes` is null until the first reading begins. Idle pods and bytes are pairs: what is known, null if nothing is, and
whether it is all. If it is not, the number is the least.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

from gpuagent.domain.fleet.agent_pods import AgentPod, AgentPods, AgentUnreadableError
from gpuagent.domain.fleet.held_use import HeldUse
from gpuagent.domain.fleet.waste import NamespaceWaste, waste
from gpuagent.domain.sharing.mode import Mode
from gpuscheduler.pages.node_view import Cluster

log = logging.getLogger(__name__)

EVERY_S = 60.0
"""Least pause between two readings of all agents."""
AT_A_TIME = 8
"""Agents that are asked at the same time."""
PAUSE_S = 0.2
"""Pause after each answer: 40 a second, of 2 ms each, so the reading gets a tenth of the scheduler's loop at most."""
NODES_A_PART = 10
"""Answers that are summed up between two turns of the loop."""
MOST_REASONS = 5
"""Different reasons on the page, the most frequent ones."""

Ask = Callable[[AgentPod], Awaitable[Sequence[HeldUse]]]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one node's agent said: sums of each namespace, or why there are none."""

    namespaces: tuple[NamespaceWaste, ...] = ()
    problem: str = ""


class NamespaceUse:
    """Reads the agents and makes the page, on the scheduler's loop.

    Args:
        cluster: says which nodes have pods that hold GPUs.
        agents: where to ask.
        ask: asks one agent. Raises AgentUnreadableError.
    """

    def __init__(self, cluster: Cluster, agents: AgentPods, ask: Ask) -> None:
        self._cluster = cluster
        self._agents = agents
        self._ask = ask
        self._wanted = asyncio.Event()
        self._answers: dict[str, _Answer] = {}
        self._nodes: list[str] | None = None
        """Of the last reading; None before the first one."""
        self._asked = 0
        self._changes = 0
        self._page: tuple[int, bytes] | None = None
        """The last page, and after which change it was made."""

    async def page(self) -> bytes:
        """The page as far as it is known. Agents are asked soon after, if the last answers are old."""
        self._wanted.set()
        changes = self._changes
        if self._page and self._page[0] == changes:
            return self._page[1]
        asked = self._asked
        nodes = self._nodes
        sums: dict[str, NamespaceWaste] = {}
        problems: dict[str, list[str]] = {}
        # Of this moment: more answers may come in between.
        for position, (node, answer) in enumerate(list(self._answers.items())):
            if position % NODES_A_PART == 0:
                await asyncio.sleep(0)
            for of_namespace in answer.namespaces:
                known = sums.get(of_namespace.namespace)
                sums[of_namespace.namespace] = known + of_namespace if known else of_namespace
            if answer.problem:
                problems.setdefault(answer.problem, []).append(node)
        page = {
            "isOn": bool(self._agents.namespace),
            "asked": asked,
            "nodes": None if nodes is None else len(nodes),
            "unknown": list(_reasons(problems)),
            "namespaces": [astuple(sums[name]) for name in sorted(sums)],
        }
        text = json.dumps(page, separators=(",", ":")).encode()
        self._page = (changes, text)
        return text

    async def run(self) -> None:
        """Ask agents whenever the page was asked for, until canceled."""
        while self._agents.namespace:
            await self._wanted.wait()
            try:
                await self._read_all()
            except Exception:
                # A bug must not end the process, which has more important work.
                log.exception("Reading what namespaces use failed")
            await asyncio.sleep(EVERY_S)
            # Requests in that pause were answered from the last reading. Only a later one causes the next reading.
            self._wanted.clear()

    async def _read_all(self) -> None:
        nodes = self._holding()
        self._nodes = nodes
        self._asked = 0
        self._changes += 1
        holding = set(nodes)
        self._answers = {node: answer for node, answer in self._answers.items() if node in holding}
        agents = self._agents.by_node()
        remaining = iter(nodes)
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(AT_A_TIME, len(nodes))):
                workers.create_task(self._read_each(remaining, agents))

    async def _read_each(self, remaining: Iterator[str], agents: Mapping[str, AgentPod]) -> None:
        """Ask agents until none remain. Several workers share the iterator, so that a slow agent delays one of them."""
        for node in remaining:
            self._answers[node] = await self._read(agents.get(node))
            self._asked += 1
            self._changes += 1
            await asyncio.sleep(PAUSE_S)

    async def _read(self, agent: AgentPod | None) -> _Answer:
        if agent is None:
            return _Answer(problem=f"no running pod of gpuagent in the namespace {self._agents.namespace}")
        try:
            uses = await self._ask(agent)
        except AgentUnreadableError as err:
            return _Answer(problem=str(err))
        of_node = waste({agent.node: uses}, ())
        return _Answer(tuple(of_node.namespaces))

    def _holding(self) -> list[str]:
        """Nodes on which pods hold GPUs, by name. Of claims, only the agent knows whether they hold some."""
        holding = {name for name, node in self._cluster.nodes.items() if node.users}
        for name, reading in self._cluster.readings.items():
            if reading.report and reading.report.mode == Mode.DRA:
                holding.add(name)
        return sorted(holding)


def _reasons(problems: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int, str]]:
    counts = Counter({problem: len(nodes) for problem, nodes in problems.items()})
    for problem, count in counts.most_common(MOST_REASONS):
        yield problem, count, problems[problem][0]
