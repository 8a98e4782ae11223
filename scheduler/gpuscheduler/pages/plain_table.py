"""The page /table: what the page of the cluster shows, for browsers that run no scripts, as tables in HTML.

It is made of /fleet and /use, so that both show the same, and in a thread of the server.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'self'">
<title>GPUs of the cluster</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
<link rel="stylesheet" href="cluster.css">
</head>
<body>
<h1>GPUs of the cluster</h1>
<p class="quiet">As it was when the page was loaded. <a href="./">The live page</a> needs JavaScript.</p>
"""
_FOOT = '<footer><a href="usage">usage</a> <a href="metrics">metrics</a></footer>\n</body>\n</html>\n'
_NODE_HEADS = (
    "node",
    "problems",
    "mode",
    "model",
    "usable GPUs",
    "memory held",
    "compute held",
    "largest free",
    "pods",
)
"""What is wrong comes next to the name, because a phone shows no more than the first columns."""
_NAMESPACE_HEADS = (
    "namespace",
    "pods",
    "memory held",
    "compute held",
    "whole GPUs held",
    "waiting pods",
    "memory used (p95)",
    "peak",
    "unused",
    "pods idle for 1 h",
)
_WAITING_HEADS = ("pod", "asks for", "why it waits")
_MIB_PER_GIB = 1024
_SEVERITIES = ("blocking", "warning", "info")
"""The worst first."""


def plain_table(fleet: bytes, use: bytes) -> bytes:
    """The page, of the pages /fleet and /use. Names and reasons are text that others wrote."""
    page = json.loads(fleet)
    use_page = json.loads(use)
    uses = {row[0]: row for row in use_page["namespaces"]}
    problems_url = page["problemsUrl"]
    unit_mib = page["waitingUnitMib"]
    nodes = sorted(page["nodes"], key=_badness)
    troubled = [row for row in nodes if _badness(row) < _SEVERITIES.index("info")]
    parts = [
        _HEAD,
        f"<p>{len(troubled)} of {len(nodes)} nodes with problems, which come first. On this page: ",
        f'<a href="#waiting">{page["waitingCount"]} waiting pods</a>, ',
        f'<a href="#namespaces">{len(page["namespaces"])} namespaces</a>.</p>\n',
        f"<h2>{len(nodes)} nodes</h2>\n",
        _table(_NODE_HEADS, (_node(row, problems_url) for row in nodes)),
        f'<h2 id="waiting">{page["waitingCount"]} waiting pods</h2>\n',
        _table(_WAITING_HEADS, (_waiting(row, unit_mib) for row in page["waiting"])),
        _not_listed(len(page["waiting"]), page["waitingCount"]),
        f'<h2 id="namespaces">{len(page["namespaces"])} namespaces</h2>\n',
        f"<p>{escape(_about_use(use_page))}</p>\n",
        _table(_NAMESPACE_HEADS, (_namespace(row, uses.get(row[0])) for row in page["namespaces"])),
        _FOOT,
    ]
    return "".join(parts).encode()


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows]
    rows_html = "".join(body)
    table = f'<table class="plain"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows_html}</tbody></table>'
    return f'<div class="wide">{table}</div>\n'


def _badness(row: Sequence[Any]) -> int:
    """How bad the worst problem of a node is: 0 is the worst."""
    problems = row[9]
    # They come with the worst one first.
    severity = problems[0][0] if problems else ""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


def _node(row: Sequence[Any], problems_url: str) -> list[str]:
    name, mode, model, unit_mib, usable, count, pods, waiting, largest, problems, gpus = row
    shared = [gpu for gpu in gpus if not gpu[2]]
    whole = [gpu for gpu in gpus if gpu[2]]
    memory = sum(gpu[3] for gpu in shared)
    held_memory = sum(gpu[4] for gpu in shared)
    held = _held(held_memory, memory, unit_mib)
    if whole:
        in_use = [gpu for gpu in whole if gpu[7]]
        held = f"{len(in_use)} of {len(whole)} GPUs"
    core = sum(gpu[5] for gpu in shared)
    held_core = sum(gpu[6] for gpu in shared)
    compute = f"{round(100 * held_core / core)} %" if core else "–"
    starting = f" ({waiting} starting)" if waiting else ""
    words = "<br>".join(_problem(problem, problems_url) for problem in problems)
    return [
        escape(name),
        f'<div class="words">{words}</div>' if words else "–",
        escape(mode or "–"),
        escape(model or "–"),
        f"{usable} of {count}",
        held,
        compute,
        _largest(largest, unit_mib) if gpus else "–",
        f"{pods}{starting}",
    ]


