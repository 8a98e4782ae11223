"""The tables for people: a row for each node, as the documented tool prints them, and what it leaves out below."""

from collections.abc import Iterator, Sequence

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.pages.cells import Cell, Style, align, painted, row
from gpuagent.system.printable import printable
from inspectcgpu.report import Amount, ClusterReport, GpuReport, NodeReport, PodReport
from inspectcgpu.show.notes import notes

NO_ADDRESS = "unknown"
MANY_PODS, MANY_NOTES = 10, 20
"""The most pods and notes below the tables; -d, JSON and YAML have all."""
_DASHES_MORE = 20


def summary(report: ClusterReport, *, wide: bool = False, colour: bool = False) -> list[str]:
    """The lines. Memory and compute share one table, whole GPUs have another; each appears if a node needs it."""
    shared = report.sharing
    whole = report.having(GPU_WHOLE)
    lines: list[str] = []
    if shared:
        lines += _table(_Shared(shared), shared, wide=wide, colour=colour)
        lines += totals(report)
    if shared and whole:
        lines.append("")
    if whole:
        lines += _table(_Whole(whole), whole, wide=wide, colour=colour)
        lines += whole_total(report)
    return lines + below(report, MANY_PODS, colour=colour)


def summary_rows(report: ClusterReport, *, wide: bool = False, colour: bool = False) -> list[str]:
    """The rows of the tables alone: a line for each node, whole GPUs after the others."""
    shared = report.sharing
    whole = report.having(GPU_WHOLE)
    # Each table has columns of its own, so each is aligned alone.
    rows_of_shared = _rows(_Shared(shared), shared, wide=wide)
    rows_of_whole = _rows(_Whole(whole), whole, wide=wide)
    return [*align(rows_of_shared, colour=colour), *align(rows_of_whole, colour=colour)]


def totals(report: ClusterReport, joint: str = "\n") -> list[str]:
    """Totals of memory, for each unit, and of compute, if there is any. `joint` separates a sum and its name."""
    memory = report.having(GPU_MEM)
    units = sorted({node.unit for node in memory})
    sums = []
    for unit in units:
        amount = report.total([node for node in memory if node.unit == unit], GPU_MEM)
        sums.append(f"{amount}{f' {unit}' if len(units) > 1 else ''} ({percent(amount)}%)")
    lines = _titled("Allocated/Total GPU Memory In Cluster:", sums, joint) if memory else []
    if core := report.having(GPU_CORE):
        amount = report.total(core, GPU_CORE)
        lines += _titled("Allocated/Total GPU Core In Cluster:", [f"{amount} ({percent(amount)}%)"], joint)
    return lines


def whole_total(report: ClusterReport, joint: str = "\n") -> list[str]:
    amount = report.total(report.having(GPU_WHOLE), GPU_WHOLE)
    return _titled("Allocated/Total GPUs In Cluster:", [f"{amount} ({percent(amount)}%)"], joint)


def _titled(title: str, sums: Sequence[str], joint: str) -> list[str]:
    return f"{title}{joint}{joint.join(sums)}".split("\n")


def percent(amount: Amount) -> int:
    """As the documented tool has it: cut, not rounded; 0 of nothing."""
    return amount.allocated * 100 // amount.total if amount.total else 0


def below(report: ClusterReport, most: int | None, *, colour: bool) -> list[str]:
    """Pods without a GPU, and why; then notes."""
    pods = report.without_gpu
    lines: list[str] = []
    if pods:
        rows = [row("NAMESPACE", "NAME", "NODE", "ASKS", "WHY", style=Style.HEAD), *map(_waits, pods[:most])]
        lines += ["", "Pods without a GPU:", *align(rows, colour=colour)]
        if most is not None and len(pods) > most:
            lines.append(f"and {len(pods) - most} more (-d shows all)")
    texts = notes(report)
    if texts:
        shown = texts if most is None else texts[:MANY_NOTES]
        lines += ["", "Notes:", *(painted(printable(f"- {text}"), Style.PENDING, colour=colour) for text in shown)]
        if len(texts) > len(shown):
            lines.append(f"and {len(texts) - len(shown)} more (-d shows all)")
    return lines


def _waits(report: PodReport) -> list[Cell]:
    pod = report.pod
    asks = ", ".join(f"{amount} {name.rpartition('/')[2]}" for name, amount in report.pending.items())
    return row(pod.name.namespace, pod.name.name, pod.node or "-", asks, report.why)


def address(node: NodeReport) -> str:
    return node.node.address or NO_ADDRESS


def gpu_columns(nodes: Sequence[NodeReport]) -> range:
    """Numbers of the GPUs that have a column."""
    return range(max((gpu.number for node in nodes for gpu in node.gpus), default=-1) + 1)


