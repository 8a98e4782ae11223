"""The nodes as arrays, so that all of them are compared with a request at once."""

from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, fields
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.policy.accepted_models import ModelTerms, NodeLabels, accepts
from gpuscheduler.core.policy.fleet import MOST_GPUS, Fleet

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FIRST_ROWS = 64
"""Rows of the arrays at first. They double whenever a node finds no row."""


@dataclass(slots=True)
class Columns:
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
        state: equal for rows that are equal in all columns above `tie`, so that one of them is rated for all. Less than
            the number of rows.
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
    state: Ints

    @classmethod
    def empty(cls, rows: int) -> "Columns":
        columns: dict[str, Any] = {}
        for column in fields(cls):
            shape = (rows, MOST_GPUS) if column.name in _OF_GPUS else (rows,)
            kind = _TYPES.get(column.name, np.int64)
            columns[column.name] = np.zeros(shape, kind)
        return cls(**columns)

    def doubled(self) -> "Columns":
        """The same rows, followed by as many empty ones."""
        added = self.empty(len(self.tie))
        columns: dict[str, Any] = {}
        for column in fields(self):
            old = getattr(self, column.name)
            empty = getattr(added, column.name)
            columns[column.name] = np.concatenate((old, empty))
        return Columns(**columns)

    def state_of(self, row: int, names: Collection[str]) -> bytes:
        """The numbers of these columns in a row."""
        return b"".join([getattr(self, name)[row].tobytes() for name in names])


_NOT_IN_STATE = {"tie", "version", "state"}
"""Columns that may differ between rows of equal states."""
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
_OF_USERS = ["memory", "core", "free", "unused", "cpu_free"]
"""Columns that change with the pods of a node."""
_OF_FACTS = [column.name for column in fields(Columns) if column.name not in {*_NOT_IN_STATE, *_OF_USERS}]
"""Columns that change with the node itself."""


class States:
    """Gives rows that are equal one small number: that of another state once no row is in the former one."""

    def __init__(self) -> None:
        self._indexes: dict[Hashable, int] = {}
        """The numbers of a state to its index."""
        self._rows: Counter[Hashable] = Counter()
        """The numbers of a state to how many rows are in it."""
        self._of_row: dict[int, Hashable] = {}
        self._spare: list[int] = []

    def put(self, row: int, numbers: Hashable) -> int:
        """The index of the state that a row is in from now on, by the numbers of the row."""
        if row in self._of_row:
            self._leave(self._of_row[row])
        self._of_row[row] = numbers
        self._rows[numbers] += 1
        index = self._indexes.get(numbers)
        if index is None:
            index = self._spare.pop() if self._spare else len(self._indexes)
            self._indexes[numbers] = index
        return index

    def _leave(self, numbers: Hashable) -> None:
        self._rows[numbers] -= 1
        if not self._rows[numbers]:
            del self._rows[numbers]
            self._spare.append(self._indexes.pop(numbers))


