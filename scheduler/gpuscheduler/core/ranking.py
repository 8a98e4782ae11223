"""The nodes for a request, cheapest first. Costs are kept for equal requests, and renewed for nodes that changed."""

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, fields
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.fit import fit
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
UNRATED = 1e6
"""Cost where a request fits and the policy cannot rate it: after all others, but never refused."""


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
    """Costs of one request by row, infinite where it does not fit; the GPU to prefer; the versions that they are of."""

    costs: Floats
    gpus: Ints
    version: int = 0
    mix: int = 0


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
        self._spare: list[int] = []
        self._models: dict[str, int] = {}
        self._tables: OrderedDict[tuple[GpuRequest, float], _Table] = OrderedDict()
        self._version = 0

    def nodes(self, request: GpuRequest, cpu: float, among: Container[str]) -> Iterator[tuple[str, int, float]]:
        """Nodes of `among` where the request fits, cheapest first: name, position of the GPU to prefer, and cost.

        Nodes of equal cost come in a fixed permutation of their names.
        """
        table = self._table(request, cpu)
        costs = table.costs[: len(self._names)].copy()
        while len(costs) and (least := float(costs.min())) < np.inf:
            equal = np.flatnonzero(costs == least)
            for row in self._in_order(equal):
                if (name := self._names[row]) in among:
                    yield name, int(table.gpus[row]), least
            costs[equal] = np.inf

    def warm(self, requests: Iterable[tuple[GpuRequest, float]]) -> None:
        """Rate all nodes for these requests and cores, before the first pod that asks for them waits for it."""
        self._read_changes()
        for request, cpu in requests:
            self._table(request, cpu)

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

    def _in_order(self, rows: Ints) -> Iterator[int]:
        """Rows of equal cost in the fixed permutation. The first is usually enough, so the others are sorted later."""
        ties = self._columns.tie[rows]
        first = int(ties.argmin())
        yield int(rows[first])
        yield from (int(rows[place]) for place in np.argsort(ties, kind="stable") if place != first)

    def _table(self, request: GpuRequest, cpu: float) -> _Table:
        self._read_changes()
        table = self._tables.get((request, cpu))
        rows = len(self._columns.tie)
        if table is None or len(table.costs) < rows:
            table = self._tables[request, cpu] = _Table(np.full(rows, np.inf), np.zeros(rows, dtype=np.int64))
            while len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end((request, cpu))
        if table.version < self._version or table.mix < self._mix.version:
            if table.mix < self._mix.version:
                table.mix, table.version = self._mix.version, -1
            changed = np.flatnonzero(self._columns.version > table.version)
            table.costs[changed], table.gpus[changed] = self._rated(request, cpu, changed)
            table.version = self._version
        return table

    def _rated(self, request: GpuRequest, cpu: float, rows: Ints) -> tuple[Floats, Ints]:
        """Costs on these rows, and the position of the GPU to prefer on each."""
        costs, gpus = np.full(len(rows), np.inf), np.zeros(len(rows), dtype=np.int64)
        fits = self._fit(request, rows)
        if not fits.any():
            return costs, gpus
        columns, fitting = self._columns, rows[fits]
        fleet = Fleet(columns.free, columns.gpus, columns.cpu_free, columns.cpu_total, columns.model)
        parts = self._parts(request, fitting)
        rated, preferred = np.full(len(fitting), np.inf), np.zeros(len(fitting), dtype=np.int64)
        for part in np.unique(parts):
            same = parts == part
            demand = Demand(gpus=request.gpus, fraction=float(part), cpu=cpu)
            rated[same], preferred[same] = self._policy.costs(fleet, fitting[same], demand)
        costs[fits], gpus[fits] = np.where(np.isfinite(rated), rated, UNRATED), preferred
        return costs, gpus

    def _parts(self, request: GpuRequest, rows: Ints) -> Floats:
        """The part of a GPU that the request needs on each row: of memory or of compute, whichever is larger."""
        if request.kind is RequestKind.WHOLE:
            return np.ones(len(rows))
        each = request.need.over(request.gpus)
        memory = each.memory / np.maximum(self._columns.memory_total[rows], 1)
        core = each.core / np.maximum(self._columns.core_total[rows], 1)
        return np.minimum(np.maximum(memory, core), 1.0)

    def _fit(self, request: GpuRequest, rows: Ints) -> Bools:
        columns = self._columns
        if request.kind is RequestKind.WHOLE:
            return np.asarray(columns.unused[rows] >= request.gpus)
        each = request.need.over(request.gpus)
        roomy = (columns.memory[rows] >= each.memory) & (columns.core[rows] >= each.core)
        fits = np.asarray((roomy.sum(axis=1) >= request.gpus) & self._served(request, rows))
        # Groups may fit on different GPUs, and a pod on a GPU that the arrays leave out.
        unsure = ~fits if len(request.groups) > 1 else ~fits & columns.wide[rows]
        for place in np.flatnonzero(unsure):
            node = self._usage.nodes.get(self._names[rows[place]]) if rows[place] < len(self._names) else None
            fits[place] = node is not None and fit(request, node) is not None
        return fits

    def _served(self, request: GpuRequest, rows: Ints) -> Bools:
        """Whether the mode of each row's node serves such amounts."""
        amounts = [one for group in request.groups for _, one in group.containers]
        stepwise = np.ones(len(rows), dtype=np.bool_)
        for core in {one.core for one in amounts}:
            stepwise &= core % np.maximum(self._columns.step[rows], 1) == 0
        paired = all(one.memory and one.core for one in amounts)
        return stepwise if paired else stepwise & ~self._columns.both[rows]

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
        columns.unused[row] = len(node.unused())
        columns.gpus[row] = sum(gpu.usable for gpu in facts.gpus.gpus)
        columns.memory_total[row] = max((gpu.memory for gpu in facts.gpus.gpus), default=0)
        columns.core_total[row] = max((gpu.core for gpu in facts.gpus.gpus), default=0)
        columns.unit_mib[row] = facts.gpus.unit_mib
        columns.wide[row] = len(facts.gpus.gpus) > MOST_GPUS
        columns.step[row], columns.both[row] = facts.gpus.core_step, facts.gpus.both
        columns.cpu_free[row], columns.cpu_total[row] = facts.cpu - node.cpu_used, facts.cpu
        columns.model[row] = self._models.setdefault(facts.model, len(self._models))
