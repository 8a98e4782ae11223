"""The report as plain values, for JSON and YAML. Nothing is cut; names of fields do not change within a version."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.system.printable import escaped
from inspectcgpu.read.resize import Resize
from inspectcgpu.report import Amount, ClusterReport, GpuReport, NodeReport, PodReport
from inspectcgpu.show.notes import notes
from inspectcgpu.show.summary import percent

VERSION = "inspectcgpu/v1"


def document(report: ClusterReport) -> dict[str, Any]:
    """Resources have their full names; GPUs are named by minor number; memory is in the node's own unit."""
    return {**head(report), **{name: list(values) for name, values in parts(report)}}


def head(report: ClusterReport) -> dict[str, Any]:
    """The first part of the document."""
    nodes_by_unit: dict[str, list[NodeReport]] = {}
    for node in report.having(GPU_MEM):
        nodes_by_unit.setdefault(node.unit, []).append(node)
    memory = []
    for unit, nodes in sorted(nodes_by_unit.items()):
        amount = report.total(nodes, GPU_MEM)
        memory.append({"unit": unit} | _sum(amount))
    totals = {
        "memory": memory,
        "core": _sum(report.total(report.having(GPU_CORE), GPU_CORE)),
        "gpus": _sum(report.total(report.having(GPU_WHOLE), GPU_WHOLE)),
    }
    return {"version": VERSION, "totals": totals}


def parts(report: ClusterReport) -> Iterator[tuple[str, Iterator[Any]]]:
    """The lists after the head, made as they are read: for a large cluster they are most of the document."""
    yield "nodes", map(_node, report.nodes)
    yield "waiting", map(_pod, report.waiting)
    texts = notes(report)
    if report.usage_problem:
        texts.append(f"use is not known: {report.usage_problem}")
    yield "notes", iter(texts)


def json_text(value: Any) -> str:  # noqa: ANN401 (plain values)
    """JSON on one line. Characters that control a terminal or reverse text are escaped; letters of any script stay."""
    return escaped(json.dumps(value, ensure_ascii=False))


def json_lines(report: ClusterReport) -> Iterator[str]:
    """The document as JSON, a node a line, and a pod that waits."""
    # The head without its last brace: the lists follow.
    yield json_text(head(report)).removesuffix("}") + ","
    ends = {"nodes": "],", "waiting": "],", "notes": "]}"}
    for name, values in parts(report):
        texts = [json_text(value) for value in values]
        yield f'"{name}": ['
        for text in texts[:-1]:
            yield f"{text},"
        yield from texts[-1:]
        yield ends[name]


def yaml_lines(report: ClusterReport, dump: Callable[[Any], str]) -> Iterator[str]:
    """The document as YAML; `dump` writes one value."""
    yield dump(head(report)).rstrip("\n")
    for name, values in parts(report):
        texts = [dump([value]).rstrip("\n") for value in values]
        yield f"{name}:" if texts else f"{name}: []"
        yield from texts


def _sum(amount: Amount) -> dict[str, Any]:
    return {"allocated": amount.allocated, "total": amount.total, "percent": percent(amount)}


def _node(node: NodeReport) -> dict[str, Any]:
    spec = node.node
    unit = node.measure.unit
    return {
        "name": spec.name,
        "address": spec.address or None,
        "mode": spec.mode or None,
        "placement": spec.placement or None,
        "model": spec.model or None,
        "unit": None if unit is None else str(unit),
        "unitMiB": None if unit is None else unit.mib,
        "problem": spec.problem or None,
        "problems": [
            {"severity": problem.severity, "reason": problem.reason, "message": problem.message}
            for problem in node.problems or ()
        ],
        "capacity": dict(spec.capacity),
        "allocatable": dict(spec.allocatable),
        "amounts": {name: _sum(amount) for name, amount in node.amounts.items()},
        "pending": dict(node.pending),
        "agent": "seen" if node.seen else node.unseen or "not asked",
        "gpus": [_gpu(gpu) for gpu in node.gpus],
        "links": [list(line) for line in node.links],
        "pods": [_pod(pod) for pod in node.pods],
    }


def _gpu(gpu: GpuReport) -> dict[str, Any]:
    return {
        "gpu": gpu.number,
        "model": gpu.model or None,
        "memoryMiB": gpu.memory_mib,
        "health": gpu.cause or "Healthy",
        "amounts": {
            name: {"allocated": amount.allocated, "total": amount.total} for name, amount in gpu.amounts.items()
        },
    }


def _pod(report: PodReport) -> dict[str, Any]:
    pod = report.pod
    usage = report.usage
    return {
        "namespace": pod.name.namespace,
        "name": pod.name.name,
        "node": pod.node or None,
        "phase": pod.phase or None,
        "asks": dict(pod.asks),
        "gpus": {
            name: [{"gpu": gpu, "units": units} for gpu, units in sorted(gpus.items())]
            for name, gpus in report.places.items()
        },
        "toldBy": dict(report.sources),
        "visible": list(pod.visible),
        "pending": dict(report.pending),
        "why": report.why or None,
        "differs": report.differs or None,
        "usedBytes": usage.used if usage else None,
        "limitBytes": usage.limit if usage else None,
        "resize": _resize(report.resize) if report.resize else None,
    }


def _resize(resize: Resize) -> dict[str, Any]:
    return {
        "wanted": resize.wanted or None,
        "inForce": resize.in_force or None,
        "refused": resize.refused or None,
    }
