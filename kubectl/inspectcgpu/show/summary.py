"""The tables for people: a row for each node, as the documented tool prints them, and what it leaves out below."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.pages.cells import Cell, Style, align, painted, row
from gpuagent.system.printable import printable
from inspectcgpu.report import Amount, ClusterReport, GpuReport, NodeReport, PodReport
from inspectcgpu.show.notes import notes

NO_ADDRESS = "unknown"
MANY_PODS = 10
MANY_NOTES = 20
"""The most pods and notes below the tables; -d, JSON and YAML have all."""
_DASHES_MORE = 20


def summary(report: ClusterReport, *, wide: bool = False, colour: bool = False) -> list[str]:
    """The lines. Memory and compute share one table, whole GPUs have another; each appears if a node needs it."""
    shared = report.sharing
    whole = report.having(GPU_WHOLE)
    lines: list[str] = []
    if shared:
        lines += _table(_shared(shared), shared, wide=wide, colour=colour)
        lines += totals(report)
    if shared and whole:
        lines.append("")
    if whole:
        lines += _table(_whole(whole), whole, wide=wide, colour=colour)
        lines += whole_total(report)
    return lines + below(report, MANY_PODS, colour=colour)


def summary_rows(report: ClusterReport, *, wide: bool = False, colour: bool = False) -> list[str]:
    """The rows of the tables alone: a line for each node, whole GPUs after the others."""
    shared = report.sharing
    whole = report.having(GPU_WHOLE)
    # Each table has columns of its own, so each is aligned alone.
    rows_of_shared = _rows(_shared(shared), shared, wide=wide)
    rows_of_whole = _rows(_whole(whole), whole, wide=wide)
    return [*align(rows_of_shared, colour=colour), *align(rows_of_whole, colour=colour)]


def totals(report: ClusterReport, joint: str = "\n") -> list[str]:
    """Totals of memory, for each unit, and of compute, if there is any. `joint` separates a sum and its name."""
    lines: list[str] = []
    memory = report.having(GPU_MEM)
    if memory:
        lines += _titled("Allocated/Total GPU Memory In Cluster:", _memory_sums(report, memory), joint)
    core = report.having(GPU_CORE)
    if core:
        amount = report.total(core, GPU_CORE)
        lines += _titled("Allocated/Total GPU Core In Cluster:", [_with_percent(amount)], joint)
    return lines


def _memory_sums(report: ClusterReport, nodes: Sequence[NodeReport]) -> list[str]:
    """A sum for each unit. It names its unit only if there are several."""
    by_unit: dict[str, list[NodeReport]] = {}
    for node in nodes:
        by_unit.setdefault(node.unit, []).append(node)
    sums = []
    for unit, alike in sorted(by_unit.items()):
        amount = report.total(alike, GPU_MEM)
        name = f" {unit}" if len(by_unit) > 1 else ""
        sums.append(_with_percent(amount, name))
    return sums


def _with_percent(amount: Amount, unit: str = "") -> str:
    return f"{amount}{unit} ({percent(amount)}%)"


def whole_total(report: ClusterReport, joint: str = "\n") -> list[str]:
    amount = report.total(report.having(GPU_WHOLE), GPU_WHOLE)
    return _titled("Allocated/Total GPUs In Cluster:", [_with_percent(amount)], joint)


def _titled(title: str, sums: Sequence[str], joint: str) -> list[str]:
    text = joint.join([title, *sums])
    return text.split("\n")


def percent(amount: Amount) -> int:
    """As the documented tool has it: cut, not rounded; 0 of nothing."""
    return amount.allocated * 100 // amount.total if amount.total else 0


def below(report: ClusterReport, most: int | None, *, colour: bool) -> list[str]:
    """Pods without a GPU, and why; then notes."""
    return [*_pods_below(report, most, colour=colour), *_notes_below(report, most, colour=colour)]


def _pods_below(report: ClusterReport, most: int | None, *, colour: bool) -> list[str]:
    pods = report.without_gpu
    if not pods:
        return []
    shown = pods[:most]
    rows = [row("NAMESPACE", "NAME", "NODE", "ASKS", "WHY", style=Style.HEAD), *map(_waits, shown)]
    return ["", "Pods without a GPU:", *align(rows, colour=colour), *more(pods, shown)]


def _notes_below(report: ClusterReport, most: int | None, *, colour: bool) -> list[str]:
    texts = notes(report)
    if not texts:
        return []
    shown = texts if most is None else texts[:MANY_NOTES]
    lines = [painted(printable(f"- {text}"), Style.PENDING, colour=colour) for text in shown]
    return ["", "Notes:", *lines, *more(texts, shown)]


def more(values: Sequence[object], shown: Sequence[object]) -> list[str]:
    """A line that counts those that are not shown; none if all are."""
    hidden = len(values) - len(shown)
    return [f"and {hidden} more (-d shows all)"] if hidden else []


def _waits(report: PodReport) -> list[Cell]:
    pod = report.pod
    return row(pod.name.namespace, pod.name.name, pod.node or "-", asked(report), report.why)


def asked(report: PodReport) -> str:
    """What the pod asks for and has not, for example ``4 gpu-mem, 20 gpu-core.percentage``."""
    parts = []
    for name, amount in report.pending.items():
        _, _, short_name = name.rpartition("/")
        parts.append(f"{amount} {short_name}")
    return ", ".join(parts)


def address(node: NodeReport) -> str:
    return node.node.address or NO_ADDRESS


def gpu_columns(nodes: Sequence[NodeReport]) -> range:
    """Numbers of the GPUs that have a column."""
    numbers = [gpu.number for node in nodes for gpu in node.gpus]
    return range(max(numbers, default=-1) + 1)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of one resource: one for each GPU, one for requests without a GPU, and one for the whole node.

    Attributes:
        resource: its name.
        gpus: numbers of the GPUs.
        gpu_title: with ``{}`` for the number of a GPU.
        pending_title: empty if no node has requests without a GPU.
        node_title: of the last column.
        unit: of memory, which `node_title` names; None if it names none.
        absent: what stands for a node without the resource.
    """

    resource: str
    gpus: range
    gpu_title: str
    pending_title: str
    node_title: str
    unit: str | None = None
    absent: str = "0/0"

    def head(self) -> Iterator[str]:
        """The titles."""
        yield from map(self.gpu_title.format, self.gpus)
        if self.pending_title:
            yield self.pending_title
        yield self.node_title

    def cells(self, node: NodeReport) -> Iterator[Cell]:
        """A node's part of its row."""
        has_resource = self.resource in node.amounts
        by_number = {gpu.number: gpu for gpu in node.gpus}
        for number in self.gpus:
            yield gpu_cell(by_number.get(number), self.resource) if has_resource else Cell(self.absent)
        if self.pending_title:
            yield _pending(node, self.resource)
        yield Cell(self._of_node(node))

    def _of_node(self, node: NodeReport) -> str:
        amount = node.amounts.get(self.resource)
        if amount is None:
            return self.absent
        names_unit = self.resource == GPU_MEM and node.unit != self.unit
        return f"{amount} {node.unit}" if names_unit else str(amount)


