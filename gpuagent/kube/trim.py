"""Leaves of Node and Pod objects only what the agent reads, so that a full node's pods cost little memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.domain.pods import REJECTED

Json = dict[str, Any]

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
)
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
# kubectl apply keeps a copy of the whole object in it.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trim_node(node: Mapping[str, Any]) -> Json:
    """Return the Node without its image list (often half of it), field ownership and copies of itself."""
    status = {key: value for key, value in node.get("status", {}).items() if key != "images"}
    return {
        "metadata": _metadata(node),
        "spec": node.get("spec", {}),
        "status": status,
    }


def trim_pod(pod: Mapping[str, Any]) -> Json:
    """Return the Pod with metadata, node, phase, reason, and containers' names, resources, ids and states."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    return {
        "metadata": _metadata(pod),
        "spec": {
            **_picked(spec, ("nodeName",)),
            "containers": _each(spec, "containers", ("name", "resources")),
            "initContainers": _each(spec, "initContainers", ("name", "resources", "restartPolicy")),
        },
        "status": {
            **_picked(status, ("phase", "reason")),
            # Why kubelet, and not a container, failed it; a long text of an eviction is nobody's business here.
            **(_picked(status, ("message",)) if status.get("reason") == REJECTED else {}),
            **{name: [_state(found) for found in status[name]] for name in _STATUSES if status.get(name)},
        },
    }


def _metadata(found: Mapping[str, Any]) -> Json:
    metadata = found.get("metadata", {})
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}
    return {**_picked(metadata, _METADATA), "annotations": annotations}


def _state(found: Mapping[str, Any]) -> Json:
    """``{"name": "c", "containerID": "…", "state": {"waiting": {"reason": "..."}}}``, without times and exit codes."""
    state = {kind: _picked(what or {}, ("reason",)) for kind, what in (found.get("state") or {}).items()}
    return {**_picked(found, ("name", "containerID")), "state": state}


def _each(found: Mapping[str, Any], key: str, names: Iterable[str]) -> list[Json]:
    return [_picked(part, names) for part in found.get(key) or ()]


def _picked(found: Mapping[str, Any], names: Iterable[str]) -> Json:
    return {name: found[name] for name in names if name in found}
