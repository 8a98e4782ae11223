"""A cluster whose pods a policy places one by one, each at once or never."""

from dataclasses import dataclass

import numpy as np

from bench.trace.trace import Nodes, Pod
from gpuscheduler.core.policy.fleet import EPSILON, CostPolicy, Demand, Floats, Ints
from gpuscheduler.core.policy.mix import Mix

DIGITS = 9
"""Parts of GPUs and cores are rounded, so that errors do not add up."""


@dataclass(slots=True)
class _Table:
    """Costs and GPUs of one demand by row, and the change up to which they are right."""

    costs: Floats
    gpus: Ints
    change: int = -1


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a pod is."""

    pod: Pod
    row: int
    gpus: Ints


class Cluster:
    """The nodes in a random order, which decides between equal costs.

    Args:
        nodes: of the trace.
        policy: rates choices.
        mix: that the policy uses; costs are kept as long as its version stays.
        rng: for the order.
        draw: for choices that draw one of the equal nodes instead; None for the first.
    """

    def __init__(
        self,
        nodes: Nodes,
        policy: CostPolicy,
        mix: Mix,
        rng: np.random.Generator,
        draw: np.random.Generator | None = None,
    ) -> None:
        order = rng.permutation(len(nodes.gpus))
        self._fleet, self._memory = nodes.fleet(order), nodes.memory[order].copy()
        self._policy, self._mix, self._draw = policy, mix, draw
        self._changed = np.zeros(len(order), dtype=np.int64)
        self._changes = 0
        self._tables: dict[Demand, _Table] = {}
        self._version = mix.version

    def place(self, pod: Pod) -> Placed | None:
        """Place a pod on the cheapest node; None if it fits on none."""
        table = self._table(pod.demand)
        enough = (self._fleet.cpu_free >= pod.demand.cpu - EPSILON) & (self._memory >= pod.memory)
        costs = np.where(enough, table.costs, np.inf)
        row = int(costs.argmin())
        if costs[row] == np.inf:
            return None
        if self._draw is not None:
            row = int(self._draw.choice(np.flatnonzero(costs == costs[row])))
        placed = Placed(pod, row, self._gpus(pod.demand, row, int(table.gpus[row])))
        self._take(placed, 1)
        return placed

    def release(self, placed: Placed) -> None:
        """End a pod."""
        self._take(placed, -1)

    def _table(self, demand: Demand) -> _Table:
        if self._version != self._mix.version:
            self._version = self._mix.version
            self._tables.clear()
        table = self._tables.get(demand)
        if table is None:
            table = self._tables[demand] = _Table(np.empty(len(self._changed)), np.empty_like(self._changed))
        rows = np.flatnonzero(self._changed > table.change)
        if len(rows):
            table.costs[rows], table.gpus[rows] = self._policy.costs(self._fleet, rows, demand)
        table.change = self._changes
        return table

    def _gpus(self, demand: Demand, row: int, first: int) -> Ints:
        """The GPUs: the one that the policy chose, or the fullest ones with room."""
        free = self._fleet.free[row]
        if demand.gpus == 1:
            return np.array([first])
        return np.where(free >= demand.fraction - EPSILON, free, np.inf).argsort(kind="stable")[: demand.gpus]

    def _take(self, placed: Placed, sign: int) -> None:
        fleet, row, demand = self._fleet, placed.row, placed.pod.demand
        fleet.free[row, placed.gpus] = (fleet.free[row, placed.gpus] - sign * demand.fraction).round(DIGITS)
        fleet.cpu_free[row] = round(fleet.cpu_free[row] - sign * demand.cpu, DIGITS)
        self._memory[row] -= sign * placed.pod.memory
        self._changes += 1
        self._changed[row] = self._changes
