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
    parts = [
        [*_facts(page), *_switch(page["switch"], colour=colour)],
        _gpus(page, colour=colour),
        _resources(page["resources"], colour=colour),
        _caveats(page["isolation"]),
        _problems(page["problems"], colour=colour),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _facts(page: dict[str, Any]) -> list[str]:
    label = next(iter(page["label"].values()))
    isolation = page["isolation"]["driver"]
    if page["isolation"]["version"]:
        isolation = f"{isolation} {page['isolation']['version']}"
    facts = {
        "node": page["node"] or "-",
        "mode": f"{page['mode']} (label: {label or 'none'})",
        "placement": page["placement"],
        "isolation": isolation,
        "unit": page["memory_unit"],
        "gpuagent": page["version"],
    }
    return _filled([f"{name} {value}" for name, value in facts.items()])


def _switch(switch: dict[str, Any], *, colour: bool) -> list[str]:
    """What a mode switch waits for; nothing if there is none."""
    if switch["phase"] == "steady":
        return []
    waiting = {holding["container"] for holding in switch["waiting_for"]}
    names = ", ".join(sorted(waiting)) or "old devices to leave kubelet's list"
    text = f"mode switch {switch['phase']}: waits for {names}"
    return [painted(line, Style.PENDING, colour=colour) for line in _wrapped(text, "")]


def _caveats(isolation: dict[str, Any]) -> list[str]:
    if not isolation["caveats"]:
        return []
    lines = [f"isolation by {isolation['driver']}:"]
    for caveat in isolation["caveats"]:
        lines += _wrapped(f"- {caveat}", "  ")
    return lines


def _problems(problems: Sequence[dict[str, Any]], *, colour: bool) -> list[str]:
    lines: list[str] = []
    for problem in problems:
        style = Style.ILL if problem["warning"] else Style.PENDING
        text = f"! {problem['reason']}: {problem['message']}"
        lines += [painted(line, style, colour=colour) for line in _wrapped(text, "  ")]
    return lines


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
    gpus = page["gpus"]
    unit = MemoryUnit.parse(page["memory_unit"])
    if not gpus:
        return ["no GPUs"]
    models_and_sizes = {(gpu["model"], gpu["memory_mib"]) for gpu in gpus}
    are_alike = len(models_and_sizes) == 1
    head = ["GPU", "HEALTH", "HELD"]
    lines = []
    if are_alike:
        memory_mib = gpus[0]["memory_mib"]
        each = " each" if memory_mib else ""
        lines += [f"{models(gpus)}, {_memory(memory_mib)}{each}", ""]
    else:
        head.append("MODEL")
    rows = [row(*head, style=Style.HEAD)]
    for gpu in gpus:
        cells = [Cell(str(gpu["index"])), _health(gpu), Cell(_held(gpu, unit))]
        if not are_alike:
            cells.append(Cell(f"{gpu['model']}, {_memory(gpu['memory_mib'])}"))
        rows.append(cells)
    head_line, *gpu_lines = align(rows, colour=colour)
    lines.append(head_line)
    for gpu, line in zip(gpus, gpu_lines, strict=True):
        lines += [line, *_cause(gpu, colour=colour), *_containers(gpu, unit)]
    return lines


def _health(gpu: dict[str, Any]) -> Cell:
    if gpu["mig"]:
        return Cell("MIG")
    if gpu["recovering"]:
        return Cell("recovering", Style.PENDING)
    return Cell(gpu["health"], Style.ILL if gpu["cause"] else Style.PLAIN)


def _cause(gpu: dict[str, Any], *, colour: bool) -> list[str]:
    if gpu["mig"] or not gpu["cause"]:
        return []
    style = Style.PENDING if gpu["recovering"] else Style.ILL
    indent = " " * 5
    return [painted(line, style, colour=colour) for line in _wrapped(f"{indent}{gpu['cause']}", indent)]


def _held(gpu: dict[str, Any], unit: MemoryUnit) -> str:
    totals = gpu["units"]
    held = gpu["held"]
    resources = dict.fromkeys((*totals, *held))
    parts = [_part(resource, held.get(resource, 0), totals.get(resource), unit) for resource in resources]
    return ", ".join(parts) or "-"


def _part(resource: str, held: int, total: int | None, unit: MemoryUnit) -> str:
    if total is None:
        return f"{_amount(resource, held, unit)} of a former mode"
    if resource not in {GPU_MEM, CLAIM_MEMORY}:
        return f"{held}/{_amount(resource, total, unit)}"
    held_mib = held * unit.mib
    total_mib = total * unit.mib
    is_in_gib = held_mib % 1024 == 0 and total_mib % 1024 == 0
    return f"{held_mib // 1024}/{total_mib // 1024} GiB" if is_in_gib else f"{held_mib}/{total_mib} MiB"


def _containers(gpu: dict[str, Any], unit: MemoryUnit) -> Iterator[str]:
    """A line for each, with its amounts: ``ml/fast[main] 10 GiB, 30 %``."""
    units_of: dict[str, Counter[str]] = {}
    for held in gpu["containers"]:
        of_container = units_of.setdefault(held["container"], Counter())
        of_container[held["resource"]] += held["units"]
    for name, units in units_of.items():
        compute_last = sorted(units, key=lambda resource: resource in {GPU_CORE, CLAIM_CORES})
        amounts = [_amount(resource, units[resource], unit) for resource in compute_last]
        yield f"     {name} {', '.join(amounts)}"


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
        state = Cell(view.get("stage", "-"))
        if view.get("problem"):
            state = Cell(f"{state.text}: {view['problem']}", Style.ILL)
        cells = row(name, str(view["healthy"]), str(view["unhealthy"]))
        rows.append([*cells, state])
    return align(rows, colour=colour)
