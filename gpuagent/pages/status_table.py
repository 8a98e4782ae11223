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
MIB_PER_GIB = 1024
MEMORY_RESOURCES = frozenset({GPU_MEM, CLAIM_MEMORY})
COMPUTE_RESOURCES = frozenset({GPU_CORE, CLAIM_CORES})
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
    label = next(iter(page["label"].values())) or "none"
    node = page["node"] or "-"
    isolation = page["isolation"]
    layer = isolation["driver"]
    if isolation["version"]:
        layer = f"{layer} {isolation['version']}"
    facts = [
        f"node {node}",
        f"mode {page['mode']} (label: {label})",
        f"placement {page['placement']}",
        f"isolation {layer}",
        f"unit {page['memory_unit']}",
        f"gpuagent {page['version']}",
    ]
    return _filled(facts)


def _switch(switch: dict[str, Any], *, colour: bool) -> list[str]:
    """What a mode switch waits for; nothing if there is none."""
    if switch["phase"] == "steady":
        return []
    containers = {holding["container"] for holding in switch["waiting_for"]}
    names = ", ".join(sorted(containers))
    cause = names or "old devices to leave kubelet's list"
    text = f"mode switch {switch['phase']}: waits for {cause}"
    return _painted_lines(text, "", Style.PENDING, colour=colour)


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
        lines += _painted_lines(text, "  ", style, colour=colour)
    return lines


def _painted_lines(text: str, indent: str, style: Style, *, colour: bool) -> list[str]:
    return [painted(line, style, colour=colour) for line in _wrapped(text, indent)]


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
    kinds = {_model_and_memory(gpu) for gpu in gpus}
    are_alike = len(kinds) == 1
    lines = [*_common_facts(gpus)] if are_alike else []
    head = ["GPU", "HEALTH", "HELD"]
    if not are_alike:
        head.append("MODEL")
    rows = [row(*head, style=Style.HEAD)]
    for gpu in gpus:
        cells = [Cell(str(gpu["index"])), _health(gpu), Cell(_held(gpu, unit))]
        if not are_alike:
            cells.append(Cell(_model_and_memory(gpu)))
        rows.append(cells)
    head_line, *gpu_lines = align(rows, colour=colour)
    lines.append(head_line)
    for gpu, line in zip(gpus, gpu_lines, strict=True):
        lines.append(line)
        lines += _cause(gpu, colour=colour)
        lines += _containers(gpu, unit)
    return lines


def _common_facts(gpus: Sequence[dict[str, Any]]) -> list[str]:
    """What all GPUs have in common, so that no row has to say it."""
    memory_mib = gpus[0]["memory_mib"]
    each = " each" if memory_mib else ""
    return [f"{models(gpus)}, {_memory(memory_mib)}{each}", ""]


def _model_and_memory(gpu: dict[str, Any]) -> str:
    memory = _memory(gpu["memory_mib"])
    return f"{gpu['model']}, {memory}"


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
    text = f"{indent}{gpu['cause']}"
    return _painted_lines(text, indent, style, colour=colour)


def _held(gpu: dict[str, Any], unit: MemoryUnit) -> str:
    totals = gpu["units"]
    held = gpu["held"]
    parts = []
    for resource in dict.fromkeys((*totals, *held)):
        units = held.get(resource, 0)
        total = totals.get(resource)
        parts.append(_held_part(resource, units, total, unit))
    return ", ".join(parts) or "-"


def _held_part(resource: str, held: int, total: int | None, unit: MemoryUnit) -> str:
    """How much of a resource is held: ``10/24 GiB``."""
    if total is None:
        return f"{_amount(resource, held, unit)} of a former mode"
    if resource not in MEMORY_RESOURCES:
        return f"{held}/{_amount(resource, total, unit)}"
    held_mib = held * unit.mib
    total_mib = total * unit.mib
    if held_mib % MIB_PER_GIB or total_mib % MIB_PER_GIB:
        return f"{held_mib}/{total_mib} MiB"
    held_gib = held_mib // MIB_PER_GIB
    total_gib = total_mib // MIB_PER_GIB
    return f"{held_gib}/{total_gib} GiB"


def _containers(gpu: dict[str, Any], unit: MemoryUnit) -> Iterator[str]:
    """A line for each, with its amounts: ``ml/fast[main] 10 GiB, 30 %``."""
    units_of: dict[str, Counter[str]] = {}
    for held in gpu["containers"]:
        container = held["container"]
        resource = held["resource"]
        if container not in units_of:
            units_of[container] = Counter()
        units_of[container][resource] += held["units"]
    for name, units in units_of.items():
        compute_last = sorted(units, key=lambda resource: resource in COMPUTE_RESOURCES)
        amounts = [_amount(resource, units[resource], unit) for resource in compute_last]
        line = ", ".join(amounts)
        yield f"     {name} {line}"
    for name in gpu.get("monitors", ()):  # an earlier agent has none
        yield f"     {name} monitor"


def _amount(resource: str, units: int, unit: MemoryUnit) -> str:
    if resource in MEMORY_RESOURCES:
        return _memory(units * unit.mib)
    if resource in COMPUTE_RESOURCES:
        return f"{units} %"
    return f"{units} GPU" if units == 1 else f"{units} GPUs"


def _memory(mib: int) -> str:
    if not mib:
        return "memory not reported"
    if mib % MIB_PER_GIB:
        return f"{mib} MiB"
    return f"{mib // MIB_PER_GIB} GiB"


def _resources(resources: dict[str, dict[str, Any]], *, colour: bool) -> list[str]:
    rows = [row("RESOURCE", "HEALTHY", "UNHEALTHY", "KUBELET", style=Style.HEAD)]
    for name, view in resources.items():
        healthy = str(view["healthy"])
        unhealthy = str(view["unhealthy"])
        rows.append([*row(name, healthy, unhealthy), _registration(view)])
    return align(rows, colour=colour)


def _registration(view: dict[str, Any]) -> Cell:
    stage = view.get("stage", "-")
    problem = view.get("problem")
    if problem:
        return Cell(f"{stage}: {problem}", Style.ILL)
    return Cell(stage)
