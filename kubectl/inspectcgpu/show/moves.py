"""What defragmentation would move: the pods that wait, and below each the pods that make room for it."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gpuagent.pages.cells import Row, Style, align, row
from gpuagent.system.printable import printable
from inspectcgpu.read.defragment_page import MovesPage, Waiting

NOTHING_WAITS = "No pod waits for which others could be moved"
_HEADS = ("POD", "AMOUNTS", "FROM", "TO")


def moves(page: MovesPage, *, colour: bool) -> list[str]:
    """The lines."""
    lines: list[str] = []
    if page.running:
        lines.append(printable(f"Under way ({page.phase}), for pod {page.running.pod}:"))
        lines += _plan(page.running, colour=colour)
        lines.append("")
    for waiting in page.waiting:
        lines += [*_waiting(waiting, colour=colour), ""]
    if not page.waiting:
        lines += [NOTHING_WAITS, ""]
    if page.problem:
        lines.append(printable(f"Nothing is moved now: {page.problem}"))
    else:
        lines.append(f"At most {page.moves} pods are moved in one plan, one plan at a time")
    if page.last:
        lines.append(printable(f"The last plan: {page.last}"))
    return lines


def document(page: MovesPage) -> dict[str, Any]:
    """The page for JSON and YAML."""
    return {
        "moves": page.moves,
        "problem": page.problem,
        "running": _of_waiting(page.running) if page.running else None,
        "phase": page.phase,
        "last": page.last,
        "waiting": [_of_waiting(waiting) for waiting in page.waiting],
    }


def _of_waiting(waiting: Waiting) -> dict[str, Any]:
    return {
        "pod": waiting.pod,
        "wants": waiting.wants,
        "waitsSeconds": waiting.seconds,
        "target": waiting.target,
        "moves": [asdict(move) for move in waiting.moves],
        "whyNot": waiting.why_not,
    }


def _waiting(waiting: Waiting, *, colour: bool) -> Iterator[str]:
    since = "" if waiting.seconds is None else f" for {waiting.seconds} s"
    title = f"Pod {waiting.pod} waits{since} for {waiting.wants}"
    if not waiting.moves:
        yield printable(f"{title}: {waiting.why_not}")
        return
    plural = "s" if len(waiting.moves) > 1 else ""
    yield printable(f"{title}. {len(waiting.moves)} move{plural} would make room:")
    yield from _plan(waiting, colour=colour)


def _plan(waiting: Waiting, *, colour: bool) -> list[str]:
    """A row for each pod that would move, then the pod that gets the room."""
    rows: list[Row] = [row(*_HEADS, style=Style.HEAD)]
    rows += [row(move.pod, move.amounts, move.origin, move.target) for move in waiting.moves]
    rows.append(row(waiting.pod, waiting.wants, "-", waiting.target, style=Style.PENDING))
    return [f"  {line}" for line in align(rows, colour=colour)]