def _largest(largest: Sequence[int], unit_mib: int) -> str:
    memory, core, gpus = largest
    return _amounts(memory, core, gpus, unit_mib)


def _problem(problem: Sequence[Any], problems_url: str) -> str:
    severity, reason, message, is_documented = problem
    name = escape(reason or "problem")
    if problems_url and is_documented:
        name = f'<a href="{escape(problems_url)}#{escape(reason.lower())}">{name}</a>'
    return f"{name} ({escape(severity)}): {escape(message)}"


def _not_listed(listed: int, waiting: int) -> str:
    if listed >= waiting:
        return ""
    sentence = f'{listed} of {waiting} pods that wait are listed. <a href="usage">usage</a> has all of them.'
    return f'<p class="quiet">{sentence}</p>\n'


def _waiting(row: Sequence[Any], unit_mib: int) -> list[str]:
    pod, memory, core, gpus, why = row
    return [escape(pod), _amounts(memory, core, gpus, unit_mib), escape(why or "not tried yet")]


def _namespace(row: Sequence[Any], use: Sequence[Any] | None) -> list[str]:
    name, pods, mib, core, whole, waiting = row
    held = [
        escape(name),
        str(pods),
        _memory(mib, 1),
        f"{core} %",
        str(whole),
        str(waiting),
    ]
    return [*held, *_use(use)]


def _use(row: Sequence[Any] | None) -> list[str]:
    """The columns of what a namespace uses; dashes before its agents were asked."""
    if row is None:
        return ["–", "–", "–", "–"]
    _, _, unknown, idle, _, used_bytes, peak_bytes, unused_bytes = row
    without = f" ({unknown} pods not known)" if unknown else ""
    return [
        _known(used_bytes, _bytes) + without,
        _known(peak_bytes, _bytes),
        _known(unused_bytes, _bytes),
        _known(idle, str),
    ]


def _known(pair: Sequence[Any], words: Callable[[int], str]) -> str:
    """A sum of which a part may not be known."""
    known, is_complete = pair
    if known is None:
        return "–"
    return words(known) if is_complete else f"≥ {words(known)}"


def _about_use(use: Mapping[str, Any]) -> str:
    """How far agents have been asked, because the page is loaded once."""
    if not use["isOn"]:
        return "What is used is not known: the setting agent-namespace is off."
    if use["nodes"] is None:
        return "The agents are asked what is used: load the page again in a few seconds."
    unanswered = sum(count for _, count, _ in use["unknown"])
    return f"Use is known of {use['asked'] - unanswered} of {use['nodes']} nodes with pods that hold GPUs."


def _held(held: int, total: int, unit_mib: int) -> str:
    return f"{_memory(held, unit_mib)} of {_memory(total, unit_mib)}" if total else "–"


def _amounts(memory: int, core: int, gpus: int, unit_mib: int) -> str:
    parts = []
    if gpus:
        parts.append(f"{gpus} GPUs" if gpus > 1 else "1 GPU")
    if memory > 0:
        parts.append(_memory(memory, unit_mib))
    if core > 0:
        parts.append(f"{core} % of compute")
    return ", ".join(parts) or "none"


def _bytes(amount: int) -> str:
    return _memory(amount >> 20, 1)


def _memory(units: int, unit_mib: int) -> str:
    """An amount of memory; units if their size is not known."""
    if not unit_mib:
        return f"{units} units"
    gib = round(units * unit_mib / _MIB_PER_GIB, 1)
    return f"{gib:g} GiB"