class NodeArrays:
    """The nodes of `usage` by row.

    Args:
        usage: nodes and their users. `read_changes` empties `usage.changed`.

    Attributes:
        columns: the numbers of the nodes. Rows of nodes that are gone fit nothing.
        names: by row; empty where the node is gone.
    """

    def __init__(self, usage: ClusterUsage) -> None:
        self._usage = usage
        self._rows: dict[str, int] = {}
        self._written: dict[int, tuple[NodeFacts | None, bytes]] = {}
        """Row to the facts of its node, and the part of its state that follows from them."""
        self._states = States()
        self._width = 1
        self._spare: list[int] = []
        self._models: dict[str, int] = {}
        self._labels: dict[NodeLabels, int] = {}
        self._version = 0
        self.columns = Columns.empty(FIRST_ROWS)
        self.names: list[str] = []

    def read_changes(self) -> bool:
        """Write the nodes that changed into their rows; whether any node, or its labels of a model, is new."""
        if not self._usage.changed:
            return False
        # Costs that are kept for a row are compared with the version of its last change.
        self._version += 1
        any_new = False
        known_labels = len(self._labels)
        for name in self._usage.changed:
            node = self._usage.nodes.get(name)
            if node is None:
                self._remove(name)
                continue
            row = self._rows.get(name)
            if row is None:
                row = self._new_row(name)
                any_new = True
            self._write(row, node)
        self._usage.changed.clear()
        return any_new or len(self._labels) > known_labels

    def rows_of(self, among: Collection[str]) -> Ints:
        """Rows of the nodes in `among`."""
        if among is self._usage.nodes:
            # All of them. To look up thousands of names would take longer than to rate their rows.
            return np.arange(len(self.names), dtype=np.int64)
        rows = map(self._rows.__getitem__, among)
        try:
            return np.fromiter(rows, dtype=np.int64)
        except KeyError:
            # Some have no GPUs, or are not seen yet.
            known = filter(self._rows.__contains__, among)
            return np.fromiter(map(self._rows.__getitem__, known), dtype=np.int64)

    def fleet(self) -> Fleet:
        """The numbers that a policy rates."""
        columns = self.columns
        return Fleet(
            # Most clusters have nodes of few GPUs, so that the other columns are empty.
            free=columns.free[:, : self._width],
            gpus=columns.gpus,
            cpu_free=columns.cpu_free,
            cpu_total=columns.cpu_total,
            model=columns.model,
        )

    def fit(self, request: GpuRequest, rows: Ints) -> Bools:
        """Whether the request may fit on each row. If it is one group and the node is not wide, it does fit."""
        columns = self.columns
        if request.kind is RequestKind.WHOLE:
            has_enough = columns.unused[rows] >= request.gpus
            return np.asarray(has_enough)
        # Most clusters have nodes of few GPUs, so that most columns are empty.
        memory = columns.memory[rows, : self._width]
        core = columns.core[rows, : self._width]
        each = request.need.over(request.gpus)
        if request.gpus == 1:
            has_room = (memory >= each.memory) & (core >= each.core)
            fits = np.asarray(has_room.any(axis=1))
        else:
            fits = _times(each, memory, core, 1) >= request.gpus
        if len(request.groups) > 1:
            too_full = ~fits
            fits |= _fit_apart(request, memory, core, too_full)
        # A pod may fit on a GPU that the arrays leave out.
        fits |= columns.wide[rows]
        # The mode of each row's node has to serve such amounts, see `keeps_rules`.
        if request.core_divisor:
            # Rows that no node has written yet have step 0.
            steps = np.maximum(columns.step[rows], 1)
            fits &= request.core_divisor % steps == 0
        if not request.paired:
            fits &= ~columns.both[rows]
        return np.asarray(fits)

    def parts(self, request: GpuRequest, rows: Ints) -> Floats:
        """The part of a GPU that the request needs on each row: of memory or of compute, whichever is larger."""
        if request.kind is RequestKind.WHOLE:
            return np.ones(len(rows))
        each = request.need.over(request.gpus)
        memory_total = np.maximum(self.columns.memory_total[rows], 1)
        part = each.memory / memory_total
        if each.core:
            core_total = np.maximum(self.columns.core_total[rows], 1)
            part = np.maximum(part, each.core / core_total)
        return np.minimum(part, 1.0)

    def accepted_models(self, terms: ModelTerms) -> frozenset[int] | None:
        """Indexes of the models that a pod accepts; None if it accepts all of them."""
        if not terms:
            return None
        accepted = {model for labels, model in self._labels.items() if accepts(terms, labels)}
        is_any = accepted.issuperset(self._labels.values())
        return None if is_any else frozenset(accepted)

    def typical_part(self, request: GpuRequest, models: frozenset[int] | None = None) -> float:
        """The part of a GPU that the request needs on the median node of these models; 0 if there is none.

        Nodes that have room for no pod at all do not count.
        """
        columns = self.columns
        has_gpus = columns.gpus > 0
        is_known = columns.memory_total + columns.unused > 0
        candidates = has_gpus & is_known
        if models is not None:
            candidates &= np.isin(columns.model, list(models))
        rows = np.flatnonzero(candidates)
        if not len(rows):
            return 0.0
        parts = np.sort(self.parts(request, rows))
        middle = len(parts) // 2
        # The mean of the two in the middle, if the number is even.
        return float(parts[middle] + parts[~middle]) / 2

    def memory_without(self, demands: Collection[Amounts]) -> int:
        """Free bytes of memory on GPUs that have room for none of `demands`; 0 if there are none."""
        if not demands:
            return 0
        columns = self.columns
        memory = columns.memory
        core = columns.core
        useless = np.asarray(memory > 0)
        for demand in demands:
            has_too_little_memory = memory < demand.memory
            has_too_little_core = core < demand.core
            useless &= has_too_little_memory | has_too_little_core
        useless_memory = memory * useless
        units = useless_memory.sum(axis=1)
        mib = int(units @ columns.unit_mib)
        return mib << 20

    def has_in_all(self, request: GpuRequest) -> bool:
        """Whether as much is free on all GPUs together as the request wants."""
        columns = self.columns
        need = request.need
        if request.kind is RequestKind.WHOLE:
            unused = columns.unused.sum()
            return bool(unused >= request.gpus)
        # Negative numbers stand for GPUs that take no pod, or are overused.
        memory = np.maximum(columns.memory, 0).sum()
        core = np.maximum(columns.core, 0).sum()
        has_both = memory >= need.memory and core >= need.core
        return bool(has_both)

    def _new_row(self, name: str) -> int:
        """A row for a node that has none."""
        # Rows of nodes that are gone are used again, so that the arrays do not grow for ever.
        if self._spare:
            row = self._spare.pop()
            self.names[row] = name
        else:
            row = len(self.names)
            self.names.append(name)
        if row >= len(self.columns.tie):
            self.columns = self.columns.doubled()
        self._rows[name] = row
        self.columns.tie[row] = crc32(name.encode())
        return row

    def _remove(self, name: str) -> None:
        """Take a node out, and keep its row for the next one."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        self._clear(row)
        self.columns.gpus[row] = 0
        self.columns.wide[row] = False
        self.columns.version[row] = self._version
        # The next node there has other facts. Otherwise the state would still be that of nodes that are like this one.
        self._written[row] = None, b""
        self.columns.state[row] = self._states.put(row, None)
        self._spare.append(row)
        self.names[row] = ""

    def _clear(self, row: int) -> None:
        """Take all pods' room out of a row."""
        columns = self.columns
        columns.memory[row] = -1
        columns.core[row] = -1
        columns.free[row] = 0.0
        columns.unused[row] = 0

    def _write(self, row: int, node: NodeUsage) -> None:
        """Write a node's numbers into its row."""
        columns = self.columns
        written, _ = self._written.get(row, (None, b""))
        # Pods come and go far more often than nodes change.
        if written is not node.facts:
            # The row may be another node's, or the node may have lost a GPU.
            self._clear(row)
            self._write_facts(row, node.facts)
        width = min(len(node.free), MOST_GPUS)
        memory = [-1] * width
        core = [-1] * width
        parts = [0.0] * width
        for position, _ in node.usable():
            if position >= width:
                break
            free = node.free[position]
            memory[position] = free.memory
            core[position] = free.core
            parts[position] = node.free_part(position)
        columns.memory[row, :width] = memory
        columns.core[row, :width] = core
        columns.free[row, :width] = parts
        unused = len(node.room.unused)
        cpu_free = node.cpu_free
        columns.unused[row] = unused
        columns.cpu_free[row] = cpu_free
        columns.version[row] = self._version
        _, of_facts = self._written[row]
        state = of_facts, tuple(memory), tuple(core), tuple(parts), unused, cpu_free
        columns.state[row] = self._states.put(row, state)

    def _write_facts(self, row: int, facts: NodeFacts) -> None:
        """Write what does not depend on a node's pods into its row."""
        columns = self.columns
        rules = facts.gpus
        gpus = rules.gpus
        width = min(len(gpus), MOST_GPUS)
        self._width = max(self._width, width)
        columns.gpus[row] = sum(gpu.usable for gpu in gpus)
        columns.memory_total[row] = max((gpu.memory for gpu in gpus), default=0)
        columns.core_total[row] = max((gpu.core for gpu in gpus), default=0)
        columns.unit_mib[row] = rules.unit_mib
        columns.wide[row] = len(gpus) > MOST_GPUS
        columns.step[row] = rules.core_step
        columns.both[row] = rules.both
        columns.cpu_total[row] = facts.allocatable.cores
        next_model = len(self._models)
        model = self._models.setdefault(facts.model, next_model)
        columns.model[row] = model
        self._labels[facts.model_labels] = model
        self._written[row] = facts, columns.state_of(row, _OF_FACTS)


