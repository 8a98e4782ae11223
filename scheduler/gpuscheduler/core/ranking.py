"""The nodes for a request, cheapest first. Costs are kept for equal requests, and renewed for nodes that changed."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_arrays import Floats, Ints, NodeArrays
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.policy.accepted_models import ModelTerms
from gpuscheduler.core.policy.fleet import MOST_GPUS, CostPolicy, Demand
from gpuscheduler.core.policy.mix import Mix

MOST_WARMED = 16
"""Different requests whose nodes are rated at the start."""
MOST_TABLES = 1024
"""Different requests whose costs are kept, in a small cluster."""
TABLES_BYTES = 16 << 20
"""Memory of all tables of costs. With 5,000 nodes, it is enough for 240 different requests."""
BYTES_A_ROW = 13
"""Memory of a table for each node."""
FEWEST_TABLES = 16
"""Tables that are kept in any case."""
ROWS_A_STEP = 256
"""Tables grow by this many rows, so that new nodes do not make all of them grow one by one."""
MOST_DEMANDS = 1024
"""Different requests that are kept as demands."""
MOST_RATED = 1000
"""States of nodes that the policy rates for one call. Nodes in other states come last in this call."""
UNRATED = 1e6
"""Cost where a request may fit and the policy cannot rate it: after all others, but never refused."""

_Asked = tuple[GpuRequest, float]
"""What a pod asks for: GPUs, and cores. Pods that ask for the same share a table of costs."""


@dataclass(slots=True)
class _Table:
    """Costs of one request by row.

    Attributes:
        costs: infinite where the request does not fit, `UNRATED` where only a search can tell.
        gpus: the GPU to prefer.
        versions: of the row's numbers that the cost was worked out from; -1 for none.
        mix: version of the mix that the costs are of.
    """

    costs: Floats
    gpus: NDArray[np.int8]
    versions: NDArray[np.int32]
    mix: int = 0

    @classmethod
    def empty(cls, rows: int) -> "_Table":
        return cls(
            costs=np.full(rows, np.inf),
            gpus=np.zeros(rows, dtype=np.int8),
            versions=np.full(rows, -1, dtype=np.int32),
        )


class Ranking:
    """Ranks the nodes of `usage` by the costs of `policy`.

    Args:
        usage: nodes and their users. The ranking empties `usage.changed`.
        policy: rates a choice.
        mix: of pods, by which the policy rates.
    """

    def __init__(self, usage: ClusterUsage, policy: CostPolicy, mix: Mix) -> None:
        self._policy = policy
        self._mix = mix
        self._demands: dict[tuple[GpuRequest, float, ModelTerms], Demand] = {}
        self._nodes = NodeArrays(usage)
        self._tables: OrderedDict[_Asked, _Table] = OrderedDict()

    def nodes(
        self,
        request: GpuRequest,
        cpu: float,
        among: Collection[str],
    ) -> Iterator[tuple[str, int, float]]:
        """Nodes of `among` where the request may fit, cheapest first: name, position of the GPU to prefer, and cost.

        Nodes of equal cost come in a fixed permutation of their names. `fit` decides: it may still find that the groups
        of the request have no room on GPUs that seem to have enough.
        """
        self._read_changes()
        rows = self._nodes.rows_of(among)
        table, unrated = self._table(request, cpu, rows)
        for row in self._in_order(rows, table.costs[rows]):
            preferred = int(table.gpus[row])
            cost = float(table.costs[row])
            yield self._nodes.names[row], preferred, cost
        for row in unrated:
            yield self._nodes.names[row], 0, UNRATED

    def without_gpus(self, cpu: float, among: Collection[str]) -> dict[str, float]:
        """What a pod without GPUs costs GPU pods on those of `among` that have GPUs, by its cores.

        Nodes in equal states cost the same, so each state is rated once. At most `MOST_RATED` states are, and nodes in
        others are as bad as the worst of these.
        """
        self._read_changes()
        rows = self._nodes.rows_of(among)
        if not len(rows):
            return {}
        _, first, state_of = np.unique(self._nodes.columns.state[rows], return_index=True, return_inverse=True)
        examples = rows[first[:MOST_RATED]]
        demand = Demand(gpus=0, fraction=0.0, cpu=cpu)
        rated, _ = self._policy.costs(self._nodes.fleet(), examples, demand)
        costs = np.full(len(first), rated.max())
        costs[: len(rated)] = rated
        by_row = costs[state_of].tolist()
        return {self._nodes.names[row]: cost for row, cost in zip(rows.tolist(), by_row, strict=True)}

    def no_room(self, request: GpuRequest, cpu: float, names: Collection[str]) -> None:
        """Record that a search found no room for the request on these nodes. Each is searched again once it changes."""
        table = self._tables.get((request, cpu))
        if table is None or not names:
            return
        rows = self._nodes.rows_of(names)
        table.costs[rows] = np.inf
        # With the current version, the row counts as rated until its node changes.
        table.versions[rows] = self._nodes.columns.version[rows]

    def begin(self, pods: Collection[PodFacts]) -> None:
        """Learn from the pods that are there at the start, and rate all nodes for what most of them ask for.

        Otherwise, the first pod that asks for it would wait for that.
        """
        # In the order in which they came, so that the mix is the one that a scheduler has which saw them come.
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.uid)):
            self.learn(pod.request, pod.cpu, pod.models)
        self._read_changes()
        all_rows = np.arange(len(self._nodes.names))
        for request, cpu in _common_requests(pods):
            self._table(request, cpu, all_rows, most=len(all_rows))

    def learn(self, request: GpuRequest, cpu: float, terms: ModelTerms = ()) -> None:
        """Count a pod in the mix, as a part of the GPUs that half of the nodes with its models have or less.

        To rate nodes for the pod, its own models are not needed: kube-scheduler names the nodes that it accepts. Other
        pods leave room on the models that pods of the mix ask for.
        """
        if request.kind is RequestKind.NONE or request.problem:
            return
        self._read_changes()
        asked = request, cpu, terms
        demand = self._demands.get(asked)
        if demand is None:
            models = self._nodes.accepted_models(terms)
            part = self._nodes.typical_part(request, models)
            demand = Demand(
                request.gpus,
                part,
                cpu,
                models,
            )
            # Any author of pods may ask for thousands of different amounts.
            if len(self._demands) >= MOST_DEMANDS:
                self._demands.clear()
            self._demands[asked] = demand
        if demand.fraction and demand.gpus <= MOST_GPUS:
            self._mix.saw(demand)

    def memory_without(self, demands: Collection[Amounts]) -> int:
        """Free bytes of memory on GPUs that have room for none of `demands`; 0 if there are none."""
        self._read_changes()
        return self._nodes.memory_without(demands)

    def has_in_all(self, request: GpuRequest) -> bool:
        """Whether as much is free on all GPUs together as the request wants."""
        self._read_changes()
        return self._nodes.has_in_all(request)

    def _in_order(self, rows: Ints, costs: Floats) -> Iterator[int]:
        """Rows with finite costs, cheapest first. The first is usually enough, so the others are sorted later."""
        if not len(rows):
            return
        least = costs[costs.argmin()]
        if least == np.inf:
            return
        tie = self._nodes.columns.tie
        (equal,) = (costs == least).nonzero()
        cheapest = rows[equal]
        # Most often one node is the cheapest, and there is no tie.
        first = int(cheapest[0] if len(cheapest) == 1 else cheapest[tie[cheapest].argmin()])
        yield first
        finite = np.isfinite(costs)
        rows = rows[finite]
        costs = costs[finite]
        for index in np.lexsort((rows, tie[rows], costs)):
            row = int(rows[index])
            if row != first:
                yield row

    def _table(
        self,
        request: GpuRequest,
        cpu: float,
        rows: Ints,
        most: int = MOST_RATED,
    ) -> tuple[_Table, Ints]:
        """The costs of a request, worked out again for those of `rows` that changed since.

        Also the rows where it may fit that are not rated, since at most `most` are.
        """
        table = self._table_of((request, cpu))
        if table.mix < self._mix.version:
            # Each cost depends on the mix, so that none of another mix may stay.
            table.mix = self._mix.version
            table.versions[:] = -1
        is_old = table.versions[rows] < self._nodes.columns.version[rows]
        unrated = self._rate(
            table,
            request,
            cpu,
            rows[is_old],
            most,
        )
        return table, unrated

    def _table_of(self, asked: _Asked) -> _Table:
        """The table of a request, which may be an empty one."""
        table = self._tables.get(asked)
        size = -(-len(self._nodes.names) // ROWS_A_STEP) * ROWS_A_STEP
        if table is None or len(table.costs) < size:
            table = _Table.empty(size)
            self._tables[asked] = table
            in_memory = TABLES_BYTES // max(size * BYTES_A_ROW, 1)
            most = max(min(in_memory, MOST_TABLES), FEWEST_TABLES)
            while len(self._tables) > most:
                self._tables.popitem(last=False)
        # The table that has not been used for the longest time is dropped first.
        self._tables.move_to_end(asked)
        return table

    def _rate(
        self,
        table: _Table,
        request: GpuRequest,
        cpu: float,
        rows: Ints,
        most: int,
    ) -> Ints:
        """Rate the request on these rows, and return those where it may fit and that are not rated.

        Nodes in equal states cost the same, so each state is rated once: at most `most` states.
        """
        if not len(rows):
            return rows
        columns = self._nodes.columns
        if len(rows) > most:
            # In the order of ties, as the callers' order would prefer the nodes that they name first.
            by_tie = np.argsort(columns.tie[rows], kind="stable")
            rows = rows[by_tie]
        examples, state_of = _states(rows, columns.state[rows], len(self._nodes.names))
        (fitting,) = self._nodes.fit(request, examples).nonzero()
        rated = fitting[:most]
        costs = np.full(len(examples), np.inf)
        gpus = np.zeros(len(examples), dtype=np.int8)
        if len(rated):
            costs[rated], gpus[rated] = self._rated(request, cpu, examples[rated])
        # A cost in the table is of before the row changed. So it is replaced on rows that are not rated, too.
        table.costs[rows] = costs[state_of]
        table.gpus[rows] = gpus[state_of]
        if len(fitting) <= most:
            table.versions[rows] = columns.version[rows]
            return rows[:0]
        is_unrated = np.zeros(len(examples), dtype=np.bool_)
        is_unrated[fitting[most:]] = True
        of_unrated = is_unrated[state_of]
        done = rows[~of_unrated]
        table.versions[done] = columns.version[done]
        return rows[of_unrated]

    def _rated(
        self,
        request: GpuRequest,
        cpu: float,
        fitting: Ints,
    ) -> tuple[Floats, Ints]:
        """Costs on rows where the request may fit, and the position of the GPU to prefer on each."""
        fleet = self._nodes.fleet()
        parts = self._nodes.parts(request, fitting)
        # A policy rates a part of a GPU, which is another one on nodes with other GPUs.
        different_parts = set(parts.tolist())
        if len(different_parts) == 1:
            demand = Demand(request.gpus, different_parts.pop(), cpu)
            rated, preferred = self._policy.costs(fleet, fitting, demand)
        else:
            rated = np.full(len(fitting), np.inf)
            preferred = np.zeros(len(fitting), dtype=np.int64)
            for part in sorted(different_parts):
                is_equal = parts == part
                demand = Demand(request.gpus, part, cpu)
                rated[is_equal], preferred[is_equal] = self._policy.costs(fleet, fitting[is_equal], demand)
        # A search may still find room on the nodes for which the policy finds none.
        is_rated = np.isfinite(rated)
        costs = np.where(is_rated, rated, UNRATED)
        return costs, preferred

    def _read_changes(self) -> None:
        any_new = self._nodes.read_changes()
        if any_new:
            # The typical node, and the models that a pod accepts, may be others from now on.
            self._demands.clear()


def _states(rows: Ints, states: Ints, limit: int) -> tuple[Ints, Ints]:
    """A row in each state, in the order in which the states first occur, and for each row the index of its state.

    `states` are those of `rows`, and less than `limit`.
    """
    positions = np.arange(len(rows))
    first_of = np.empty(limit, dtype=np.int64)
    # Of several rows in one state, the one that is written last counts: the first.
    first_of[states[::-1]] = positions[::-1]
    (firsts,) = (first_of[states] == positions).nonzero()
    index_of = np.empty(limit, dtype=np.int64)
    index_of[states[firsts]] = np.arange(len(firsts))
    return rows[firsts], index_of[states]


def _common_requests(pods: Iterable[PodFacts]) -> list[_Asked]:
    """The requests, with their cores, of most pods."""
    counts: Counter[_Asked] = Counter()
    for pod in pods:
        request = pod.request
        if request.kind is not RequestKind.NONE and not request.problem:
            counts[request, pod.cpu] += 1
    most_common = counts.most_common(MOST_WARMED)
    return [asked for asked, _ in most_common]
