"""Answers calls that carry whole Node objects a few nodes at a time, so that other calls come in between."""

import asyncio
from collections.abc import Callable, Mapping

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.single_pods.carried_nodes import CarriedNodes
from gpuscheduler.extender.protocol import FilterCall, node_object

MOST_CALLS = 2
"""Calls that are answered at a time: each may have 16 MB."""
NODES_A_TURN = 20
"""Nodes that are read without another call in between."""


class CarriedCalls:
    """The calls in progress.

    Args:
        known: the nodes of the cluster by name, with their users.
        problem: why these are not known; empty if they are.
    """

    def __init__(self, known: Mapping[str, NodeUsage], problem: Callable[[], str]) -> None:
        self._known = known
        self._problem = problem
        self._calls = 0

    async def answer(self, call: FilterCall) -> FilterAnswer:
        """On which of the call's nodes its pod fits, see `CarriedNodes`. Raises ProtocolError."""
        problem = self._problem()
        if problem:
            return FilterAnswer(error=problem)
        if self._calls >= MOST_CALLS:
            return FilterAnswer(error=f"{MOST_CALLS} other calls with whole nodes are being answered; try again")
        self._calls += 1
        try:
            return await self._answer(call)
        finally:
            self._calls -= 1

    async def _answer(self, call: FilterCall) -> FilterAnswer:
        pod = pod_facts(call.pod)
        nodes = CarriedNodes(pod, self._known)
        for number, (name, raw) in enumerate(call.nodes.items()):
            if number % NODES_A_TURN == 0:
                await asyncio.sleep(0)
            node = node_object(raw)
            nodes.add(name, node_facts(node))
        return nodes.answer()
