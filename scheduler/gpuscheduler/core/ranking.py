"""The nodes for a request, cheapest first. Costs are kept for equal requests, and renewed for nodes that changed."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
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
UNRATED = 1e6
"""Cost where a request may fit and the policy cannot rate it: after all others, but never refused."""


@dataclass(slots=True)
class _Columns:
    """The nodes as arrays, one row a node.

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
        kinds = {
            "free": np.float64,
            "cpu_free": np.float64,
            "cpu_total": np.float64,
            "both": np.bool_,
            "wide": np.bool_,
        }
        wide = {"memory", "core", "free"}
        return cls(
            **{
                one.name: np.zeros((rows, MOST_GPUS) if one.name in wide else rows, kinds.get(one.name, np.int64))
                for one in fields(cls)
            }
        )

    def doubled(self) -> "_Columns":
        more = self.empty(len(self.tie))
        pairs = {one.name: (getattr(self, one.name), getattr(more, one.name)) for one in fields(self)}
        return _Columns(**{name: np.concatenate(pair) for name, pair in pairs.items()})


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
        return cls(np.full(rows, np.inf), np.zeros(rows, dtype=np.int64), np.full(rows, -1, dtype=np.int64))


class Ranking:
    """Ranks the nodes of `usage` by the costs of `policy`.

    Args:
        usage: nodes and their users. The ranking empties `usage.changed`.
        policy: rates a choice.
        mix: of pods, by which the policy rates.
    """

    def __init__(self, usage: ClusterUsage, policy: CostPolicy, mix: Mix) -> None:
        self._usage, self._policy, self._mix = usage, policy, mix
        self._demands: dict[tuple[GpuRequest, float], Demand] = {}
        self._columns = _Columns.empty(64)
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._width = 1
        self._spare: list[int] = []
        self._models: dict[str, int] = {}
        self._tables: OrderedDict[tuple[GpuRequest, float], _Table] = OrderedDict()
        self._version = 0

    def nodes(self, request: GpuRequest, cpu: float, among: Collection[str]) -> Iterator[tuple[str, int, float]]:
        """Nodes of `among` where the request may fit, cheapest first: name, position of the GPU to prefer, and cost.

        Nodes of equal cost come in a fixed permutation of their names. `fit` decides: it may still find that the groups
        of the request have no room on GPUs that seem to have enough.
        """
        self._read_changes()
        rows = self._rows_of(among)
        table, unrated = self._table(request, cpu, rows)
        for row in self._in_order(rows, table.costs[rows]):
            yield self._names[row], int(table.gpus[row]), float(table.costs[row])
        for row in unrated:
            yield self._names[row], 0, UNRATED

    def no_room(self, request: GpuRequest, cpu: float, names: Collection[str]) -> None:
        """Take that a search found no room for the request on nodes. They are not searched again before they change."""
        table = self._tables.get((request, cpu)) if names else None
        if table:
            rows = self._rows_of(names)
            table.costs[rows] = np.inf
            table.versions[rows] = self._columns.version[rows]

    def warm(self, requests: Iterable[tuple[GpuRequest, float]]) -> None:
        """Rate all nodes for these requests and cores, before the first pod that asks for them waits for it."""
        self._read_changes()
        for request, cpu in requests:
            self._table(request, cpu, np.arange(len(self._names)), most=len(self._names))

    def learn(self, request: GpuRequest, cpu: float) -> None:
        """Count a pod in the mix, as a part of the GPUs that half of the nodes have or less."""
        self._read_changes()
        demand = self._demands.get((request, cpu))
        if demand is None:
            rows = np.flatnonzero((self._columns.gpus > 0) & (self._columns.memory_total + self._columns.unused > 0))
            part = float(np.median(self._parts(request, rows))) if len(rows) else 0.0
            if len(self._demands) >= MOST_DEMANDS:
                self._demands.clear()
            demand = self._demands[request, cpu] = Demand(request.gpus, part, cpu)
        if demand.fraction and demand.gpus <= MOST_GPUS:
            self._mix.saw(demand)

    def memory_without(self, demands: Collection[Amounts]) -> int:
        """Free bytes of memory on GPUs that have room for none of `demands`; 0 if there are none."""
        self._read_changes()
        memory, core = self._columns.memory, self._columns.core
        useless = np.asarray(memory > 0) if demands else np.zeros_like(memory, dtype=np.bool_)
        for one in demands:
            useless &= (memory < one.memory) | (core < one.core)
        return int((memory * useless).sum(axis=1) @ self._columns.unit_mib) << 20

    def has_in_all(self, request: GpuRequest) -> bool:
        """Whether as much is free on all GPUs together as the request wants."""
        self._read_changes()
        if request.kind is RequestKind.WHOLE:
            return bool(self._columns.unused.sum() >= request.gpus)
        memory, core = (np.maximum(units, 0).sum() for units in (self._columns.memory, self._columns.core))
        return bool(memory >= request.need.memory and core >= request.need.core)

    def _rows_of(self, among: Collection[str]) -> Ints:
        """Rows of the nodes in `among`."""
        found = map(self._rows.get, among)
        return np.array([row for row in found if row is not None], dtype=np.int64)

    def _in_order(self, rows: Ints, costs: Floats) -> Iterator[int]:
        """Rows with finite costs, cheapest first. The first is usually enough, so the others are sorted later."""
        finite = np.isfinite(costs)
        rows, costs = rows[finite], costs[finite]
        if not len(rows):
            return
        ties = self._columns.tie[rows]
        cheapest = np.flatnonzero(costs == costs.min())
        first = int(cheapest[ties[cheapest].argmin()])
        yield int(rows[first])
        yield from (int(rows[place]) for place in np.lexsort((rows, ties, costs)) if place != first)

    def _table(self, request: GpuRequest, cpu: float, rows: Ints, most: int = MOST_RATED) -> tuple[_Table, Ints]:
        """The costs of a request, worked out again for those of `rows` that changed since.

        Also the rows where it may fit that are not rated, since at most `most` are.
        """
        table = self._tables.get((request, cpu))
        size = len(self._columns.tie)
        if table is None or len(table.costs) < size:
            table = self._tables[request, cpu] = _Table.empty(size)
            while len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end((request, cpu))
        if table.mix < self._mix.version:
            table.mix = self._mix.version
            table.versions[:] = -1
        changed = rows[table.versions[rows] < self._columns.version[rows]]
        return table, self._rate(table, request, cpu, changed, most)

    def _rate(self, table: _Table, request: GpuRequest, cpu: float, rows: Ints, most: int) -> Ints:
        """Rate the request on these rows, at most `most`; the rows that are left. Where it does not fit, none is."""
        if not len(rows):
            return rows
        fits = self._fit(request, rows)
        table.costs[rows[~fits]] = np.inf
        table.versions[rows[~fits]] = self._columns.version[rows[~fits]]
        fitting = rows[fits]
        if len(fitting) > most:
            fitting = fitting[np.argsort(self._columns.tie[fitting], kind="stable")]
        now, later = fitting[:most], fitting[most:]
        if len(now):
            table.costs[now], table.gpus[now] = self._rated(request, cpu, now)
            table.versions[now] = self._columns.version[now]
        table.costs[later] = np.inf  # as it was before the row changed
        return later

    def _rated(self, request: GpuRequest, cpu: float, fitting: Ints) -> tuple[Floats, Ints]:
        """Costs on rows where the request may fit, and the position of the GPU to prefer on each."""
        columns = self._columns
        fleet = Fleet(columns.free, columns.gpus, columns.cpu_free, columns.cpu_total, columns.model)
        parts = self._parts(request, fitting)
        rated, preferred = np.full(len(fitting), np.inf), np.zeros(len(fitting), dtype=np.int64)
        for part in np.unique(parts):
            same = parts == part
            demand = Demand(gpus=request.gpus, fraction=float(part), cpu=cpu)
            rated[same], preferred[same] = self._policy.costs(fleet, fitting[same], demand)
        return np.where(np.isfinite(rated), rated, UNRATED), preferred

    def _parts(self, request: GpuRequest, rows: Ints) -> Floats:
        """The part of a GPU that the request needs on each row: of memory or of compute, whichever is larger."""
        if request.kind is RequestKind.WHOLE:
            return np.ones(len(rows))
        each = request.need.over(request.gpus)
        memory = each.memory / np.maximum(self._columns.memory_total[rows], 1)
        core = each.core / np.maximum(self._columns.core_total[rows], 1)
        return np.minimum(np.maximum(memory, core), 1.0)

    def _fit(self, request: GpuRequest, rows: Ints) -> Bools:
        """Whether the request may fit on each row. Where it is one group and the node is not wide, it does."""
        columns = self._columns
        if request.kind is RequestKind.WHOLE:
            return np.asarray(columns.unused[rows] >= request.gpus)
        memory, core = columns.memory[rows, : self._width], columns.core[rows, : self._width]
        together = _times(request.need.over(request.gpus), memory, core, 1) >= request.gpus
        if len(request.groups) > 1:
            enough = np.maximum(memory, 0).sum(axis=1) >= request.apart.memory
            enough &= np.maximum(core, 0).sum(axis=1) >= request.apart.core
            apart = enough & ~together
            for need, count in request.slots:
                left = np.flatnonzero(apart)
                apart[left] = _times(need, memory[left], core[left], count) >= count
            together |= apart
        # A pod may fit on a GPU that the arrays leave out.
        return np.asarray((together | columns.wide[rows]) & self._served(request, rows))

    def _served(self, request: GpuRequest, rows: Ints) -> Bools:
        """Whether the mode of each row's node serves such amounts, see `keeps_rules`."""
        stepwise = np.asarray(request.core_divisor % np.maximum(self._columns.step[rows], 1) == 0)
        return stepwise if request.paired else stepwise & ~self._columns.both[rows]

    def _read_changes(self) -> None:
        if not self._usage.changed:
            return
        self._version += 1
        for name in self._usage.changed:
            node = self._usage.nodes.get(name)
            if node is None:
                if (row := self._rows.pop(name, None)) is not None:
                    self._clear(row)
                    self._spare.append(row)
                    self._names[row] = ""
            else:
                row = self._rows.get(name)
                self._write(self._new_row(name) if row is None else row, node)
        self._usage.changed.clear()

    def _new_row(self, name: str) -> int:
        self._demands.clear()
        row = self._spare.pop() if self._spare else len(self._names)
        self._names[row : row + 1] = [name]
        if row >= len(self._columns.tie):
            self._columns = self._columns.doubled()
        self._rows[name] = row
        self._columns.tie[row] = crc32(name.encode())
        return row

    def _clear(self, row: int) -> None:
        columns = self._columns
        columns.memory[row] = columns.core[row] = -1
        columns.free[row] = 0.0
        columns.unused[row] = columns.gpus[row] = 0
        columns.wide[row] = False
        columns.version[row] = self._version

    def _write(self, row: int, node: NodeUsage) -> None:
        """Write a node's numbers into its row."""
        columns, facts = self._columns, node.facts
        self._clear(row)
        usable = [(position, gpu) for position, gpu in node.usable() if position < MOST_GPUS]
        for position, _ in usable:
            free = node.free[position]
            columns.memory[row, position] = free.memory
            columns.core[row, position] = free.core
            columns.free[row, position] = node.free_part(position)
        self._width = max(self._width, min(len(facts.gpus.gpus), MOST_GPUS))
        columns.unused[row] = len(node.room.unused)
        columns.gpus[row] = sum(gpu.usable for gpu in facts.gpus.gpus)
        columns.memory_total[row] = max((gpu.memory for gpu in facts.gpus.gpus), default=0)
        columns.core_total[row] = max((gpu.core for gpu in facts.gpus.gpus), default=0)
        columns.unit_mib[row] = facts.gpus.unit_mib
        columns.wide[row] = len(facts.gpus.gpus) > MOST_GPUS
        columns.step[row], columns.both[row] = facts.gpus.core_step, facts.gpus.both
        columns.cpu_free[row], columns.cpu_total[row] = facts.cpu - node.cpu_used, facts.cpu
        columns.model[row] = self._models.setdefault(facts.model, len(self._models))


def _times(need: Amounts, memory: Ints, core: Ints, most: int) -> Ints:
    """How many times the GPUs of each row have an amount free, each at most `most` times; see `Amounts.times_in`."""
    roomy = (memory >= need.memory) & (core >= need.core)
    if most == 1:
        return np.asarray(np.count_nonzero(roomy, axis=1))
    times = np.where(roomy, most, 0)
    for free, each in ((memory, need.memory), (core, need.core)):
        if each:
            np.minimum(times, np.maximum(free, 0) // each, out=times)
    return np.asarray(times.sum(axis=1))
