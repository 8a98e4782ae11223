"""The status page as a table for people, 80 columns wide where names of pods are not long."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gpuagent.domain.sharing.claim import CLAIM_CORES, CLAIM_MEMORY
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.pages.cells import Cell, Style, align, models, painted, row

WIDTH = 80
_GAP = "   "


def render(page: dict[str, Any], *, colour: bool = False) -> str:
    """A few lines of facts, the GPUs with who holds how much, the resources, and problems."""
    label = next(iter(page["label"].values()))
    head = {
        "node": page["node"] or "-",
        "mode": f"{page['mode']} (label: {label or 'none'})",
        "placement": page["placement"],
        "isolation": " ".join(filter(None, (page["isolation"]["driver"], page["isolation"]["version"]))),
        "unit": page["memory_unit"],
        "gpuagent": page["version"],
    }
    lines = _filled([f"{name} {value}" for name, value in head.items()])
    if page["switch"]["phase"] != "steady":
        waiting = {item["container"] for item in page["switch"]["waiting_for"]}
        names = ", ".join(sorted(waiting)) or "old devices to leave kubelet's list"
        text = f"mode switch {page['switch']['phase']}: waits for {names}"
        lines += [painted(one, Style.PENDING, colour=colour) for one in _wrapped(text, "")]
    parts = [lines, _gpus(page, colour=colour), _resources(page["resources"], colour=colour)]
    if caveats := page["isolation"]["caveats"]:
        told = (line for caveat in caveats for line in _wrapped(f"- {caveat}", "  "))
        parts.append([f"isolation by {page['isolation']['driver']}:", *told])
    parts.append(
        [
            painted(line, Style.ILL if problem["warning"] else Style.PENDING, colour=colour)
            for problem in page["problems"]
            for line in _wrapped(f"! {problem['reason']}: {problem['message']}", "  ")
        ]
    )
    return "\n\n".join("\n".join(part) for part in parts if part)


def _filled(facts: Sequence[str]) -> list[str]:
    """As many on a line as fit."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1] + _GAP + fact) <= WIDTH:
            lines[-1] += _GAP + fact
        else:
            lines.append(fact)
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _gpus(page: dict[str, Any], *, colour: bool) -> list[str]:
    gpus, unit = page["gpus"], MemoryUnit.parse(page["memory_unit"])
    if not gpus:
        return ["no GPUs"]
    kinds = {(gpu["model"], gpu["memory_mib"]) for gpu in gpus}
    (_, memory), *others = kinds
    rows = [row("GPU", "HEALTH", "HELD", *(["MODEL"] if others else []), style=Style.HEAD)]
    below: dict[int, list[str]] = {}
    for gpu in gpus:
        model = row(f"{gpu['model']}, {_memory(gpu['memory_mib'])}") if others else []
        rows.append([*row(str(gpu["index"])), _health(gpu), *row(_held(gpu, unit)), *model])
        below[len(rows) - 1] = [*_cause(gpu, colour=colour), *_containers(gpu, unit)]
    each = " each" if memory else ""
    same = [] if others else [f"{models(gpus)}, {_memory(memory)}{each}", ""]
    table = align(rows, colour=colour)
    return [*same, *(line for at, first in enumerate(table) for line in (first, *below.get(at, ())))]


def _health(gpu: dict[str, Any]) -> Cell:
    if gpu["mig"]:
        return Cell("MIG")
    if gpu["recovering"]:
        return Cell("recovering", Style.PENDING)
    return Cell(gpu["health"], Style.ILL if gpu["cause"] else Style.PLAIN)


def _cause(gpu: dict[str, Any], *, colour: bool) -> list[str]:
    cause = gpu["cause"] if not gpu["mig"] else None
    style = Style.PENDING if gpu["recovering"] else Style.ILL
    return [painted(line, style, colour=colour) for line in _wrapped(f"     {cause}", " " * 5)] if cause else []


def _held(gpu: dict[str, Any], unit: MemoryUnit) -> str:
    names = {**dict.fromkeys(gpu["units"]), **dict.fromkeys(gpu["held"])}
    return ", ".join(_part(name, gpu["held"].get(name, 0), gpu["units"].get(name), unit) for name in names) or "-"


def _part(resource: str, held: int, total: int | None, unit: MemoryUnit) -> str:
    if total is None:
        return f"{_amount(resource, held, unit)} of a former mode"
    if resource in {GPU_MEM, CLAIM_MEMORY}:
        size, name = (1024, "GiB") if (held * unit.mib) % 1024 == (total * unit.mib) % 1024 == 0 else (1, "MiB")
        return f"{held * unit.mib // size}/{total * unit.mib // size} {name}"
    return f"{held}/{_amount(resource, total, unit)}"


def _containers(gpu: dict[str, Any], unit: MemoryUnit) -> Iterator[str]:
    """A line for each, with its amounts: ``ml/fast[main] 10 GiB, 30 %``."""
    amounts: dict[str, Counter[str]] = {}
    for one in gpu["containers"]:
        amounts.setdefault(one["container"], Counter())[one["resource"]] += one["units"]
    for name, held in amounts.items():
        order = sorted(held, key=lambda resource: resource in {GPU_CORE, CLAIM_CORES})
        yield f"     {name} {', '.join(_amount(resource, held[resource], unit) for resource in order)}"


def _amount(resource: str, units: int, unit: MemoryUnit) -> str:
    if resource in {GPU_MEM, CLAIM_MEMORY}:
        return _memory(units * unit.mib)
    if resource in {GPU_CORE, CLAIM_CORES}:
        return f"{units} %"
    return f"{units} GPU" if units == 1 else f"{units} GPUs"


def _memory(mib: int) -> str:
    if not mib:
        return "memory not reported"
    return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def _resources(resources: dict[str, dict[str, Any]], *, colour: bool) -> list[str]:
    rows = [row("RESOURCE", "HEALTHY", "UNHEALTHY", "KUBELET", style=Style.HEAD)]
    for name, view in resources.items():
        state = view.get("stage", "-") + (f": {view['problem']}" if view.get("problem") else "")
        style = Style.ILL if view.get("problem") else Style.PLAIN
        rows.append([*row(name, str(view["healthy"]), str(view["unhealthy"])), Cell(state, style)])
    return align(rows, colour=colour)
