"""The health of the fleet: a row for each problem of a node, the nodes with problems first."""

from gpuagent.pages.cells import Style, align, row
from inspectcgpu.report import ClusterReport, NodeReport
from inspectcgpu.show.notes import node_notes


def health(report: ClusterReport, *, colour: bool) -> list[str]:
    """The lines, and how many nodes have a problem."""
    faulty = [node for node in report.nodes if problems(node)]
    rows = [row("NODE", "MODE", "HEALTHY GPUS", "PROBLEM", style=Style.HEAD)]
    for node in sorted(report.nodes, key=lambda node: (not problems(node), node.node.name)):
        well = sum(not gpu.cause for gpu in node.gpus)
        first = (node.node.name, node.node.mode or "-", f"{well}/{len(node.gpus)}")
        for text in problems(node) or ["-"]:
            rows.append(row(*first, text, style=Style.PLAIN if text == "-" else Style.ILL))
            first = ("", "", "")
    whole = [*align(rows, colour=colour), "", f"{len(faulty)} of {len(report.nodes)} nodes have a problem"]
    return [*whole, *(f"- {text}" for text in report.problems)]


def problems(node: NodeReport) -> list[str]:
    """What is wrong with a node, a sentence each."""
    unseen = [f"its agent could not be asked: {node.unseen}"] if node.unseen else []
    return [*node_notes(node), *unseen]
