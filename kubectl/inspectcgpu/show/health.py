"""The health of the fleet: a row for each problem of a node."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from gpuagent.domain.fleet.node_problems import SEVERITIES
from gpuagent.pages.cells import GAP, Row, Style, align, row, width
from gpuagent.system.printable import printable
from inspectcgpu.report import ClusterReport, NodeReport
from inspectcgpu.show.notes import amount_notes, node_notes
from inspectcgpu.summaries import Column

_LEAST = 16
"""Columns below which a problem is not wrapped."""
_HEADS = ("NODE", "MODE", "HEALTHY GPUS", "SEVERITY", "PROBLEM")
INFO = "info"
MANY_HEALTHY = 10
"""Up to this many nodes without a problem are listed: among more, those with one are hard to find."""
MANY_PODS = 20
WHAT_TO_DO = "What to do: problems.md of the documentation, by the word before the colon"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a node; `severity` as the agents report it."""

    severity: str
    text: str


_NOTHING = Finding("-", "-")
"""Stands in the row of a node without any."""


def health(
    report: ClusterReport,
    *,
    colour: bool,
    columns: int | None = None,
    heads: bool = True,
    every_node: bool = False,
) -> list[str]:
    """The lines, how many nodes have a problem, and who is on GPUs that are unhealthy.

    Args:
        report: the cluster; its nodes keep their order.
        colour: colors are on.
        columns: of the terminal, to which problems are wrapped; None for none.
        heads: if not, there is nothing but a line for each problem.
        every_node: list the nodes without a problem also if there are many.
    """
    room = _room(report, columns)
    rows: list[Row] = [row(*_HEADS, style=Style.HEAD)] if heads else []
    faulty = [node for node in report.nodes if has_problem(node)]
    healthy = [node for node in report.nodes if not has_problem(node)]
    # A healthy node may have problems that are for information.
    quiet = [] if every_node or len(healthy) <= MANY_HEALTHY else [node for node in healthy if not findings(node)]
    for node in report.nodes:
        if node not in quiet:
            rows += _node_rows(node, room)
    lines = align(rows, colour=colour)
    if not heads:
        return lines
    not_listed = f"; {len(quiet)} without any are not listed (-o wide lists them)" if quiet else ""
    lines += ["", f"{len(faulty)} of {len(report.nodes)} nodes have a problem{not_listed}"]
    lines += [f"- {text}" for text in report.problems]
    lines += _pods_on_unhealthy_gpus(faulty, colour=colour)
    if faulty:
        lines += ["", WHAT_TO_DO]
    return lines


def _pods_on_unhealthy_gpus(nodes: Sequence[NodeReport], *, colour: bool) -> list[str]:
    """Who is hit: a table of pods; nothing if there are none."""
    rows: list[Row] = []
    for node in nodes:
        rows += _hit_pods(node)
    if not rows:
        return []
    heads = row("NAMESPACE", "NAME", "NODE", "GPU", style=Style.HEAD)
    table = align([heads, *rows[:MANY_PODS]], colour=colour)
    lines = ["", "Pods on unhealthy GPUs:", *table]
    if len(rows) > MANY_PODS:
        lines.append(f"and {len(rows) - MANY_PODS} more (-d shows all pods)")
    return lines


def _hit_pods(node: NodeReport) -> Iterator[Row]:
    """A row for each pod of the node that is on unhealthy GPUs."""
    unhealthy = {gpu.number for gpu in node.gpus if gpu.cause}
    for pod in node.pods:
        held: set[int] = set()
        for gpus in pod.places.values():
            held.update(gpus)
        hit = sorted(held & unhealthy)
        if hit:
            name = pod.pod.name
            yield row(name.namespace, name.name, node.node.name, ", ".join(map(str, hit)))


def _node_rows(node: NodeReport, room: int) -> Iterator[Row]:
    """A row for each line of each problem. Node and severity stand in the first row that they are about."""
    gpus = len(node.gpus)
    healthy = gpus - _unhealthy_gpus(node)
    about_node = (node.node.name, node.node.mode or "-", f"{healthy}/{gpus}")
    for finding in findings(node) or [_NOTHING]:
        severity = finding.severity
        is_ill = severity not in (INFO, _NOTHING.severity)
        style = Style.ILL if is_ill else Style.PLAIN
        for line in _wrapped(finding.text, room):
            yield row(*about_node, severity, line, style=style)
            about_node = ("", "", "")
            severity = ""


def _wrapped(text: str, room: int) -> list[str]:
    """A text in lines of so many columns; in one line if there is too little room, or no terminal."""
    return wrap(printable(text), room) if room >= _LEAST else [text]


def _room(report: ClusterReport, columns: int | None) -> int:
    """Columns for the text of a problem; below 0 without a terminal."""
    name_head, mode_head, healthy_head, severity_head, _ = _HEADS
    names = [node.node.name for node in report.nodes]
    modes = [node.node.mode or "-" for node in report.nodes]
    other_columns = (
        [name_head, *names],
        [mode_head, *modes],
        [healthy_head],
        [severity_head, *SEVERITIES],
    )
    room = columns or 0
    for texts in other_columns:
        room -= max(map(width, texts)) + len(GAP)
    return room


def has_problem(node: NodeReport) -> bool:
    """Whether anything is wrong with a node that is not for information only."""
    return any(finding.severity != INFO for finding in findings(node))


def findings(node: NodeReport) -> list[Finding]:
    """What is wrong with a node, the worst first: its agent's problems, else what can be seen without the agent."""
    problems = _without_agent(node) if node.problems is None else _of_agent(node)
    all_findings = [*problems]
    if node.unseen:
        all_findings.append(Finding("warning", f"its agent could not be asked: {node.unseen}"))
    return sorted(all_findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _unhealthy_gpus(node: NodeReport) -> int:
    return sum(bool(gpu.cause) for gpu in node.gpus)


def _worst(node: NodeReport) -> Finding | None:
    return next(iter(findings(node)), None)


def _badness(node: NodeReport) -> int:
    """The severity of the worst problem; 0 without any."""
    worst = _worst(node)
    return len(SEVERITIES) - SEVERITIES.index(worst.severity) if worst else 0


def _worst_text(node: NodeReport) -> str | None:
    """The text of the worst problem, so that nodes with the same one stand together."""
    worst = _worst(node)
    return worst.text if worst else None


COLUMNS: Mapping[str, Column] = {
    "node": lambda node: node.node.name,
    "mode": lambda node: node.node.mode,
    "gpus": _unhealthy_gpus,
    "severity": _badness,
    "problem": _worst_text,
}
"""What nodes can be sorted by here: `combinations.COMMANDS` has the same names."""


def _of_agent(node: NodeReport) -> Iterator[Finding]:
    for problem in node.problems or ():
        yield Finding(problem.severity, f"{problem.reason}: {problem.message}")
    if not node.problems:
        # The agent reports nothing, and kubelet shows less than it has.
        yield from (Finding("warning", text) for text in amount_notes(node))


def _without_agent(node: NodeReport) -> Iterator[Finding]:
    """What can be seen from outside, and the problems that last, which the agent writes into the node's condition."""
    severity = "blocking" if node.node.problem else "warning"
    yield from (Finding(severity, text) for text in node_notes(node))
    for problem in node.node.reported:
        # The notes have the blocking ones.
        if problem.severity != "blocking":
            yield Finding(problem.severity, str(problem))
