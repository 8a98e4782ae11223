"""The nodes for a request, cheapest first. Costs are kept for equal requests, and renewed for nodes that changed."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.policy.fleet import MOST_GPUS, CostPolicy, Demand, Fleet
from gpuscheduler.core.policy.mix import Mix

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_TABLES = 64
"""Different requests whose costs are kept. A table has 24 bytes a node."""
MOST_DEMANDS = 1024
"""Different requests that are kept as demands."""
MOST_RATED = 1000
"""Nodes that the policy rates for one call. The others keep the costs that they had, or are not chosen by this call."""
FIRST_ROWS = 64
"""Rows of the arrays at first. They double whenever a node finds no row."""
UNRATED = 1e6
"""Cost where a request may fit and the policy cannot rate it: after all others, but never refused."""

_Asked = tuple[GpuRequest, float]
"""What a pod asks for: GPUs, and cores. Pods that ask for the same share a table of costs."""


@dataclass(slots=True)
class _Columns:
    """The nodes as arrays, with a row for each node.

    Attributes:
        memory, core: free units of each GPU; -1 where the GPU takes no pod. Shape (rows, MOST_GPUS).
        free: the free part of each GPU, 0 to 1. Shape (rows, MOST_GPUS).
        unused: number of GPUs that a request for whole GPUs may get.
        gpus: number of usable GPUs.
        memory_total, core_total: units of the node's largest GPU.
        step, both: rules of the node, see `NodeGpus`.
        unit_mib: MiB of one unit of memory.
        wide: the node has more GPUs than these arrays.
        cpu_free, cpu_total: cores.
        model: index of the GPUs' model.
        tie: decides between nodes of equal cost: a fixed permutation.
        version: of the last change.
    """

    memory: Ints
    core: Ints
    free: Floats
    unused: Ints
    gpus: Ints
    memory_total: Ints
    core_total: Ints
    step: Ints
    both: Bools
    unit_mib: Ints
    wide: Bools
    cpu_free: Floats
    cpu_total: Floats
    model: Ints
    tie: Ints
    version: Ints

    @classmethod
    def empty(cls, rows: int) -> "_Columns":
        columns: dict[str, Any] = {}
        for column in fields(cls):
            shape = (rows, MOST_GPUS) if column.name in _OF_GPUS else (rows,)
            columns[column.name] = np.zeros(shape, _TYPES.get(column.name, np.int64))
        return cls(**columns)

    def doubled(self) -> "_Columns":
        """The same rows, followed by as many empty ones."""
        added = self.empty(len(self.tie))
        columns: dict[str, Any] = {}
        for column in fields(self):
            pair = getattr(self, column.name), getattr(added, column.name)
            columns[column.name] = np.concatenate(pair)
        return _Columns(**columns)


_OF_GPUS = {"memory", "core", "free"}
"""Columns with a number for each GPU of a node."""
_TYPES: dict[str, type[np.float64 | np.bool_]] = {
    "free": np.float64,
    "cpu_free": np.float64,
    "cpu_total": np.float64,
    "both": np.bool_,
    "wide": np.bool_,
}
"""Types of the columns that do not hold integers."""


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
    gpus: Ints
    versions: Ints
    mix: int = 0

    @classmethod
    def empty(cls, rows: int) -> "_Table":
        return cls(
            costs=np.full(rows, np.inf),
            gpus=np.zeros(rows, dtype=np.int64),
            versions=np.full(rows, -1, dtype=np.int64),
        )


class Ranking:
    """Ranks the nodes of `usage` by the costs of `policy`.

    Args:
        usage: nodes and their users. The ranking empties `usage.changed`.
        policy: rates a choice.
        mix: of pods, by which the policy rates.
    """

    def __init__(self, usage: ClusterUsage, policy: CostPolicy, mix: Mix) -> None:
        self._usage = usage
        self._policy = policy
        self._mix = mix
        self._demands: dict[_Asked, Demand] = {}
        self._columns = _Columns.empty(FIRST_ROWS)
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._width = 1
        self._spare: list[int] = []
        self._models: dict[str, int] = {}
        self._tables: OrderedDict[_Asked, _Table] = OrderedDict()
        self._version = 0

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
        rows = self._rows_of(among)
        table, unrated = self._table(request, cpu, rows)
        for row in self._in_order(rows, table.costs[rows]):
            preferred = int(table.gpus[row])
            cost = float(table.costs[row])
            yield self._names[row], preferred, cost
        for row in unrated:
            yield self._names[row], 0, UNRATED

    def no_room(self, request: GpuRequest, cpu: float, names: Collection[str]) -> None:
        """Record that a search found no room for the request on these nodes. Each is searched again once it changes."""
        table = self._tables.get((request, cpu))
        if table is None or not names:
            return
        rows = self._rows_of(names)
        table.costs[rows] = np.inf
        table.versions[rows] = self._columns.version[rows]

    def warm(self, requests: Iterable[tuple[GpuRequest, float]]) -> None:
        """Rate all nodes for these requests and cores, before the first pod that asks for them waits for it."""
        self._read_changes()
        for request, cpu in requests:
            all_rows = np.arange(len(self._names))
            self._table(request, cpu, all_rows, most=len(all_rows))

    def learn(self, request: GpuRequest, cpu: float) -> None:
        """Count a pod in the mix, as a part of the GPUs that half of the nodes have or less."""
        self._read_changes()
        demand = self._demands.get((request, cpu))
        if demand is None:
            demand = Demand(request.gpus, self._typical_part(request), cpu)
            if len(self._demands) >= MOST_DEMANDS:
                self._demands.clear()
            self._demands[request, cpu] = demand
        if demand.fraction and demand.gpus <= MOST_GPUS:
            self._mix.saw(demand)

    def memory_without(self, demands: Collection[Amounts]) -> int:
        """Free bytes of memory on GPUs that have room for none of `demands`; 0 if there are none."""
        if not demands:
            return 0
        self._read_changes()
        columns = self._columns
        memory = columns.memory
        core = columns.core
        useless = np.asarray(memory > 0)
        for demand in demands:
            has_no_room = (memory < demand.memory) | (core < demand.core)
            useless &= has_no_room
        units = (memory * useless).sum(axis=1)
        return int(units @ columns.unit_mib) << 20

    def has_in_all(self, request: GpuRequest) -> bool:
        """Whether as much is free on all GPUs together as the request wants."""
        self._read_changes()
        columns = self._columns
        need = request.need
        if request.kind is RequestKind.WHOLE:
            return bool(columns.unused.sum() >= request.gpus)
        memory = np.maximum(columns.memory, 0).sum()
        core = np.maximum(columns.core, 0).sum()
        return bool(memory >= need.memory and core >= need.core)

    def _rows_of(self, among: Collection[str]) -> Ints:
        """Rows of the nodes in `among`."""
        rows = map(self._rows.get, among)
        return np.array([row for row in rows if row is not None], dtype=np.int64)

    def _in_order(self, rows: Ints, costs: Floats) -> Iterator[int]:
        """Rows with finite costs, cheapest first. The first is usually enough, so the others are sorted later."""
        finite = np.isfinite(costs)
        rows = rows[finite]
        costs = costs[finite]
        if not len(rows):
            return
        ties = self._columns.tie[rows]
        cheapest = np.flatnonzero(costs == costs.min())
        first = int(cheapest[ties[cheapest].argmin()])
        yield int(rows[first])
        for index in np.lexsort((rows, ties, costs)):
            if index != first:
                yield int(rows[index])

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
        asked = request, cpu
        table = self._tables.get(asked)
        size = len(self._columns.tie)
        if table is None or len(table.costs) < size:
            table = _Table.empty(size)
            self._tables[asked] = table
            while len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(asked)
        if table.mix < self._mix.version:
            # Each cost depends on the mix, so that none of another mix may stay.
            table.mix = self._mix.version
            table.versions[:] = -1
        is_old = table.versions[rows] < self._columns.version[rows]
        unrated = self._rate(table, request, cpu, rows[is_old], most)
        return table, unrated

    def _rate(
        self,
        table: _Table,
        request: GpuRequest,
        cpu: float,
        rows: Ints,
        most: int,
    ) -> Ints:
        """Rate the request on these rows, and return those where it may fit beyond the first `most`, unrated."""
        if not len(rows):
            return rows
        fits = self._fit(request, rows)
        too_full = rows[~fits]
        table.costs[too_full] = np.inf
        table.versions[too_full] = self._columns.version[too_full]
        fitting = rows[fits]
        if len(fitting) > most:
            # In the order of ties, as the callers' order would prefer the nodes that they name first.
            by_tie = np.argsort(self._columns.tie[fitting], kind="stable")
            fitting = fitting[by_tie]
        rated = fitting[:most]
        unrated = fitting[most:]
        if len(rated):
            costs, gpus = self._rated(request, cpu, rated)
            table.costs[rated] = costs
            table.gpus[rated] = gpus
            table.versions[rated] = self._columns.version[rated]
        # The cost in the table is of before the row changed, and would rank the row among the others.
        table.costs[unrated] = np.inf
        return unrated

    def _rated(self, request: GpuRequest, cpu: float, fitting: Ints) -> tuple[Floats, Ints]:
        """Costs on rows where the request may fit, and the position of the GPU to prefer on each."""
        columns = self._columns
        fleet = Fleet(
            free=columns.free,
            gpus=columns.gpus,
            cpu_free=columns.cpu_free,
            cpu_total=columns.cpu_total,
            model=columns.model,
        )
        parts = self._parts(request, fitting)
        rated = np.full(len(fitting), np.inf)
        preferred = np.zeros(len(fitting), dtype=np.int64)
        # A policy rates a part of a GPU, which is another one on nodes with other GPUs.
        for part in np.unique(parts):
            same = parts == part
            demand = Demand(gpus=request.gpus, fraction=float(part), cpu=cpu)
            costs, gpus = self._policy.costs(fleet, fitting[same], demand)
            rated[same] = costs
            preferred[same] = gpus
        return np.where(np.isfinite(rated), rated, UNRATED), preferred

    def _typical_part(self, request: GpuRequest) -> float:
        """The part of a GPU that the request needs on the median node with room for any pod; 0 if there is none."""
        columns = self._columns
        has_gpus = columns.gpus > 0
        is_known = columns.memory_total + columns.unused > 0
        rows = np.flatnonzero(has_gpus & is_known)
        if not len(rows):
            return 0.0
        return float(np.median(self._parts(request, rows)))

    def _parts(self, request: GpuRequest, rows: Ints) -> Floats:
        """The part of a GPU that the request needs on each row: of memory or of compute, whichever is larger."""
        if request.kind is RequestKind.WHOLE:
            return np.ones(len(rows))
        each = request.need.over(request.gpus)
        memory_total = self._columns.memory_total[rows]
        core_total = self._columns.core_total[rows]
        memory = each.memory / np.maximum(memory_total, 1)
        core = each.core / np.maximum(core_total, 1)
        return np.minimum(np.maximum(memory, core), 1.0)

    def _fit(self, request: GpuRequest, rows: Ints) -> Bools:
        """Whether the request may fit on each row. If it is one group and the node is not wide, it does fit."""
        columns = self._columns
        if request.kind is RequestKind.WHOLE:
            return np.asarray(columns.unused[rows] >= request.gpus)
        memory = columns.memory[rows, : self._width]
        core = columns.core[rows, : self._width]
        each = request.need.over(request.gpus)
        fits = _times(each, memory, core, 1) >= request.gpus
        if len(request.groups) > 1:
            fits |= _fit_apart(request, memory, core, ~fits)
        # A pod may fit on a GPU that the arrays leave out.
        fits |= columns.wide[rows]
        return np.asarray(fits & self._served(request, rows))

    def _served(self, request: GpuRequest, rows: Ints) -> Bools:
        """Whether the mode of each row's node serves such amounts, see `keeps_rules`."""
        steps = np.maximum(self._columns.step[rows], 1)
        stepwise = np.asarray(request.core_divisor % steps == 0)
        if request.paired:
            return stepwise
        return stepwise & ~self._columns.both[rows]

    def _read_changes(self) -> None:
        """Write the nodes that changed into their rows."""
        if not self._usage.changed:
            return
        self._version += 1
        for name in self._usage.changed:
            node = self._usage.nodes.get(name)
            if node is None:
                self._remove(name)
                continue
            row = self._rows.get(name)
            if row is None:
                row = self._new_row(name)
            self._write(row, node)
        self._usage.changed.clear()

    def _new_row(self, name: str) -> int:
        """A row for a node that has none."""
        # The typical node may be another one from now on.
        self._demands.clear()
        row = self._spare.pop() if self._spare else len(self._names)
        self._names[row : row + 1] = [name]
        if row >= len(self._columns.tie):
            self._columns = self._columns.doubled()
        self._rows[name] = row
        self._columns.tie[row] = crc32(name.encode())
        return row

    def _remove(self, name: str) -> None:
        """Take a node out, and keep its row for the next one."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        self._clear(row)
        self._spare.append(row)
        self._names[row] = ""

    def _clear(self, row: int) -> None:
        columns = self._columns
        columns.memory[row] = -1
        columns.core[row] = -1
        columns.free[row] = 0.0
        columns.unused[row] = 0
        columns.gpus[row] = 0
        columns.wide[row] = False
        columns.version[row] = self._version

    def _write(self, row: int, node: NodeUsage) -> None:
        """Write a node's numbers into its row."""
        columns = self._columns
        facts = node.facts
        gpus = facts.gpus.gpus
        self._clear(row)
        for position, _ in node.usable():
            if position >= MOST_GPUS:
                break
            free = node.free[position]
            columns.memory[row, position] = free.memory
            columns.core[row, position] = free.core
            columns.free[row, position] = node.free_part(position)
        self._width = max(self._width, min(len(gpus), MOST_GPUS))
        columns.unused[row] = len(node.room.unused)
        columns.gpus[row] = sum(gpu.usable for gpu in gpus)
        columns.memory_total[row] = max((gpu.memory for gpu in gpus), default=0)
        columns.core_total[row] = max((gpu.core for gpu in gpus), default=0)
        columns.unit_mib[row] = facts.gpus.unit_mib
        columns.wide[row] = len(gpus) > MOST_GPUS
        columns.step[row] = facts.gpus.core_step
        columns.both[row] = facts.gpus.both
        columns.cpu_free[row] = facts.cpu - node.cpu_used
        columns.cpu_total[row] = facts.cpu
        columns.model[row] = self._models.setdefault(facts.model, len(self._models))


def _fit_apart(request: GpuRequest, memory: Ints, core: Ints, candidates: Bools) -> Bools:
    """Whether the groups may fit on each of the candidates if each group is placed by itself."""
    apart = candidates & (np.maximum(memory, 0).sum(axis=1) >= request.apart.memory)
    apart &= np.maximum(core, 0).sum(axis=1) >= request.apart.core
    for need, count in request.slots:
        # Each slot is counted only where all before are free, because few rows have room for several groups.
        remaining = np.flatnonzero(apart)
        times = _times(need, memory[remaining], core[remaining], count)
        apart[remaining] = times >= count
    return np.asarray(apart)


def _times(need: Amounts, memory: Ints, core: Ints, most: int) -> Ints:
    """How many times the GPUs of each row have an amount free, each at most `most` times; see `Amounts.times_in`."""
    roomy = (memory >= need.memory) & (core >= need.core)
    if most == 1:
        return np.asarray(np.count_nonzero(roomy, axis=1))
    times = np.where(roomy, most, 0)
    if need.memory:
        np.minimum(times, np.maximum(memory, 0) // need.memory, out=times)
    if need.core:
        np.minimum(times, np.maximum(core, 0) // need.core, out=times)
    return np.asarray(times.sum(axis=1))
