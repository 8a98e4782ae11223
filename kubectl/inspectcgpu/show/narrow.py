"""The report for a terminal too narrow for the tables: a node, its GPUs below it, on request with their pods."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.pages.cells import Style, painted, width
from gpuagent.system.printable import printable
from inspectcgpu.report import UNKNOWN, Amount, ClusterReport, GpuReport, NodeReport, PodReport
from inspectcgpu.show.notes import notes
from inspectcgpu.show.summary import MANY_NOTES, MANY_PODS, address, asked, more, totals, whole_total

_GAP = "   "
_INDENT = "  "
_GIB = 2**30


def narrow(report: ClusterReport, columns: int, *, pods: bool, colour: bool) -> list[str]:
    """Lines of at most `columns` where names are not longer."""
    lines: list[str] = []
    for node in report.nodes:
        if not node.amounts:
            continue
        head = f"{node.node.name} ({address(node)}){_GAP}{_amounts(node, _texts(node.amounts))}"
        lines.append(painted(printable(head), Style.HEAD, colour=colour))
        lines += _gpus_with_pods(node, colour=colour) if pods else _gpus(node, columns, colour=colour)
        lines.append("")
    return lines + tail(report, columns, pods=pods, colour=colour)


def tail(report: ClusterReport, columns: int, *, pods: bool, colour: bool) -> list[str]:
    """What stands below the nodes: totals, pods without a GPU, and notes, wrapped."""
    lines = totals(report, " ")
    if report.having(GPU_WHOLE):
        lines += whole_total(report, " ")
    waiting = [_waits(pod) for pod in report.without_gpu]
    most_pods = None if pods else MANY_PODS
    lines += _listed("Pods without a GPU:", waiting, most_pods, columns, Style.PLAIN, colour=colour)
    most_notes = None if pods else MANY_NOTES
    lines += _listed("Notes:", notes(report), most_notes, columns, Style.PENDING, colour=colour)
    return lines


def fits(lines: Iterable[str], columns: int) -> bool:
    """Whether none of these plain lines is longer. Rules of dashes do not count."""
    return all(width(line) <= columns for line in lines if line.strip("-"))


def _texts(amounts: Mapping[str, Amount]) -> Mapping[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _amounts(node: NodeReport, amounts: Mapping[str, str]) -> str:
    """``24/60 GiB, 130/400 %``."""
    unit = node.measure.unit.phrase if node.measure.unit else UNKNOWN
    units = {GPU_MEM: unit, GPU_CORE: "%", GPU_WHOLE: "GPU"}
    return ", ".join(f"{amounts[name]} {unit}" for name, unit in units.items() if name in amounts)


def _gpu(node: NodeReport, gpu: GpuReport) -> str:
    amounts = _amounts(node, _texts(gpu.amounts))
    mark = " !" if gpu.cause else ""
    return f"GPU{gpu.number} {amounts}{mark}"


def _style(gpu: GpuReport) -> Style:
    return Style.ILL if gpu.cause else Style.PLAIN


def _gpus(node: NodeReport, columns: int, *, colour: bool) -> list[str]:
    """As many in a line as fit, in columns."""
    texts = [_gpu(node, gpu) for gpu in node.gpus]
    cell_width = max(map(len, texts), default=0) + len(_GAP)
    # The last cell of a line needs no gap.
    room = columns - len(_INDENT) + len(_GAP)
    cells_a_line = max(1, room // cell_width)
    cells = []
    for gpu, text in zip(node.gpus, texts, strict=True):
        # Colors take no columns, so it is the plain text that is filled up.
        padding = " " * (cell_width - len(text))
        cells.append(painted(text, _style(gpu), colour=colour) + padding)
    lines = []
    for first in range(0, len(cells), cells_a_line):
        line = "".join(cells[first : first + cells_a_line])
        lines.append(_INDENT + line.rstrip())
    return lines


def _gpus_with_pods(node: NodeReport, *, colour: bool) -> Iterator[str]:
    for gpu in node.gpus:
        yield painted(f"{_INDENT}{_gpu(node, gpu)}", _style(gpu), colour=colour)
        for pod in node.pods:
            held = _held(pod, gpu.number)
            if held:
                state = f"{_used(pod)}{_resized(pod)}"
                yield printable(f"{_INDENT * 2}{pod.pod.name} {_amounts(node, held)}{state}")


def _held(pod: PodReport, gpu: int) -> dict[str, str]:
    """What the pod has of one GPU, by resource."""
    held = {}
    for resource, by_gpu in pod.places.items():
        if gpu in by_gpu:
            held[resource] = str(by_gpu[gpu])
    return held


def _used(report: PodReport) -> str:
    """Of all its GPUs."""
    if report.usage is None or report.usage.used is None:
        return ""
    used = f"{report.usage.used / _GIB:.1f}"
    limit = report.usage.limit
    if limit is None:
        return f", uses {used} GiB"
    return f", uses {used} of {limit / _GIB:.1f} GiB"


def _resized(report: PodReport) -> str:
    """Of all its GPUs; the notes say why a change is refused."""
    resize = report.resize
    if resize is None:
        return ""
    in_force = f", limited to {resize.in_force}" if resize.in_force else ""
    is_wanted = resize.wanted and resize.wanted != resize.in_force
    return f"{in_force}, wants {resize.wanted}" if is_wanted else in_force


def _waits(report: PodReport) -> str:
    pod = report.pod
    return f"{pod.name} on {pod.node or 'no node'}, asks {asked(report)}: {report.why}"


def _listed(  # noqa: PLR0913 (by name)
    title: str, texts: Sequence[str], most: int | None, columns: int, style: Style, *, colour: bool
) -> list[str]:
    """The texts as a list with a title, at most `most` of them; nothing if there are none."""
    if not texts:
        return []
    shown = texts if most is None else texts[:most]
    lines = ["", title]
    for text in shown:
        wrapped = textwrap.wrap(f"- {printable(text)}", columns, subsequent_indent="  ", break_on_hyphens=False)
        lines += [painted(line, style, colour=colour) for line in wrapped]
    return [*lines, *more(texts, shown)]
