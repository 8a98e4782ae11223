"""`-d`: the pods of each node, with what they have on each GPU, and what they use of it."""

from collections.abc import Iterator, Sequence

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.pages.cells import Cell, Style, align, row, width
from gpuagent.system.printable import printable
from inspectcgpu.report import ClusterReport, NodeReport, PodReport
from inspectcgpu.show.summary import address, below, gpu_columns, percent, totals, whole_total

_GIB = 2**30
_DASHES_MORE = 10


def details(report: ClusterReport, *, wide: bool = False, colour: bool = False) -> list[str]:
    """Lines."""
    lines: list[str] = []
    length = 0
    for node in report.nodes:
        if node.amounts:
            length = length or max(map(width, _node(node, wide=wide, colour=False))) + _DASHES_MORE
            lines += [*_node(node, wide=wide, colour=colour), "-" * length]
    if lines:
        lines += ["", "", *totals(report, "  ")]
        if report.having(GPU_WHOLE):
            lines += whole_total(report, "  ")
    if report.usage_problem and any(node.pods for node in report.nodes):
        lines += ["", printable(f"USED/LIMIT is not known: {report.usage_problem}")]
    return lines + below(report, None, colour=colour)


def _node(node: NodeReport, *, wide: bool, colour: bool) -> list[str]:
    about = [row("NAME:", node.node.name), row("IPADDRESS:", address(node))]
    if wide:
        about += _more_about(node)
    pods = [_pod(node, pod) for pod in node.pods]
    rows = [_head(node), *pods, *_sums(node)]
    lines = ["", *align(about, colour=colour), "", *align(rows, colour=colour)]
    resized = list(_resizes(node))
    if resized:
        titles = row("RESIZED", "NAMESPACE", "WANTED", "IN FORCE", "WHY NOT", style=Style.HEAD)
        lines += ["", *align([titles, *resized], colour=colour)]
    if node.links:
        lines += ["", "Links:", *align(_square(node.links), colour=colour)]
    return lines


def _more_about(node: NodeReport) -> Iterator[list[Cell]]:
    """What is only shown with `wide`, as far as it is known."""
    spec = node.node
    unit = node.unit if GPU_MEM in node.amounts else ""
    named = {"MODE:": spec.mode, "PLACEMENT:": spec.placement, "UNIT:": unit, "MODEL:": spec.model}
    for name, value in named.items():
        if value:
            yield row(name, value)


def _square(links: Sequence[Sequence[str]]) -> Iterator[list[Cell]]:
    """The links of each GPU to each other, with a title for each row and column."""
    names = [f"GPU{n}" for n in range(len(links))]
    yield row("", *names)
    for name, of_gpu in zip(names, links, strict=True):
        yield row(name, *of_gpu)


def _resources(node: NodeReport) -> tuple[str, ...]:
    """The resources with columns: memory or whole GPUs first, of which a node advertises one."""
    return tuple(name for name in (GPU_MEM, GPU_WHOLE, GPU_CORE) if name in node.amounts)


def _what(node: NodeReport, resource: str) -> str:
    """A column's heading; it distinguishes memory and whole GPUs where a node has both, during a mode switch."""
    if resource == GPU_CORE:
        return " Core(%)"
    return f"{_both(node, resource)}(Allocated)"


def _both(node: NodeReport, resource: str) -> str:
    if not {GPU_MEM, GPU_WHOLE} <= node.amounts.keys():
        return ""
    return {GPU_MEM: " Memory", GPU_WHOLE: " Whole"}.get(resource, "")


def _head(node: NodeReport) -> list[Cell]:
    texts = ["NAME", "NAMESPACE"]
    for resource in _resources(node):
        what = _what(node, resource)
        texts += [f"GPU{n}{what}" for n in gpu_columns([node])]
        if node.pending.get(resource):
            texts.append(f"Pending{what}")
    return row(*texts, "USED/LIMIT(GiB)", style=Style.HEAD)


def _pod(node: NodeReport, report: PodReport) -> list[Cell]:
    name = report.pod.name
    cells = row(name.name, name.namespace)
    for resource in _resources(node):
        places = report.places.get(resource, {})
        cells += row(*(str(places.get(n, 0)) for n in gpu_columns([node])))
        if node.pending.get(resource):
            cells.append(Cell(str(report.pending.get(resource, 0)), Style.PENDING))
    return [*cells, Cell(_usage(report))]


def _resizes(node: NodeReport) -> Iterator[list[Cell]]:
    """The pods whose memory limit was changed while they run, or is to be."""
    for report in node.pods:
        resize = report.resize
        if resize is not None:
            name = report.pod.name
            cells = row(name.name, name.namespace, resize.wanted or "-", resize.in_force or "-")
            why_not = Cell(resize.refused, Style.PENDING) if resize.refused else Cell("-")
            yield [*cells, why_not]


def _usage(report: PodReport) -> str:
    if report.usage is None:
        return "-"
    return f"{_gib(report.usage.used)}/{_gib(report.usage.limit)}"


def _gib(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def _sums(node: NodeReport) -> Iterator[Sequence[Cell]]:
    for resource in _resources(node):
        amount = node.amounts[resource]
        what = " Core" if resource == GPU_CORE else _both(node, resource)
        yield row(f"Allocated{what} :", f"{amount.allocated} ({percent(amount)}%)")
        yield row(f"Total{what} :", str(amount.total))
