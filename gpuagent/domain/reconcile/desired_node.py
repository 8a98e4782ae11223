"""The desired state of the agent's Node object, and the smallest patches that reach it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.pods.quantity import amount

Json = Mapping[str, Any]
Texts = Mapping[str, str | None]
"""Text by key; None for a key that must be absent."""


@dataclass(frozen=True, slots=True)
class DesiredNode:
    """The desired state of the Node; everything else on it belongs to others.

    Attributes:
        labels: value by label key; None for a label that must be absent.
        capacity: quantity by resource name, ``{"aliyun.com/gpu-count": "8"}``; for capacity and allocatable alike.
        no_taint: key of a taint that must be absent; "" for none.
        annotations: value by annotation key.
        condition: ``{"type": ..., "status": "True"|"False"|"Unknown", "reason": ..., "message": ...}``; None for none.
    """

    labels: Texts = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    condition: Mapping[str, str] | None = None
    no_taint: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodePatch:
    """One PATCH of the Node: ``subresource`` is "" (merge patch) or "status" (strategic merge patch)."""

    subresource: str
    body: dict[str, Any]

    @property
    def part(self) -> str:
        """``taints``, ``metadata`` or ``status``: patches of one Node are for different parts."""
        if self.subresource:
            return self.subresource
        return "taints" if "spec" in self.body else "metadata"


def node_patches(node: Json, desired: DesiredNode, now: str) -> tuple[NodePatch, ...]:
    """Return patches that make ``node`` (decoded JSON, as observed) agree with ``desired``; empty if it already does.

    ``now`` is RFC 3339, for the condition's times. A condition's lastTransitionTime moves only with its status.
    """
    patches = []
    taint = _without_taint(node, desired)
    if taint:
        # First: this patch names the version that the agent read, so that it cannot remove a newer taint of others.
        patches.append(NodePatch("", taint))
    metadata = _metadata(node, desired)
    if metadata:
        patches.append(NodePatch("", {"metadata": metadata}))
    status = _status(node, desired, now)
    if status:
        patches.append(NodePatch("status", {"status": status}))
    return tuple(patches)


def _metadata(node: Json, desired: DesiredNode) -> dict[str, Any]:
    """The labels and annotations that differ."""
    metadata: dict[str, Any] = {}
    wanted = {"labels": desired.labels, "annotations": desired.annotations}
    for part, texts in wanted.items():
        changed = _texts(node, part, texts)
        if changed:
            metadata[part] = changed
    return metadata


def _status(node: Json, desired: DesiredNode, now: str) -> dict[str, Any]:
    """The amounts and the condition that differ."""
    status: dict[str, Any] = {}
    for side in ("capacity", "allocatable"):
        amounts = _amounts(node, side, desired)
        if amounts:
            status[side] = amounts
    condition = _condition(node, desired, now)
    if condition:
        # Strategic merge finds the entry by its type and leaves the others alone.
        status["conditions"] = [condition]
    return status


def _without_taint(node: Json, desired: DesiredNode) -> dict[str, Any] | None:
    """The body of the patch that removes the taint; None if there is nothing to remove."""
    if not desired.no_taint:
        return None
    spec = node.get("spec") or {}
    taints = spec.get("taints") or ()
    kept = [taint for taint in taints if taint.get("key") != desired.no_taint]
    if len(kept) == len(taints):
        return None
    version = node["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version},
        "spec": {"taints": kept or None},
    }


def same_quantity(text: str, other: str) -> bool:
    """Whether two Kubernetes quantities are equal; the API server rewrites them (``1000`` becomes ``1k``)."""
    if text == other:
        return True
    value = amount(text)
    if value is None:
        return False
    return value == amount(other)


def _texts(node: Json, part: str, wanted: Texts) -> dict[str, str | None]:
    """The labels or annotations that differ."""
    metadata = node.get("metadata", {})
    present = metadata.get(part) or {}
    return {key: text for key, text in wanted.items() if present.get(key) != text}


def _amounts(node: Json, side: str, desired: DesiredNode) -> dict[str, str]:
    status = node.get("status", {})
    present = status.get(side) or {}
    amounts = {}
    for name, wanted in desired.capacity.items():
        quantity = present.get(name)
        is_missing = quantity is None
        if is_missing or not same_quantity(str(quantity), wanted):
            amounts[name] = wanted
    return amounts


def _condition(node: Json, desired: DesiredNode, now: str) -> dict[str, str] | None:
    """The condition to write; None if the Node has it."""
    if desired.condition is None:
        return None
    wanted = dict(desired.condition)
    present = _present_condition(node, wanted["type"])
    if present and _has_texts(present, wanted):
        return None
    since = None
    if present.get("status") == wanted["status"]:
        since = present.get("lastTransitionTime")
    return {
        **wanted,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since or now,
    }


def _has_texts(condition: Json, wanted: Mapping[str, str]) -> bool:
    # The server drops empty strings, so a missing one is equal to "".
    return all(condition.get(key, "") == text for key, text in wanted.items())


def _present_condition(node: Json, condition_type: str) -> Json:
    """The condition of that type; empty if there is none."""
    status = node.get("status", {})
    conditions: Iterable[Json] = status.get("conditions") or ()
    for condition in conditions:
        if condition.get("type") == condition_type:
            return condition
    return {}