def _shared(nodes: Sequence[NodeReport]) -> list[_Columns]:
    """Memory, then compute if a node advertises it."""
    # A node that no longer advertises memory, but still has pods with it, does not show its unit.
    units = {node.unit for node in nodes if GPU_MEM in node.amounts and node.node.offered(GPU_MEM)}
    unit = units.pop() if len(units) == 1 else None
    memory = _Columns(
        GPU_MEM,
        gpu_columns(nodes),
        gpu_title="GPU{}(Allocated/Total)",
        pending_title=_if_pending(nodes, GPU_MEM, "PENDING(Allocated)"),
        node_title=f"GPU Memory({unit})" if unit else "GPU Memory",
        unit=unit,
    )
    with_core = [node for node in nodes if GPU_CORE in node.amounts]
    if not with_core:
        return [memory]
    core = _Columns(
        GPU_CORE,
        gpu_columns(with_core),
        gpu_title="GPU{} Core(%)",
        pending_title=_if_pending(with_core, GPU_CORE, "PENDING Core(%)"),
        node_title="GPU Core(%)",
        absent="-",
    )
    return [memory, core]


def _whole(nodes: Sequence[NodeReport]) -> list[_Columns]:
    """Whole GPUs, mode `topology`."""
    whole = _Columns(
        GPU_WHOLE,
        gpu_columns(nodes),
        gpu_title="GPU{}(Allocated/Total)",
        pending_title=_if_pending(nodes, GPU_WHOLE, "PENDING(Allocated)"),
        node_title="GPUs(Allocated/Total)",
    )
    return [whole]


def _if_pending(nodes: Iterable[NodeReport], resource: str, title: str) -> str:
    """The title of the column for requests without a GPU; empty if there are none."""
    return title if any(node.pending.get(resource) for node in nodes) else ""


def _table(columns: Sequence[_Columns], nodes: Sequence[NodeReport], *, wide: bool, colour: bool) -> list[str]:
    titles = ["NAME", "IPADDRESS"]
    for part in columns:
        titles += part.head()
    if wide:
        titles += ["MODE", "PLACEMENT", "UNIT", "MODEL", "PODS"]
    rows = _rows(columns, nodes, wide=wide)
    lines = align([row(*titles, style=Style.HEAD), *rows], colour=colour)
    return [*lines, "-" * dashes(rows[0])]


def _rows(columns: Sequence[_Columns], nodes: Sequence[NodeReport], *, wide: bool) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for node in nodes:
        cells = row(node.node.name, address(node))
        for part in columns:
            cells += part.cells(node)
        if wide:
            cells += row(*_wide(node))
        rows.append(cells)
    return rows


def dashes(cells: Sequence[Cell]) -> int:
    """As the documented tool counts them: the first node's texts, and one more for each."""
    return sum(len(cell.text) + 1 for cell in cells) + _DASHES_MORE


def _wide(node: NodeReport) -> tuple[str, ...]:
    """The further cells of a line: mode, placement, unit, model and number of pods."""
    spec = node.node
    models = [spec.model, *(gpu.model for gpu in node.gpus)]
    model = next(filter(None, models), "-")
    unit = node.unit if GPU_MEM in node.amounts else "-"
    return spec.mode or "-", spec.placement or "-", unit, model, str(len(node.pods))


def gpu_cell(gpu: GpuReport | None, resource: str) -> Cell:
    """Allocated and total of one GPU; `!` marks an unhealthy one. A GPU that the node lacks is ``0/0``."""
    if gpu is None or resource not in gpu.amounts:
        return Cell("0/0")
    amount = gpu.amounts[resource]
    return Cell(f"{amount}!", Style.ILL) if gpu.cause else Cell(str(amount))


def _pending(node: NodeReport, resource: str) -> Cell:
    amount = node.pending.get(resource)
    return Cell(str(amount) if amount else "", Style.PENDING)
