"""The health of the fleet: a row for each problem of a node, the nodes with problems first."""

from textwrap import wrap

from gpuagent.pages.cells import GAP, Style, align, row, width
from gpuagent.system.printable import printable
from inspectcgpu.report import ClusterReport, NodeReport
from inspectcgpu.show.notes import node_notes

_LEAST = 24
"""Columns below which a problem is not wrapped."""


def health(report: ClusterReport, *, colour: bool, columns: int | None = None) -> list[str]:
    """The lines, and how many nodes have a problem. Problems are wrapped to a terminal's `columns`."""
    faulty = [node for node in report.nodes if problems(node)]
    heads = ("NODE", "MODE", "HEALTHY GPUS", "PROBLEM")
    before = [(node.node.name, node.node.mode or "-") for node in report.nodes]
    taken = sum(max(map(width, column)) for column in zip(heads[:2], *before, strict=True)) + width(heads[2])
    room = (columns or 0) - taken - 3 * len(GAP)
    rows = [row(*heads, style=Style.HEAD)]
    for node in sorted(report.nodes, key=lambda node: (not problems(node), node.node.name)):
        well = sum(not gpu.cause for gpu in node.gpus)
        first = (node.node.name, node.node.mode or "-", f"{well}/{len(node.gpus)}")
        for text in problems(node) or ["-"]:
            for line in wrap(printable(text), room) if room >= _LEAST else [text]:
                rows.append(row(*first, line, style=Style.PLAIN if text == "-" else Style.ILL))
                first = ("", "", "")
    whole = [*align(rows, colour=colour), "", f"{len(faulty)} of {len(report.nodes)} nodes have a problem"]
    return [*whole, *(f"- {text}" for text in report.problems)]


def problems(node: NodeReport) -> list[str]:
    """What is wrong with a node, a sentence each."""
    unseen = [f"its agent could not be asked: {node.unseen}"] if node.unseen else []
    return [*node_notes(node), *unseen]
