"""`--waste`: a table of namespaces and one of pods, those that waste the most first."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.domain.fleet.waste import LONG_IDLE_S, KnownSum, NamespaceWaste, PodWaste, Waste
from gpuagent.pages.cells import Row, Style, align, row
from gpuagent.system.printable import printable
from inspectcgpu.order import Value, in_order

_NAMESPACE_HEADS = ("NAMESPACE", "PODS", "HELD(GiB)", "USED P95(GiB)", "PEAK(GiB)", "UNUSED(GiB)", "IDLE FOR 1h")
_POD_HEADS = ("NAMESPACE", "POD", "NODE", "HELD(GiB)", "USED P95(GiB)", "PEAK(GiB)", "UNUSED(GiB)", "IDLE FOR")
_GIB = 1 << 30
_DAY_S = 86400
_MINUTE_S = 60


def waste_lines(waste: Waste, *, colour: bool) -> list[str]:
    """The lines."""
    lines: list[str] = []
    if waste.pods:
        namespaces: list[Row] = [row(*_NAMESPACE_HEADS, style=Style.HEAD)]
        namespaces += [_namespace(namespace) for namespace in waste.namespaces]
        pods: list[Row] = [row(*_POD_HEADS, style=Style.HEAD)]
        pods += [_pod(pod) for pod in waste.pods]
        lines += [*align(namespaces, colour=colour), "", *align(pods, colour=colour)]
    unknown = sum(namespace.unknown for namespace in waste.namespaces)
    if unknown:
        lines.append(
            f"- the memory that {unknown} of {len(waste.pods)} pods use is not known: their agents have not seen it "
            "yet, or do not see the host's processes, because the chart value metrics.perContainerUse is false or the "
            "node is itself a container (as in kind)"
        )
    lines += [printable(f"- {note}") for note in waste.notes]
    return lines


def sorted_by(waste: Waste, column: str) -> Waste:
    """The answer with namespaces and pods in the order of one of `POD_COLUMNS`."""
    namespaces = waste.namespaces
    if column in _NAMESPACE_COLUMNS:
        namespaces = in_order(namespaces, _NAMESPACE_COLUMNS[column])
    return replace(waste, namespaces=namespaces, pods=in_order(waste.pods, POD_COLUMNS[column]))


def pod_rows(waste: Waste, *, colour: bool) -> list[str]:
    """A line for each pod, without heads, sums and notes."""
    return align([_pod(pod) for pod in waste.pods], colour=colour)


def document(waste: Waste) -> dict[str, Any]:
    """The answer for JSON and YAML: bytes and seconds, null for what is not known."""
    return {
        "namespaces": [_namespace_values(namespace) for namespace in waste.namespaces],
        "pods": [_pod_values(pod) for pod in waste.pods],
        "notes": list(waste.notes),
    }


POD_COLUMNS: Mapping[str, Callable[[PodWaste], Value]] = {
    "pod": lambda of_pod: of_pod.pod.name,
    "namespace": lambda of_pod: of_pod.pod.namespace,
    "node": lambda of_pod: of_pod.node,
    "held": lambda of_pod: of_pod.held_bytes,
    "used": lambda of_pod: of_pod.used_bytes,
    "peak": lambda of_pod: of_pod.peak_bytes,
    "unused": lambda of_pod: of_pod.unused_bytes,
    "idle": lambda of_pod: of_pod.idle_s,
}
"""What pods can be sorted by: `combinations.COMMANDS` has the same names."""
_NAMESPACE_COLUMNS: Mapping[str, Callable[[NamespaceWaste], Value]] = {
    "namespace": lambda of_namespace: of_namespace.namespace,
    "held": lambda of_namespace: of_namespace.held_bytes.known,
    "used": lambda of_namespace: of_namespace.used_bytes.known,
    "peak": lambda of_namespace: of_namespace.peak_bytes.known,
    "unused": lambda of_namespace: of_namespace.unused_bytes.known,
    "idle": lambda of_namespace: of_namespace.idle.known,
}
"""The same for namespaces. By another column, those that waste the most stay first."""


def _namespace(of_namespace: NamespaceWaste) -> Row:
    return row(
        of_namespace.namespace,
        str(of_namespace.pods),
        _gib_sum(of_namespace.held_bytes),
        _gib_sum(of_namespace.used_bytes),
        _gib_sum(of_namespace.peak_bytes),
        _gib_sum(of_namespace.unused_bytes),
        _count(of_namespace.idle),
    )


def _pod(of_pod: PodWaste) -> Row:
    is_idle = of_pod.idle_s is not None and of_pod.idle_s >= LONG_IDLE_S
    return row(
        of_pod.pod.namespace,
        of_pod.pod.name,
        of_pod.node,
        _gib(of_pod.held_bytes),
        _gib(of_pod.used_bytes),
        _gib(of_pod.peak_bytes),
        _gib(of_pod.unused_bytes),
        _time(of_pod.idle_s),
        style=Style.PENDING if is_idle else Style.PLAIN,
    )


def _namespace_values(of_namespace: NamespaceWaste) -> dict[str, Any]:
    sums = {
        "podsIdle": of_namespace.idle,
        "heldBytes": of_namespace.held_bytes,
        "usedP95Bytes": of_namespace.used_bytes,
        "usedPeakBytes": of_namespace.peak_bytes,
        "unusedBytes": of_namespace.unused_bytes,
    }
    return {
        "namespace": of_namespace.namespace,
        "pods": of_namespace.pods,
        "podsUnknown": of_namespace.unknown,
        **{name: summed.known for name, summed in sums.items()},
        "lowerBounds": [name for name, summed in sums.items() if summed.is_lower_bound],
    }


def _pod_values(of_pod: PodWaste) -> dict[str, Any]:
    return {
        "namespace": of_pod.pod.namespace,
        "name": of_pod.pod.name,
        "node": of_pod.node,
        "heldBytes": of_pod.held_bytes,
        "usedP95Bytes": of_pod.used_bytes,
        "usedPeakBytes": of_pod.peak_bytes,
        "unusedBytes": of_pod.unused_bytes,
        "idleSeconds": of_pod.idle_s,
    }


def _gib(amount: int | None) -> str:
    return "-" if amount is None else f"{amount / _GIB:.1f}"


def _gib_sum(summed: KnownSum) -> str:
    return _marked(_gib(summed.known), summed)


def _count(summed: KnownSum) -> str:
    return _marked("-" if summed.known is None else str(summed.known), summed)


def _marked(text: str, summed: KnownSum) -> str:
    """The sum with a mark if some pods are missing in it; without a blank, so that scripts can split the line."""
    return f">={text}" if summed.is_lower_bound else text


def _time(seconds: int | None) -> str:
    """In kubectl's way: ``40s``, ``12m``, ``3h20m``, ``2d4h``."""
    if seconds is None:
        return "-"
    if seconds < _MINUTE_S:
        return f"{seconds}s"
    if seconds < LONG_IDLE_S:
        return f"{seconds // _MINUTE_S}m"
    hours, rest_s = divmod(seconds, LONG_IDLE_S)
    if seconds < _DAY_S:
        return f"{hours}h{rest_s // _MINUTE_S}m"
    return f"{seconds // _DAY_S}d{hours % 24}h"
