"""A line for each node: what it has, what is held and free, and its worst problem."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuagent.domain.fleet.node_problems import NodeProblem
from gpuagent.domain.fleet.node_summary import Amount, NodeSummary
from gpuagent.pages.cells import GAP, Cell, Row, Style, align, row, width
from gpuagent.system.printable import printable
from inspectcgpu.report import ClusterReport, NodeReport
from inspectcgpu.show.narrow import tail
from inspectcgpu.summaries import summary_of

INFO = "info"
_HEADS = ("NODE", "MODE", "MODEL", "GPUS", "HELD(GiB)", "FREE(GiB)", "PODS", "WAIT", "PROBLEMS")
_MODEL = _HEADS.index("MODEL")
_LEAST_PROBLEM = 10
"""Columns below which the name of a problem says nothing."""
_MIB_PER_GIB = 1024
_MAKERS = ("NVIDIA ", "NVIDIA-", "Tesla ", "Tesla-")


@dataclass(frozen=True, slots=True)
class _Shape:
    """How much of a line is shown.

    Attributes:
        model: the longest model; 0 leaves the column out.
        counts: show how many problems there are, instead of the worst.
    """

    model: int
    counts: bool = False


_WHOLE = _Shape(model=1000)
_SHAPES = (_WHOLE, _Shape(model=8), _Shape(model=0), _Shape(model=0, counts=True))
"""From the longest lines to the shortest."""


def brief(report: ClusterReport, columns: int | None, *, colour: bool, heads: bool = True) -> list[str]:
    """The lines; at most `columns` wide if names are not too long. Without `heads`, only a line for each node."""
    nodes = [(node, summary_of(node)) for node in report.nodes]
    rows = _rows(nodes, _WHOLE, heads=heads) if columns is None else _fitted(nodes, columns, heads=heads)
    lines = align(rows, colour=colour)
    if not heads:
        return lines
    return [*lines, "", *tail(report, columns or 10_000, pods=False, colour=colour)]


Nodes = Sequence[tuple[NodeReport, NodeSummary]]


def _fitted(nodes: Nodes, columns: int, *, heads: bool) -> list[Row]:
    """The longest lines that a terminal has room for."""
    for shape in _SHAPES:
        rows = _rows(nodes, shape, heads=heads)
        room = columns - _taken(rows)
        longest = max([_width(cells[-1]) for cells in rows], default=0)
        if room >= min(longest, _LEAST_PROBLEM):
            break
    return [_with_last_cut(cells, max(room, 1)) for cells in rows]


def _with_last_cut(cells: Row, most: int) -> Row:
    *others, last = cells
    return [*others, _cut(last, most)]


def _taken(rows: Sequence[Row]) -> int:
    """Columns before the last one."""
    widest: Counter[int] = Counter()
    for cells in rows:
        for column, cell in enumerate(cells[:-1]):
            widest[column] = max(widest[column], _width(cell))
    return widest.total() + len(GAP) * len(widest)


def _width(cell: Cell) -> int:
    return width(printable(cell.text))


def _rows(nodes: Nodes, shape: _Shape, *, heads: bool) -> list[Row]:
    *titles, problems = _HEADS
    title = "!" if shape.counts else problems
    rows: list[list[Cell]] = [row(*titles, title, style=Style.HEAD)] if heads else []
    rows += [_cells(node, summary, counts=shape.counts) for node, summary in nodes]
    for cells in rows:
        cells[_MODEL] = _cut(cells[_MODEL], shape.model)
        if not shape.model:
            del cells[_MODEL]
    return [*rows]


def _cells(node: NodeReport, summary: NodeSummary, *, counts: bool) -> list[Cell]:
    is_ill = any(problem.severity != INFO for problem in summary.problems)
    unusable = summary.gpus - summary.usable
    gpus = f"{summary.usable}/{summary.gpus}" if unusable else str(summary.gpus)
    problems = str(len(summary.problems)) if counts else _problems(summary.problems)
    texts = row(
        node.node.name,
        summary.mode or node.node.mode or "-",
        _model(summary.model),
        gpus,
        _held(node, summary),
        _free(summary),
        str(summary.pods),
        str(summary.waiting),
    )
    return [*texts, Cell(problems, Style.ILL if is_ill else Style.PLAIN)]


def _model(model: str) -> str:
    """Without the maker, which is the same for all."""
    for maker in _MAKERS:
        model = model.removeprefix(maker)
    return model or "-"


def _held(node: NodeReport, summary: NodeSummary) -> str:
    """``120/640``, ``120/640 130/400%``, or ``3/8 GPU``."""
    parts: list[str] = []
    if summary.memory.total:
        parts.append(_memory(summary.memory, summary.unit_mib))
    elif summary.memory.held or any(gpu.amounts for gpu in node.gpus):
        parts += _without_sizes(node)
    if summary.core.total:
        parts.append(f"{summary.core.held}/{summary.core.total}%")
    if summary.whole.total:
        parts.append(f"{summary.whole.held}/{summary.whole.total} GPU")
    return " ".join(parts) or "-"


def _without_sizes(node: NodeReport) -> Iterator[str]:
    """The amount of memory on a node of which the GPUs' sizes are not known."""
    for name, amount in node.amounts.items():
        if name.endswith("gpu-mem"):
            yield f"{amount} {node.unit}"


def _memory(amount: Amount, unit_mib: int) -> str:
    if not unit_mib:
        return f"{amount.held}/{amount.total} units"
    return f"{_gib(amount.held * unit_mib)}/{_gib(amount.total * unit_mib)}"


def _free(summary: NodeSummary) -> str:
    """``80``, ``80 100%``, or ``5 GPU``: the most that one pod gets on one GPU, or whole GPUs."""
    largest = summary.largest
    if largest.gpus:
        return f"{largest.gpus} GPU"
    parts = []
    if largest.memory:
        parts.append(_gib(largest.memory * summary.unit_mib) if summary.unit_mib else f"{largest.memory} units")
    if largest.core:
        parts.append(f"{largest.core}%")
    return " ".join(parts) or "0"


def _gib(mib: int) -> str:
    """GiB with at most one digit; rounded down, as no pod gets more than there is."""
    tenths = mib * 10 // _MIB_PER_GIB
    return str(tenths // 10) if tenths % 10 == 0 else f"{tenths / 10:.1f}"


def _problems(problems: Sequence[NodeProblem]) -> str:
    """The worst one, and how many more."""
    if not problems:
        return "-"
    worst = problems[0].reason or problems[0].message
    return f"{worst} +{len(problems) - 1}" if len(problems) > 1 else worst


def _cut(cell: Cell, most: int) -> Cell:
    if _width(cell) <= most:
        return cell
    start = printable(cell.text)[: max(most - 1, 0)]
    return Cell(f"{start}…", cell.style)