class _Shared:
    """Memory, then compute where a node advertises it."""

    def __init__(self, nodes: Sequence[NodeReport]) -> None:
        # A node that no longer advertises memory, but still has pods with it, does not show its unit.
        units = {node.unit for node in nodes if GPU_MEM in node.amounts and node.node.offered(GPU_MEM)}
        self._unit = units.pop() if len(units) == 1 else None
        self._gpus = gpu_columns(nodes)
        self._pending = any(node.pending.get(GPU_MEM) for node in nodes)
        core = [node for node in nodes if GPU_CORE in node.amounts]
        self._cores = gpu_columns(core)
        self._core = bool(core)
        self._core_pending = any(node.pending.get(GPU_CORE) for node in core)

    def head(self) -> Iterator[str]:
        yield from (f"GPU{n}(Allocated/Total)" for n in self._gpus)
        if self._pending:
            yield "PENDING(Allocated)"
        yield f"GPU Memory({self._unit})" if self._unit else "GPU Memory"
        if self._core:
            yield from (f"GPU{n} Core(%)" for n in self._cores)
            if self._core_pending:
                yield "PENDING Core(%)"
            yield "GPU Core(%)"

    def cells(self, node: NodeReport) -> Iterator[Cell]:
        by_number = {gpu.number: gpu for gpu in node.gpus}
        yield from (gpu_cell(by_number.get(n), GPU_MEM) for n in self._gpus)
        if self._pending:
            yield _pending(node, GPU_MEM)
        amount = node.amounts.get(GPU_MEM, Amount(0, 0))
        named = GPU_MEM in node.amounts and node.unit != self._unit
        yield Cell(f"{amount} {node.unit}" if named else str(amount))
        if self._core:
            has = GPU_CORE in node.amounts
            yield from (gpu_cell(by_number.get(n), GPU_CORE) if has else Cell("-") for n in self._cores)
            if self._core_pending:
                yield _pending(node, GPU_CORE)
            yield Cell(str(node.amounts[GPU_CORE]) if has else "-")


class _Whole:
    """Whole GPUs, mode `topology`."""

    def __init__(self, nodes: Sequence[NodeReport]) -> None:
        self._gpus = gpu_columns(nodes)
        self._pending = any(node.pending.get(GPU_WHOLE) for node in nodes)

    def head(self) -> Iterator[str]:
        yield from (f"GPU{n}(Allocated/Total)" for n in self._gpus)
        if self._pending:
            yield "PENDING(Allocated)"
        yield "GPUs(Allocated/Total)"

    def cells(self, node: NodeReport) -> Iterator[Cell]:
        by_number = {gpu.number: gpu for gpu in node.gpus}
        yield from (gpu_cell(by_number.get(n), GPU_WHOLE) for n in self._gpus)
        if self._pending:
            yield _pending(node, GPU_WHOLE)
        yield Cell(str(node.amounts[GPU_WHOLE]))


def _table(columns: _Shared | _Whole, nodes: Sequence[NodeReport], *, wide: bool, colour: bool) -> list[str]:
    more = ["MODE", "PLACEMENT", "UNIT", "MODEL", "PODS"] if wide else []
    head = row("NAME", "IPADDRESS", *columns.head(), *more, style=Style.HEAD)
    rows = [head, *_rows(columns, nodes, wide=wide)]
    return [*align(rows, colour=colour), "-" * dashes(rows[1])]


def _rows(columns: _Shared | _Whole, nodes: Sequence[NodeReport], *, wide: bool) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for node in nodes:
        cells = [*row(node.node.name, address(node)), *columns.cells(node)]
        rows.append([*cells, *row(*_wide(node))] if wide else cells)
    return rows


def dashes(cells: Sequence[Cell]) -> int:
    """As the documented tool counts them: the first node's texts, and one more for each."""
    return sum(len(cell.text) + 1 for cell in cells) + _DASHES_MORE


def _wide(node: NodeReport) -> tuple[str, ...]:
    spec = node.node
    model = spec.model or next((gpu.model for gpu in node.gpus if gpu.model), "")
    unit = node.unit if GPU_MEM in node.amounts else "-"
    return spec.mode or "-", spec.placement or "-", unit, model or "-", str(len(node.pods))


def gpu_cell(gpu: GpuReport | None, resource: str) -> Cell:
    """Allocated and total of one GPU; `!` marks an unhealthy one. A GPU that the node lacks is ``0/0``."""
    if gpu is None or resource not in gpu.amounts:
        return Cell("0/0")
    return Cell(f"{gpu.amounts[resource]}!", Style.ILL) if gpu.cause else Cell(str(gpu.amounts[resource]))


def _pending(node: NodeReport, resource: str) -> Cell:
    amount = node.pending.get(resource)
    return Cell(str(amount) if amount else "", Style.PENDING)