def _fit_apart(
    request: GpuRequest,
    memory: Ints,
    core: Ints,
    candidates: Bools,
) -> Bools:
    """Whether the groups may fit on each of the candidates if each group is placed by itself."""
    memory_in_all = np.maximum(memory, 0).sum(axis=1)
    core_in_all = np.maximum(core, 0).sum(axis=1)
    has_memory = memory_in_all >= request.apart.memory
    has_core = core_in_all >= request.apart.core
    apart = candidates & has_memory & has_core
    for need, count in request.slots:
        # Each slot is counted only where all before are free, because few rows have room for several groups.
        remaining = np.flatnonzero(apart)
        times = _times(need, memory[remaining], core[remaining], count)
        apart[remaining] = times >= count
    return np.asarray(apart)


def _times(
    need: Amounts,
    memory: Ints,
    core: Ints,
    most: int,
) -> Ints:
    """How many times the GPUs of each row have an amount free, each at most `most` times; see `Amounts.times_in`."""
    has_memory = memory >= need.memory
    has_core = core >= need.core
    roomy = has_memory & has_core
    if most == 1:
        # Requests of one group, which are most of them, need no division.
        return np.asarray(np.count_nonzero(roomy, axis=1))
    times = np.where(roomy, most, 0)
    if need.memory:
        times_memory = np.maximum(memory, 0) // need.memory
        np.minimum(times, times_memory, out=times)
    if need.core:
        times_core = np.maximum(core, 0) // need.core
        np.minimum(times, times_core, out=times)
    return np.asarray(times.sum(axis=1))
