"""The desired state of the agent's Node object, and the smallest patches that reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.pods.quantity import amount

Json = Mapping[str, Any]


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

    labels: Mapping[str, str | None] = field(default_factory=dict)
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
        return self.subresource or ("taints" if "spec" in self.body else "metadata")


def node_patches(node: Json, desired: DesiredNode, now: str) -> tuple[NodePatch, ...]:
    """Return patches that make ``node`` (decoded JSON, as observed) agree with ``desired``; empty if it already does.

    ``now`` is RFC 3339, for the condition's times. A condition's lastTransitionTime moves only with its status.
    """
    patches = []
    if taint := _without_taint(node, desired):
        # First: this patch names the version that the agent read, so that it cannot remove a newer taint of others.
        patches.append(NodePatch("", taint))
    wanted = {"labels": desired.labels, "annotations": desired.annotations}
    if texts := {part: changed for part, of in wanted.items() if (changed := _texts(node, part, of))}:
        patches.append(NodePatch("", {"metadata": texts}))
    status: dict[str, Any] = {}
    for side in ("capacity", "allocatable"):
        if amounts := _amounts(node, side, desired):
            status[side] = amounts
    if condition := _condition(node, desired, now):
        # Strategic merge finds the entry by its type and leaves the others alone.
        status["conditions"] = [condition]
    if status:
        patches.append(NodePatch("status", {"status": status}))
    return tuple(patches)


def _without_taint(node: Json, desired: DesiredNode) -> dict[str, Any] | None:
    taints = (node.get("spec") or {}).get("taints") or ()
    left = [taint for taint in taints if taint.get("key") != desired.no_taint]
    if not desired.no_taint or len(left) == len(taints):
        return None
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": left or None}}


def same_quantity(one: str, other: str) -> bool:
    """Whether two Kubernetes quantities are equal; the API server rewrites them (``1000`` becomes ``1k``)."""
    return one == other or (amount(one) is not None and amount(one) == amount(other))


def _texts(node: Json, part: str, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """The labels or annotations that differ."""
    present = node.get("metadata", {}).get(part) or {}
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def _amounts(node: Json, side: str, desired: DesiredNode) -> dict[str, str]:
    present = node.get("status", {}).get(side) or {}
    return {
        name: wanted
        for name, wanted in desired.capacity.items()
        if name not in present or not same_quantity(str(present[name]), wanted)
    }


def _condition(node: Json, desired: DesiredNode, now: str) -> dict[str, str] | None:
    if desired.condition is None:
        return None
    wanted = dict(desired.condition)
    conditions = node.get("status", {}).get("conditions") or ()
    present: Json = next((found for found in conditions if found.get("type") == wanted["type"]), {})
    # The server drops empty strings, so a missing one is equal to "".
    if present and all(present.get(key, "") == value for key, value in wanted.items()):
        return None
    since = present.get("lastTransitionTime") if present.get("status") == wanted["status"] else None
    return {**wanted, "lastHeartbeatTime": now, "lastTransitionTime": since or now}
